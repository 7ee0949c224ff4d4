"""The Python that Spark starts on this machine: the one that runs here, with the PySpark that is installed for it.

Spark would have each of its Python processes take PySpark from a zip, which holds no bytecode, and look for modules in
a jar: to compile the one and to list the other takes longer than all else that such a process does before it begins.
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


def worker_python() -> str:
    """A program that is Python, and quick to start where Spark starts it."""
    if not _is_pip_installed():
        return sys.executable
    # In a fresh folder that only we can write to: whoever could put a file there could make us run it.
    folder = Path(tempfile.mkdtemp(prefix="moldau-python-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    program = folder / "python"
    program.write_text(_PROGRAM.format(python=shlex.quote(sys.executable)))
    program.chmod(0o755)
    return str(program) if os.access(program, os.X_OK) else sys.executable  # there may be no programs in such a place


def _is_pip_installed() -> bool:
    """PySpark, py4j and Spark itself, by pip: then the zips hold what is installed, and nothing needs them."""
    pyspark, py4j = _folder_of("pyspark"), _folder_of("py4j")
    if pyspark is None or py4j is None:
        return False
    home = Path(os.environ.get("SPARK_HOME") or pyspark)
    return (pyspark / _ZIPS).is_dir() and (home / _ZIPS).resolve() == (pyspark / _ZIPS).resolve()


def _folder_of(package: str) -> Path | None:
    """None unless every new process of this Python finds it: this one may have been told of more places."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return None
    folder = Path(spec.origin).parent
    places = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    return folder if folder.parent.resolve() in {Path(each).resolve() for each in places} else None

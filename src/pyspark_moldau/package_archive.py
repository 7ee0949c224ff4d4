"""Builds a zip of both packages for executors on which Moldau is not installed."""

import atexit
import shutil
import tempfile
import zipfile
from pathlib import Path

import moldau
import pyspark_moldau


def build_package_archive() -> Path:
    """Return the path of the archive, which is kept until this process ends: executors may start at any time."""
    folder = Path(tempfile.mkdtemp(prefix="moldau-spark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with zipfile.ZipFile(folder / "moldau.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for package in (moldau, pyspark_moldau):
            root = Path(str(package.__file__)).parent
            for path in sorted(root.rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    archive.write(path, path.relative_to(root.parent))
    return folder / "moldau.zip"

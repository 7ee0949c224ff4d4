"""Small text files and folder renames through Hadoop's file system API, on any storage Spark supports."""

from pathlib import Path
from typing import Any


def replace_folder(spark: Any, source: str, target: str) -> None:
    """Rename a finished folder over an existing one; readers never see half of it if rename is atomic."""
    path = spark._jvm.org.apache.hadoop.fs.Path
    files = path(target).getFileSystem(spark._jsc.hadoopConfiguration())
    files.delete(path(target), True)
    files.mkdirs(path(target).getParent())
    if not files.rename(path(source), path(target)):
        raise RuntimeError(f"{source} cannot be renamed to {target}")


def read_text(spark: Any, place: str) -> str | None:
    """Return the content of a small file, or None if it does not exist."""
    for each in (place, f"{place}.old"):  # the writer may have died between its two renames
        path = spark._jvm.org.apache.hadoop.fs.Path(each)
        files = path.getFileSystem(spark._jsc.hadoopConfiguration())
        if files.exists(path):
            return _text_of(spark, files.open(path))
    return None


def _text_of(spark: Any, stream: Any) -> str:
    try:
        return str(spark._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
    finally:
        stream.close()


def write_text(spark: Any, place: str, text: str) -> None:
    """Replace a file so that `read_text` finds a complete version at any time.

    Not every file system can rename over an existing file, so the old version is renamed first.
    """
    path = spark._jvm.org.apache.hadoop.fs.Path
    files = path(place).getFileSystem(spark._jsc.hadoopConfiguration())
    stream = files.create(path(f"{place}.new"), True)
    try:
        stream.write(bytearray(text.encode()))
    finally:
        stream.close()
    if files.exists(path(place)):
        replace_folder(spark, place, f"{place}.old")
    replace_folder(spark, f"{place}.new", place)


def local_path(spark: Any, place: str) -> Path | None:
    """Return the local path of a URI, or None if it is remote."""
    path = spark._jvm.org.apache.hadoop.fs.Path(place)
    files = path.getFileSystem(spark._jsc.hadoopConfiguration())
    if files.getUri().getScheme() != "file":
        return None
    return Path(files.makeQualified(path).toUri().getPath())


def make_directory(spark: Any, place: str) -> None:
    """Create a directory unless it exists."""
    path = spark._jvm.org.apache.hadoop.fs.Path(place)
    path.getFileSystem(spark._jsc.hadoopConfiguration()).mkdirs(path)

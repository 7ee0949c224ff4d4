"""Small things on the file system of a lake, whichever Spark knows: texts, and folders that change places."""

from pathlib import Path
from typing import Any


def replace_folder(spark: Any, source: str, target: str) -> None:
    """Put a finished folder in the place of what may be there: where renaming is one step, nobody sees half of it."""
    path = spark._jvm.org.apache.hadoop.fs.Path
    files = path(target).getFileSystem(spark._jsc.hadoopConfiguration())
    files.delete(path(target), True)
    files.mkdirs(path(target).getParent())
    if not files.rename(path(source), path(target)):
        raise RuntimeError(f"{source} cannot be renamed to {target}")


def read_text(spark: Any, place: str) -> str | None:
    """A small file, or None if there is none."""
    for each in (place, f"{place}.old"):  # whoever wrote it may have been stopped between two steps
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
    """Under another name first, and beside the one before: at every moment `read_text` finds a whole one.

    Not every file system can rename over a file that is there.
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
    """Where a place is for Python, if it is on a file system of the machine."""
    path = spark._jvm.org.apache.hadoop.fs.Path(place)
    files = path.getFileSystem(spark._jsc.hadoopConfiguration())
    if files.getUri().getScheme() != "file":
        return None
    return Path(files.makeQualified(path).toUri().getPath())


def make_directory(spark: Any, place: str) -> None:
    """If it is not there."""
    path = spark._jvm.org.apache.hadoop.fs.Path(place)
    path.getFileSystem(spark._jsc.hadoopConfiguration()).mkdirs(path)

"""Passes a task's rows to the driver, in order, as an Arrow stream: inline in the message, or in a file if large.

    <staging>/<writer>/<batch>/<task attempt>.arrow

Staging is transport only, without fsync or manifest. A replay stages everything again.
"""

import contextlib
import hashlib
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_moldau.options.sink_options import BatchIdentity
from pyspark_moldau.sink.batch_builder import BATCH
from pyspark_moldau.sink.records import RECORD

INLINE_BYTES_MAX: Final = 1 << 20
_NAME_BYTES_MAX: Final = 200  # the limit is 255 on most file systems, and a suffix is added


class StagingFailed(RuntimeError):
    """The driver cannot find the rows that a task staged."""


@dataclass(frozen=True, slots=True)
class StagedBatches:
    """The rows of one task, inline or in a file."""

    writer: str
    task: int
    rows: int
    content: bytes | None
    path: str | None
    size_bytes: int = 0
    run: str | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read the rows; raises StagingFailed if some are missing."""
        rows = 0
        with self._open() as file, pa.ipc.open_stream(file) as stream:
            for batch in stream:
                rows += count_rows(batch)
                yield batch
        if rows != self.rows:
            raise StagingFailed(f"Task {self.task} staged {self.rows} rows, but {self.path} has {rows}.")

    def delete(self) -> None:
        if self.path is not None:
            Path(self.path).unlink(missing_ok=True)

    def _open(self) -> Any:
        if self.content is not None:
            return pa.BufferReader(self.content)
        try:
            return pa.memory_map(self.path)
        except FileNotFoundError:
            raise StagingFailed(
                f"Task {self.task} staged its rows in {self.path}, which the driver cannot read. Set the option "
                "'stagingLocation' to a folder that all nodes share."
            ) from None


def count_rows(batch: pa.RecordBatch) -> int:
    """Count the records in rows that are records or encoded batches."""
    return int(pc.sum(batch["rows"]).as_py() or 0) if batch.schema.equals(BATCH) else batch.num_rows


def stage(
    batches: Iterable[pa.RecordBatch],
    staging: Path,
    identity: BatchIdentity,
    task: int,
    attempt: int,
    inline_bytes_max: int = INLINE_BYTES_MAX,
) -> StagedBatches:
    """Stage the rows of one task. `attempt` is unique per task attempt."""
    path = writer_directory(staging, identity.writer) / str(identity.batch) / f"{attempt}.arrow"
    left = iter(batches)
    few, is_all = _few(left, inline_bytes_max)
    if is_all:
        memory = pa.BufferOutputStream()
        rows, size_bytes = _write(few, memory)
        content = memory.getvalue().to_pybytes()
        return StagedBatches(identity.writer, task, rows, content, None, size_bytes, identity.run)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with pa.OSFile(str(path), "wb") as file:
            rows, size_bytes = _write(chain(few, left), file)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return StagedBatches(identity.writer, task, rows, None, str(path), size_bytes, identity.run)


def _few(left: Iterator[pa.RecordBatch], bytes_max: int) -> tuple[list[pa.RecordBatch], bool]:
    """Return the first batches, and whether they are complete and small enough to be inlined."""
    few: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in left:
        few.append(batch)
        held_bytes += batch.nbytes
        if held_bytes > bytes_max:
            return few, False
    return few, True


def _write(batches: Iterable[pa.RecordBatch], sink: Any) -> tuple[int, int]:
    """Write the batches; return the number of rows and bytes."""
    rows = 0
    stream = None
    for batch in batches:
        if stream is None:
            schema = BATCH if batch.schema.equals(BATCH) else RECORD
            stream = pa.ipc.new_stream(sink, schema)
        rows += count_rows(batch)
        stream.write_batch(batch)
    (stream or pa.ipc.new_stream(sink, RECORD)).close()
    return rows, sink.tell()


def writer_directory(staging: Path, writer: str) -> Path:
    """Return the folder of a writer, whose name may be any text."""
    name = quote(writer, safe="")
    if len(name) > _NAME_BYTES_MAX or not name.strip("."):
        digest = hashlib.sha256(writer.encode()).hexdigest()
        name = f"{name[: _NAME_BYTES_MAX - len(digest)]}-{digest}"
    return staging / name


def remove_writer(staging: Path, writer: str) -> None:
    """Delete all staged files of a finished writer."""
    shutil.rmtree(writer_directory(staging, writer), ignore_errors=True)


def remove_batches(staging: Path, writer: str, batch: int) -> None:
    """Delete the staged files of this and earlier batches, including those of failed attempts."""
    with contextlib.suppress(FileNotFoundError):
        for folder in writer_directory(staging, writer).iterdir():
            if folder.name.isdecimal() and int(folder.name) <= batch:
                shutil.rmtree(folder, ignore_errors=True)

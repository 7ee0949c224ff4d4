"""What a task leaves for the driver to publish: its rows in order, in an Arrow stream, in a file if they are many.

    <staging>/<writer>/<batch>/<task attempt>.arrow

Staging is transport and nothing more: no fsync, no manifest. A replay writes everything again.
"""

import contextlib
import io
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self
from urllib.parse import quote

import pyarrow as pa

from pyspark_moldau.outgoing import RECORD
from pyspark_moldau.sink_options import Identity

INLINE_BYTES_MAX: Final = 1 << 20


class StagingFailed(RuntimeError):
    """What a task has staged is not what the driver finds."""


@dataclass(frozen=True, slots=True)
class StagedPart:
    """The rows of one task: within this message, or in a file."""

    writer: str
    task: int
    rows: int
    content: bytes | None
    path: str | None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, as many as were staged, or an error."""
        rows = 0
        with self._open() as file, pa.ipc.open_stream(file) as stream:
            for batch in stream:
                rows += batch.num_rows
                yield batch
        if rows != self.rows:
            raise StagingFailed(f"Task {self.task} staged {self.rows} rows, {rows} are found in {self.path}.")

    def delete(self) -> None:
        if self.path is not None:
            Path(self.path).unlink(missing_ok=True)

    def _open(self) -> Any:
        if self.content is not None:
            return pa.BufferReader(self.content)
        try:
            return pa.OSFile(self.path)
        except FileNotFoundError:
            raise StagingFailed(
                f"The rows of task {self.task} were staged in {self.path}, which the driver cannot see. Set the option "
                "'stagingLocation' to a folder that all nodes share."
            ) from None


def stage(
    batches: Iterable[pa.RecordBatch],
    staging: Path,
    identity: Identity,
    task: int,
    attempt: int,
    inline_bytes_max: int = INLINE_BYTES_MAX,
) -> StagedPart:
    """Write the rows of one task. `attempt` is another one for every run of every task."""
    path = folder_of(staging, identity.writer) / str(identity.batch) / f"{attempt}.arrow"
    with _Spill(path, inline_bytes_max) as spill:
        rows = 0
        with pa.ipc.new_stream(spill, RECORD) as stream:
            for batch in batches:
                rows += batch.num_rows
                stream.write_batch(batch)
    return StagedPart(identity.writer, task, rows, *spill.taken())


class _Spill(io.RawIOBase):
    """Memory first, a file as soon as there is too much of it."""

    def __init__(self, path: Path, inline_bytes_max: int) -> None:
        self._path, self._inline_bytes_max = path, inline_bytes_max
        self._memory = io.BytesIO()
        self._file: IO[bytes] | None = None

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        if self._file is None and self._memory.tell() + len(memoryview(content)) > self._inline_bytes_max:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("wb")
            self._file.write(self._memory.getbuffer())
        return (self._file or self._memory).write(content)

    def taken(self) -> tuple[bytes | None, str | None]:
        """The content or the path."""
        return (self._memory.getvalue(), None) if self._file is None else (None, str(self._path))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
            if error is not None:
                self._path.unlink(missing_ok=True)


def folder_of(staging: Path, writer: str) -> Path:
    """Where everything of one writer lies. Its name may be any text."""
    return staging / quote(writer, safe="")


def sweep(staging: Path, writer: str, batch: int) -> None:
    """Remove what this batch and those before it have left: of lost attempts, of earlier lives."""
    with contextlib.suppress(FileNotFoundError):
        for folder in folder_of(staging, writer).iterdir():
            if folder.name.isdecimal() and int(folder.name) <= batch:
                shutil.rmtree(folder, ignore_errors=True)

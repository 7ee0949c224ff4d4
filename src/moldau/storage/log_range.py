"""A range of a log as byte ranges of files, readable by a worker process."""

from dataclasses import dataclass
from typing import NamedTuple

from moldau.model.ports import Disk
from moldau.storage.batch_scan import CorruptBatch
from moldau.storage.names import LOG, path_of


class FileRange(NamedTuple):
    """Whole batches in a log file, named by the base offset of its segment."""

    base_offset: int
    position: int
    length: int


@dataclass(frozen=True, slots=True)
class LogRange:
    """Consecutive pieces of the log. Files may be replaced at any time: what was read is valid only if the log's
    `layout_version` is unchanged."""

    folder: str
    pieces: tuple[FileRange, ...]

    @property
    def size_bytes(self) -> int:
        return sum(piece.length for piece in self.pieces)

    def read(self, disk: Disk, piece: FileRange) -> bytes:
        """Raises `CorruptBatch` if the file became shorter."""
        file = disk.open(path_of(self.folder, piece.base_offset, LOG), read_only=True)
        try:
            batches = file.pread(piece.length, piece.position)
        finally:
            file.close()
        if len(batches) < piece.length:
            raise CorruptBatch(piece.position + len(batches), "the file is shorter than its log")
        return batches

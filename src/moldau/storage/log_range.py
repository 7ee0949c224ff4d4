"""A stretch of a log, described so that a worker process finds it: which bytes of which files."""

from dataclasses import dataclass
from typing import NamedTuple

from moldau.model.ports import Disk
from moldau.storage.batch_scan import CorruptBatch
from moldau.storage.names import LOG, path_of


class FileRange(NamedTuple):
    """Whole batches in one log file, named by the base offset of its segment."""

    base_offset: int
    position: int
    length: int


@dataclass(frozen=True, slots=True)
class LogRange:
    """Pieces that follow each other in the log. The files may be replaced by others of their names at any time: what
    was read counts only if the log's `layout_version` is still the one that it was."""

    folder: str
    pieces: tuple[FileRange, ...]

    @property
    def size_bytes(self) -> int:
        return sum(piece.length for piece in self.pieces)

    def read(self, disk: Disk, piece: FileRange) -> bytes:
        """`CorruptBatch` if the file is shorter than it was."""
        file = disk.open(path_of(self.folder, piece.base_offset, LOG), read_only=True)
        try:
            batches = file.pread(piece.length, piece.position)
        finally:
            file.close()
        if len(batches) < piece.length:
            raise CorruptBatch(piece.position + len(batches), "the file is shorter than its log")
        return batches

"""The output segment of compaction, written with its indexes under `.cleaned` names, which recovery deletes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from moldau.model.ports import Buffer, Disk, File
from moldau.model.units import MiB
from moldau.records.header import read_header
from moldau.storage import transaction_index
from moldau.storage.files import sync, write_all
from moldau.storage.names import CLEANED, INDEX, LOG, TIME_INDEX, TRANSACTION_INDEX, path_of
from moldau.storage.offset_index import OffsetIndex
from moldau.storage.time_index import TimeIndex
from moldau.storage.transaction_index import AbortedTransaction

_WRITE_BYTES: Final = 1 * MiB


@dataclass(slots=True)
class CleanedSegment:
    """Append batches, then finish."""

    disk: Disk
    folder: str
    base_offset: int
    interval_bytes: int
    size_bytes: int = 0
    _file: File = field(init=False)
    _pending: bytearray = field(default_factory=bytearray)
    _offsets: OffsetIndex = field(default_factory=OffsetIndex)
    _times: TimeIndex = field(default_factory=TimeIndex)
    _unindexed_bytes: int = 0
    _max_timestamp: int = -1
    _max_timestamp_offset: int = 0

    def __post_init__(self) -> None:
        self._file = self._create(LOG)

    def append(self, batch: Buffer) -> None:
        header = read_header(batch)
        if header.max_timestamp > self._max_timestamp:
            self._max_timestamp, self._max_timestamp_offset = header.max_timestamp, header.last_offset
        if self._unindexed_bytes > self.interval_bytes:
            self._offsets.append(header.last_offset - self.base_offset, self.size_bytes)
            self._times.append(self._max_timestamp, self._max_timestamp_offset - self.base_offset)
            self._unindexed_bytes = 0
        self._unindexed_bytes += len(batch)
        self.size_bytes += len(batch)
        self._pending += batch
        if len(self._pending) >= _WRITE_BYTES:
            self._write()

    def finish(self, aborted: Sequence[AbortedTransaction]) -> None:
        """Write the indexes and sync everything."""
        self._write()
        sync(self._file)
        self._file.close()
        self._times.append(self._max_timestamp, self._max_timestamp_offset - self.base_offset)
        self._put(INDEX, self._offsets.to_bytes())
        self._put(TIME_INDEX, self._times.to_bytes())
        if aborted:
            self._put(TRANSACTION_INDEX, transaction_index.encode(aborted))

    def _write(self) -> None:
        start = self.size_bytes - len(self._pending)
        write_all(self._file, self._pending, start)
        self._pending.clear()

    def _put(self, suffix: str, data: bytes) -> None:
        file = self._create(suffix)
        write_all(file, data, 0)
        sync(file)
        file.close()

    def _create(self, suffix: str) -> File:
        file = self.disk.open(path_of(self.folder, self.base_offset, suffix + CLEANED), create=True)
        file.truncate(0)
        return file

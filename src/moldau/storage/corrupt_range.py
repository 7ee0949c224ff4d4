"""Corrupt ranges of a log, found by reads or by followers that reject the batches."""

from typing import NamedTuple

from moldau.model.errors import CorruptMessage, StorageFailed
from moldau.records.header import MAGIC, checksum, read_header
from moldau.storage.batch_scan import CorruptBatch
from moldau.storage.readable_log import ReadableLog


class CorruptRange(NamedTuple):
    """Unreadable offsets. With a corrupt header the length is unknown; then it covers the first offset only."""

    offset: int
    end_offset: int
    reason: str

    def __str__(self) -> str:
        return f"{self.reason}, offset {self.offset}"


def find_corruption_at(log: ReadableLog, offset: int) -> CorruptRange | None:
    """Verify the batch at an offset; return its corrupt range, or None if it is valid."""
    try:
        batch = log.read_bytes(offset, 1)
        header = read_header(batch)
    except (CorruptBatch, CorruptMessage) as error:
        return unreadable_from(offset, error)
    # The checksum does not cover base offset, length and magic.
    if header.magic != MAGIC or header.size_bytes > len(batch) or header.last_offset < offset:
        return CorruptRange(offset, offset + 1, "no valid batch header")
    if checksum(batch, 0, header.size_bytes) != header.crc:
        return CorruptRange(min(header.base_offset, offset), header.last_offset + 1, "checksum mismatch")
    return None


def unreadable_from(offset: int, error: StorageFailed | CorruptMessage) -> CorruptRange:
    """The bytes that should lead to this offset are not a batch."""
    return CorruptRange(offset, offset + 1, error.message)

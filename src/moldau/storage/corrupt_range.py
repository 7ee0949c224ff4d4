"""Batches that are not as they were written: found by who reads them, or by who could not take them."""

from typing import NamedTuple

from moldau.model.errors import CorruptMessage, StorageFailed
from moldau.records.header import MAGIC, checksum, read_header
from moldau.storage.batch_scan import CorruptBatch
from moldau.storage.readable_log import ReadableLog


class CorruptRange(NamedTuple):
    """Offsets that cannot be read. Where a header is broken, nobody knows how many: then it is the first of them."""

    offset: int
    end_offset: int
    reason: str

    def __str__(self) -> str:
        return f"{self.reason}, offset {self.offset}"


def find_corruption_at(log: ReadableLog, offset: int) -> CorruptRange | None:
    """What is wrong with the batch that holds an offset of the log; None if nothing is."""
    try:
        batch = log.read_bytes(offset, 1)
        header = read_header(batch)
    except (CorruptBatch, CorruptMessage) as error:
        return unreadable_from(offset, error)
    # The checksum does not cover where a batch begins, how long it is, and of which kind.
    if header.magic != MAGIC or header.size_bytes > len(batch) or header.last_offset < offset:
        return CorruptRange(offset, offset + 1, "no batch that could be there")
    if checksum(batch, 0, header.size_bytes) != header.crc:
        return CorruptRange(
            min(header.base_offset, offset), header.last_offset + 1, "a batch whose checksum does not fit"
        )
    return None


def unreadable_from(offset: int, error: StorageFailed | CorruptMessage) -> CorruptRange:
    """Something that should lead to this offset is no batch."""
    return CorruptRange(offset, offset + 1, error.message)

"""Batches that are not as they were written: found by who reads them, or by who could not take them."""

from typing import NamedTuple

from moldau.model.errors import CorruptMessage, StorageFailed
from moldau.records.header import MAGIC, checksum, read_header
from moldau.storage.readable_log import ReadableLog
from moldau.storage.scan import BrokenLog


class Damage(NamedTuple):
    """Offsets that cannot be read. Where a header is broken, nobody knows how many: then it is the first of them."""

    offset: int
    end_offset: int
    reason: str

    def __str__(self) -> str:
        return f"{self.reason}, offset {self.offset}"


def damage_at(log: ReadableLog, offset: int) -> Damage | None:
    """What is wrong with the batch that holds an offset of the log; None if nothing is."""
    try:
        batch = log.read_bytes(offset, 1)
        header = read_header(batch)
    except (BrokenLog, CorruptMessage) as error:
        return unreadable(offset, error)
    # The checksum does not cover where a batch begins, how long it is, and of which kind.
    if header.magic != MAGIC or header.size_bytes > len(batch) or header.last_offset < offset:
        return Damage(offset, offset + 1, "no batch that could be there")
    if checksum(batch, 0, header.size_bytes) != header.crc:
        return Damage(min(header.base_offset, offset), header.last_offset + 1, "a batch whose checksum does not fit")
    return None


def unreadable(offset: int, error: StorageFailed | CorruptMessage) -> Damage:
    """Something that should lead to this offset is no batch."""
    return Damage(offset, offset + 1, error.message)

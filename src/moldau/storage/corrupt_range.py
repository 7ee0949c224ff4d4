"""Corrupt ranges of a log, found by reads or by followers that reject the batches."""

from bisect import insort
from typing import TYPE_CHECKING, Final, NamedTuple

from moldau.model.errors import CorruptMessage, StorageFailed
from moldau.model.ids import NO_OFFSET
from moldau.records.header import MAGIC, checksum, read_header
from moldau.storage.batch_scan import CorruptBatch

if TYPE_CHECKING:
    from moldau.storage.readable_log import ReadableLog


RANGES_MAX: Final = 1000  # of a log


class CorruptRange(NamedTuple):
    """Unreadable offsets. With a corrupt header the length is unknown; then it covers the first offset only.

    A verification of the whole segment also knows where its bytes are, so that the batches after it stay readable.
    """

    offset: int
    end_offset: int
    reason: str
    base_offset: int = NO_OFFSET  # of the segment
    position: int = 0
    end_position: int = 0

    def __str__(self) -> str:
        return f"{self.reason}, offset {self.offset}"


class CorruptRanges:
    """The corrupt ranges of a log in offset order."""

    __slots__ = ("_ranges",)

    def __init__(self) -> None:
        self._ranges: list[CorruptRange] = []

    def __len__(self) -> int:
        return len(self._ranges)

    def add(self, found: CorruptRange) -> bool:
        """Add a range unless it is known; one with positions replaces those within it."""
        if any(each.offset <= found.offset and found.end_offset <= each.end_offset for each in self._ranges):
            return False
        kept = [
            each for each in self._ranges if not (found.offset <= each.offset and each.end_offset <= found.end_offset)
        ]
        insort(kept, found)
        if len(kept) > RANGES_MAX:  # then one more range covers the last two
            last = kept.pop()
            kept[-1] = kept[-1]._replace(end_offset=max(last.end_offset, kept[-1].end_offset))
        self._ranges = kept
        return True

    def first_after(self, offset: int) -> CorruptRange | None:
        """Return the first range that ends after `offset`; None if there is none."""
        return next((each for each in self._ranges if each.end_offset > offset), None)


def find_corruption_at(log: "ReadableLog", offset: int) -> CorruptRange | None:
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

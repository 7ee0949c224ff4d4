"""The verified and the corrupt bytes of a segment.

What this process has written is trusted, and so is what it has verified, as long as it stays in the page cache: after
an eviction the disk is read again. Read-ahead brings pages into the cache before they are requested, so that a cached
page need not be verified. Therefore positions are remembered, not pages.
"""

from typing import Final

from moldau.model.ports import File
from moldau.storage.batch_scan import find_batch
from moldau.storage.corrupt_range import CorruptRange

RANGES_MAX: Final = 32  # of verified bytes per segment; beyond it the first is forgotten


class SegmentVerification:
    """Positions of a segment from `trusted_from` on were written by this process."""

    __slots__ = ("_verified", "corrupt", "trusted_from")

    def __init__(self, trusted_from: int) -> None:
        self.trusted_from = trusted_from
        self.corrupt: list[CorruptRange] = []  # with positions, in their order
        self._verified: list[tuple[int, int]] = []

    def covers(self, position: int, end: int) -> bool:
        """Whether these bytes need no verification, as long as they are cached."""
        end = min(end, self.trusted_from)
        return position >= end or any(first <= position and end <= last for first, last in self._verified)

    def add(self, position: int, end: int) -> None:
        """These bytes were verified."""
        apart: list[tuple[int, int]] = []
        for first, last in self._verified:
            if last < position or end < first:
                apart.append((first, last))
            else:
                position, end = min(first, position), max(last, end)
        self._verified = [*apart, (position, end)][-RANGES_MAX:]

    def evicted(self, size_bytes: int) -> None:
        """Pages of the segment are no longer cached: what is in the file now must be verified when read again."""
        self._verified.clear()
        self.trusted_from = size_bytes

    def truncate(self, size_bytes: int) -> None:
        self.corrupt = [each for each in self.corrupt if each.end_position <= size_bytes]

    def mark_corrupt(self, found: CorruptRange) -> None:
        """Remember where corrupt bytes are, so that lookups skip them."""
        self.corrupt = sorted({*self.corrupt, found}, key=lambda each: each.position)

    def find(self, file: File, position: int, size_bytes: int, offset: int) -> tuple[int, int] | None:
        """Like `find_batch`, but skips corrupt bytes. An offset that they hide is found at their position."""
        for each in self.corrupt:
            if each.end_position <= position:
                continue
            if position < each.position:
                found = find_batch(file, position, each.position, offset)
                if found is not None:
                    return found
            if offset < each.end_offset:
                return each.position, each.end_position - each.position
            position = each.end_position
        return find_batch(file, position, size_bytes, offset)

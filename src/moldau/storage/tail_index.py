"""Exact positions of the last batches of the active segment: tailing fetches need no search."""

from bisect import bisect_left, bisect_right
from typing import Final

TAIL_BATCHES_MAX: Final = 1024
_DROP_COUNT: Final = TAIL_BATCHES_MAX // 2


class TailIndex:
    """Two parallel lists extended by appends: `offsets` and `positions`; `shorten` trims them."""

    __slots__ = ("offsets", "positions", "start_offset")

    def __init__(self, end_offset: int) -> None:
        self.offsets: list[int] = []  # the last offset of each batch
        self.positions: list[int] = []
        self.start_offset = end_offset  # nothing below is known

    def shorten(self) -> None:
        self.start_offset = self.offsets[_DROP_COUNT - 1] + 1
        del self.offsets[:_DROP_COUNT]
        del self.positions[:_DROP_COUNT]

    def clear(self, end_offset: int) -> None:
        self.offsets.clear()
        self.positions.clear()
        self.start_offset = end_offset

    def range(
        self, offset: int, until_offset: int | None, max_bytes: int, size_bytes: int, at_least_one: bool
    ) -> tuple[int, int]:
        """Return start and end position of the batches from `offset` on within `size_bytes`; empty if none fit."""
        offsets, positions = self.offsets, self.positions
        first = bisect_left(offsets, offset)
        position = positions[first]
        end = size_bytes if until_offset is None else positions[bisect_left(offsets, until_offset)]
        if end - position > max_bytes:
            after = bisect_right(positions, position + max_bytes) - 1
            if after > first:
                end = positions[after]
            elif not at_least_one:
                end = position
            elif first + 1 < len(positions):
                end = positions[first + 1]
        return position, end

"""Offset ranges: each is read by one task; a partition may have several."""

import heapq
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple


class OffsetRange(NamedTuple):
    """The offsets of a partition from `from_offset` (inclusive) to `until_offset` (exclusive)."""

    topic: str
    partition: int
    from_offset: int
    until_offset: int
    topic_id: str = ""

    @property
    def size(self) -> int:
        return self.until_offset - self.from_offset


def split(ranges: Iterable[OffsetRange], partitions_min: int | None, records_max: int | None) -> list[OffsetRange]:
    """Split ranges to at most `records_max` offsets each, and into at least `partitions_min` pieces.

    Empty ranges are dropped; a range of one offset is not split further.
    """
    full = sorted(each for each in ranges if each.size > 0)
    counts = [1 if records_max is None else -(-each.size // records_max) for each in full]
    _grow([each.size for each in full], counts, partitions_min or 0)
    return [piece for each, count in zip(full, counts, strict=True) for piece in _cut(each, count)]


def _grow(sizes: list[int], counts: list[int], total: int) -> None:
    """Split the range with the largest pieces once more, until there are enough."""
    heap = [(-size / count, index) for index, (size, count) in enumerate(zip(sizes, counts, strict=True))]
    heapq.heapify(heap)
    missing = total - sum(counts)
    while missing > 0 and heap:
        _, index = heapq.heappop(heap)
        if counts[index] < sizes[index]:
            counts[index] += 1
            missing -= 1
            heapq.heappush(heap, (-sizes[index] / counts[index], index))


def _cut(whole: OffsetRange, count: int) -> list[OffsetRange]:
    bounds = [whole.from_offset + whole.size * index // count for index in range(count + 1)]
    return [whole._replace(from_offset=start, until_offset=end) for start, end in pairwise(bounds)]

"""Maps offsets of an archived log to offsets of the restored one."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class Piece(NamedTuple):
    """A range of offsets that moved by a constant distance: `old` to `old_last` became `new` to `new_last`."""

    partition: int
    old: int
    old_last: int
    new: int

    @property
    def new_last(self) -> int:
        return self.new + self.old_last - self.old


@dataclass(frozen=True, slots=True)
class OffsetMap:
    """All pieces of a restored topic by partition, sorted by offset, and the end offset of each new partition."""

    pieces: Mapping[int, Sequence[Piece]]
    new_ends: Mapping[int, int]

    def moved(self, partition: int, old: int) -> int:
        """Return the new position for a reader at `old`: that record, or the next one that was restored."""
        pieces = self.pieces.get(partition, ())
        if not pieces:
            return self.new_ends.get(partition, 0)
        number = max(bisect_right([each.old for each in pieces], old) - 1, 0)
        piece = pieces[number]
        if old <= piece.old:
            return piece.new
        if old <= piece.old_last:
            return piece.new + old - piece.old
        return pieces[number + 1].new if number + 1 < len(pieces) else piece.new_last + 1

    def shape(self) -> dict[str, Any]:
        return {
            str(partition): [{"old": [each.old, each.old_last], "new": [each.new, each.new_last]} for each in pieces]
            for partition, pieces in self.pieces.items()
        }


def map_of(pieces: Iterable[Piece], new_ends: Mapping[int, int]) -> OffsetMap:
    found: dict[int, list[Piece]] = {}
    for piece in sorted(pieces):
        found.setdefault(piece.partition, []).append(piece)
    return OffsetMap(found, new_ends)


class Bucket(NamedTuple):
    """A range of offsets in a partition (start, end) and the number of records in it.

    A compacted log has far fewer records than offsets.
    """

    partition: int
    start: int
    end: int
    rows: int


class Chunk(NamedTuple):
    """The content of one transaction: partition → (first offset, end offset)."""

    ranges: Mapping[int, tuple[int, int]]


def chunks_of(buckets: Iterable[Bucket], rows_max: int) -> list[Chunk]:
    """Cut buckets into chunks of at most `rows_max` records; all partitions advance together."""
    turns: Counter[int] = Counter()
    by_turn: list[tuple[int, Bucket]] = []
    for bucket in sorted(buckets):
        by_turn.append((turns[bucket.partition], bucket))
        turns[bucket.partition] += 1
    chunks: list[Chunk] = []
    ranges: dict[int, tuple[int, int]] = {}
    rows = 0
    for _, bucket in sorted(by_turn):
        if ranges and rows + bucket.rows > rows_max:
            chunks.append(Chunk(ranges))
            ranges, rows = {}, 0
        start, _ = ranges.get(bucket.partition, bucket[1:3])
        ranges[bucket.partition] = (start, bucket.end)
        rows += bucket.rows
    return [*chunks, Chunk(ranges)] if ranges else chunks


def extents_of(buckets: Iterable[Bucket]) -> dict[int, tuple[int, int]]:
    """Return partition → (first offset, end offset)."""
    extents: dict[int, tuple[int, int]] = {}
    for bucket in sorted(buckets):
        start, _ = extents.get(bucket.partition, bucket[1:3])
        extents[bucket.partition] = (start, bucket.end)
    return extents


class Sum(NamedTuple):
    """The number of records and order-dependent checksums, which must be equal before and after."""

    rows: int
    total: int
    mixed: int


def differences(before: Mapping[int, Sum], after: Mapping[int, Sum]) -> list[str]:
    """Describe each partition whose content differs."""
    nothing = Sum(0, 0, 0)
    said = []
    for partition in sorted({*before, *after}):
        old, new = before.get(partition, nothing), after.get(partition, nothing)
        if old.rows != new.rows:
            said.append(f"partition {partition} has {new.rows} records, the archive {old.rows}")
        elif old != new:
            said.append(f"partition {partition} has {new.rows} records as the archive, but different ones")
    return said

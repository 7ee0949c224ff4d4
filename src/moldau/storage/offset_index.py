"""The sparse index from offset to file position: about one entry per `index.interval.bytes` of log.

An entry is eight bytes, as Kafka writes it: the last offset of a batch, relative to the segment's base offset,
and the position at which that batch starts. Every indexed position is thus the start of a batch.
"""

from array import array
from bisect import bisect_left, bisect_right
from itertools import chain
from operator import ge
from struct import Struct
from typing import Final

from moldau.model.units import MiB

ENTRY_BYTES: Final = 8
UNINDEXED_BYTES_MAX: Final = MiB  # a larger log with an empty index has lost it
_ENTRY: Final = Struct(">ii")
_POSITION_IN_ENTRY: Final = 4
_INT32: Final = Struct(">i")


class OffsetIndex:
    """The in-memory index of the active segment. `unwritten` returns what is not on disk yet."""

    __slots__ = ("_written", "offsets", "positions")

    def __init__(self) -> None:
        self.offsets = array("i")
        self.positions = array("i")
        self._written = 0

    @classmethod
    def load(cls, data: bytes, log_bytes: int) -> "OffsetIndex | None":
        """Load an index file, or None if it cannot belong to a log of this size."""
        if len(data) % ENTRY_BYTES:
            return None
        numbers = array("i", data)
        numbers.byteswap()
        index = cls()
        index.offsets, index.positions = numbers[0::2], numbers[1::2]
        index._written = len(index.offsets)
        return index if index._is_valid(log_bytes) else None

    def _is_valid(self, log_bytes: int) -> bool:
        offsets, positions = self.offsets, self.positions
        if not offsets:
            return log_bytes <= UNINDEXED_BYTES_MAX
        if offsets[0] < 0 or positions[0] < 0 or positions[-1] >= log_bytes:
            return False
        return not any(map(ge, offsets, offsets[1:])) and not any(map(ge, positions, positions[1:]))

    def __len__(self) -> int:
        return len(self.offsets)

    def append(self, relative_offset: int, position: int) -> None:
        self.offsets.append(relative_offset)
        self.positions.append(position)

    def position_before(self, relative_offset: int) -> int:
        """Return the position to start a search: the batch there or a later one has the offset."""
        entry = bisect_right(self.offsets, relative_offset) - 1
        return self.positions[entry] if entry >= 0 else 0

    def boundary_before(self, position: int) -> int:
        """Return the last indexed batch start at or before a position, or 0."""
        entry = bisect_right(self.positions, position) - 1
        return self.positions[entry] if entry >= 0 else 0

    def offset_from(self, position: int) -> int | None:
        """Return the first indexed offset of a batch at or after a position, or None."""
        entry = bisect_left(self.positions, position)
        return self.offsets[entry] if entry < len(self.offsets) else None

    def truncate(self, position: int) -> None:
        """Drop the batches at `position` and later."""
        entries = bisect_right(self.positions, position - 1)
        del self.offsets[entries:]
        del self.positions[entries:]
        self._written = min(self._written, entries)

    def unwritten(self) -> tuple[int, bytes]:
        """Return the bytes missing in the file and their position."""
        start = self._written
        pairs = array("i", chain.from_iterable(zip(self.offsets[start:], self.positions[start:], strict=True)))
        pairs.byteswap()
        return start * ENTRY_BYTES, pairs.tobytes()

    def mark_written(self) -> None:
        self._written = len(self.offsets)

    def to_bytes(self) -> bytes:
        pairs = array("i", chain.from_iterable(zip(self.offsets, self.positions, strict=True)))
        pairs.byteswap()
        return pairs.tobytes()


class MappedOffsetIndex:
    """The index of a closed segment, mapped instead of loaded."""

    __slots__ = ("_count", "_view")

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._count = len(view) // ENTRY_BYTES

    def __len__(self) -> int:
        return self._count

    def release(self) -> None:
        self._view.release()

    def is_plausible(self, log_bytes: int) -> bool:
        """Check both ends; a lookup verifies its result against the log."""
        if len(self._view) % ENTRY_BYTES:
            return False
        if not self._count:
            return log_bytes <= UNINDEXED_BYTES_MAX
        first_offset, first_position = _ENTRY.unpack_from(self._view, 0)
        offset, position = _ENTRY.unpack_from(self._view, (self._count - 1) * ENTRY_BYTES)
        return bool(0 <= first_offset <= offset and 0 <= first_position <= position < log_bytes)

    def position_before(self, relative_offset: int) -> int:
        return self._position_of(self._floor(relative_offset, 0))

    def boundary_before(self, position: int) -> int:
        return self._position_of(self._floor(position, _POSITION_IN_ENTRY))

    def offset_from(self, position: int) -> int | None:
        entry = self._floor(position - 1, _POSITION_IN_ENTRY) + 1
        if entry >= self._count:
            return None
        offset: int = _INT32.unpack_from(self._view, entry * ENTRY_BYTES)[0]
        return offset

    def _floor(self, target: int, field: int) -> int:
        """Return the last entry whose field is not above the target; -1 if none."""
        view, unpack = self._view, _INT32.unpack_from
        low, high = 0, self._count
        while low < high:
            middle = (low + high) // 2
            if unpack(view, middle * ENTRY_BYTES + field)[0] <= target:
                low = middle + 1
            else:
                high = middle
        return low - 1

    def _position_of(self, entry: int) -> int:
        if entry < 0:
            return 0
        position: int = _INT32.unpack_from(self._view, entry * ENTRY_BYTES + _POSITION_IN_ENTRY)[0]
        return position

"""The sparse index from timestamp to offset, in Kafka's twelve bytes per entry: a timestamp and a relative offset.

An entry says: no batch up to this offset has a larger maximum timestamp. Timestamps and offsets both only grow.
"""

from struct import Struct
from typing import Final, NamedTuple

ENTRY_BYTES: Final = 12
_ENTRY: Final = Struct(">qi")
_TIMESTAMP: Final = Struct(">q")


class TimeEntry(NamedTuple):
    timestamp: int
    relative_offset: int


NOTHING: Final = TimeEntry(-1, -1)


class TimeIndex:
    """The entries of a segment: bytes in memory while active, a mapped file once closed."""

    __slots__ = ("_entries", "_is_mapped", "_last_relative_offset", "_written_bytes", "last_timestamp")

    def __init__(self, entries: bytes | memoryview = b"") -> None:
        self._is_mapped = isinstance(entries, memoryview)
        self._entries: bytearray | memoryview = entries if isinstance(entries, memoryview) else bytearray(entries)
        self._written_bytes = len(entries)
        self.last_timestamp, self._last_relative_offset = self.last() or NOTHING  # of a growing index

    def __len__(self) -> int:
        return len(self._entries) // ENTRY_BYTES

    def release(self) -> None:
        if isinstance(self._entries, memoryview):
            self._entries.release()

    def is_sound(self, base_offset: int, end_offset: int) -> bool:
        """Whether all entries are complete and the last is inside the segment; `end_offset` may be an upper bound."""
        if len(self._entries) % ENTRY_BYTES:
            return False
        first, last = self.entry(0), self.last()
        if first is None or last is None:
            return True
        return (
            first.timestamp >= 0
            and 0 <= first.relative_offset <= last.relative_offset < end_offset - base_offset
            and first.timestamp <= last.timestamp
        )

    def entry(self, number: int) -> TimeEntry | None:
        if not 0 <= number < len(self):
            return None
        return TimeEntry._make(_ENTRY.unpack_from(self._entries, number * ENTRY_BYTES))

    def last(self) -> TimeEntry | None:
        return self.entry(len(self) - 1)

    def append(self, timestamp: int, relative_offset: int) -> bool:
        """Add an entry unless it is redundant; return whether it was added."""
        if timestamp <= self.last_timestamp or relative_offset < self._last_relative_offset:
            return False
        assert isinstance(self._entries, bytearray), "a closed index does not grow"
        self._entries += _ENTRY.pack(timestamp, relative_offset)
        self.last_timestamp, self._last_relative_offset = timestamp, relative_offset
        return True

    def entry_before(self, timestamp: int) -> TimeEntry | None:
        """Return the last entry older than `timestamp`: every batch up to its offset is older, so start the search
        there."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if _TIMESTAMP.unpack_from(self._entries, middle * ENTRY_BYTES)[0] < timestamp:
                low = middle + 1
            else:
                high = middle
        return self.entry(low - 1)

    def truncate(self, relative_offset: int) -> None:
        """Drop entries at `relative_offset` and later."""
        assert isinstance(self._entries, bytearray), "a closed index does not shrink"
        count = len(self)
        while count and _ENTRY.unpack_from(self._entries, (count - 1) * ENTRY_BYTES)[1] >= relative_offset:
            count -= 1
        del self._entries[count * ENTRY_BYTES :]
        self._written_bytes = min(self._written_bytes, len(self._entries))
        self.last_timestamp, self._last_relative_offset = self.last() or NOTHING

    def unwritten(self) -> tuple[int, bytes]:
        return self._written_bytes, bytes(self._entries[self._written_bytes :])

    def mark_written(self) -> None:
        self._written_bytes = len(self._entries)

    def to_bytes(self) -> bytes:
        return bytes(self._entries)

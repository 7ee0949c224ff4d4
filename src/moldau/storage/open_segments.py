"""Limit on open files: the least recently used closed segments are released."""

from collections import OrderedDict
from typing import Final, Protocol

OPEN_SEGMENTS_MAX: Final = 256  # per log directory; each has a log file and two mapped indexes


class Releasable(Protocol):
    def release(self) -> None: ...


class OpenSegments:
    """Closed segments with open files: at most `capacity`, least recently used released first."""

    __slots__ = ("_capacity", "_segments")

    def __init__(self, capacity: int = OPEN_SEGMENTS_MAX) -> None:
        self._capacity = capacity
        self._segments: OrderedDict[Releasable, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._segments)

    def use(self, segment: Releasable) -> None:
        self._segments[segment] = None
        self._segments.move_to_end(segment)
        while len(self._segments) > self._capacity:
            self._segments.popitem(last=False)[0].release()

    def forget(self, segment: Releasable) -> None:
        self._segments.pop(segment, None)

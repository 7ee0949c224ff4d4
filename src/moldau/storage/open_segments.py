"""The bound on open files: closed segments that nobody reads let go of theirs."""

from collections import OrderedDict
from typing import Final, Protocol

OPEN_SEGMENTS_MAX: Final = 256  # per log folder; each has a log file and two mapped indexes


class Releasable(Protocol):
    def release(self) -> None: ...


class OpenSegments:
    """The closed segments whose files are open: at most `capacity`, the longest unused go first."""

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

"""`Inspection`: what the records of a window wait for, if the group orders them by key or delays them.

Keys and headers are inside the batches, so records are inspected before they are acquired: in the order of their
offsets, up to `until_offset`. Only inspected records are acquired, and only an inspection makes the window grow. Each
waits until it is due, and until the earlier records of its key are finished: accepted, archived or archiving, durably.
"""

from collections.abc import Iterable
from math import inf
from typing import Final, NamedTuple

from moldau.machines.shares.key_order import KeyOrder

NOW: Final = 0.0
BLOCKED: Final = inf  # by an earlier record with the same key


class InspectedRecord(NamedTuple):
    """A record, its key (a hash; None: in no order) and when it is due (monotonic)."""

    offset: int
    key: int | None = None
    due_ms: float = NOW


class Inspection:
    """The inspected records of a window that wait for something."""

    __slots__ = ("_due", "_order", "until_offset")

    def __init__(self, start_offset: int) -> None:
        self.until_offset = start_offset
        self._order = KeyOrder()
        self._due: dict[int, float] = {}  # of blocked records

    def add(self, record: InspectedRecord) -> float:
        """Note an unfinished record; return when it may be acquired."""
        offset, key, due_ms = record
        if key is None or self._order.add(offset, key):
            return due_ms
        if due_ms:
            self._due[offset] = due_ms
        return BLOCKED

    def finish(self, first_offset: int, last_offset: int) -> Iterable[tuple[int, float]]:
        """Records are finished: return those that are not blocked any more, and when they are due."""
        for offset in self._order.between(first_offset, last_offset):
            self._due.pop(offset, None)
            following = self._order.finish(offset)
            if following is not None and following > last_offset:
                yield following, self._due.pop(following, NOW)

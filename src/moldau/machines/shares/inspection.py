"""`Inspection`: which records of a window wait for others, if the group orders them by key.

Keys are inside the batches, so records are inspected before they are acquired: in the order of their offsets, up to
`until_offset`. Only inspected records are acquired, and only an inspection makes the window grow. Each waits until the
earlier records of its key are finished: accepted, archived or archiving, durably.
"""

from collections.abc import Iterable
from math import inf
from typing import Final, NamedTuple

from moldau.machines.shares.key_order import KeyOrder

NOW: Final = 0.0
BLOCKED: Final = inf  # by an earlier record with the same key


class InspectedRecord(NamedTuple):
    """A record, and its key (a hash; None: in no order)."""

    offset: int
    key: int | None = None


class Inspection:
    """The inspected records of a window that wait for something."""

    __slots__ = ("_order", "until_offset")

    def __init__(self, start_offset: int) -> None:
        self.until_offset = start_offset
        self._order = KeyOrder()

    def add(self, record: InspectedRecord) -> bool:
        """Note an unfinished record; return whether an earlier one blocks it."""
        return record.key is not None and not self._order.add(record.offset, record.key)

    def finish(self, first_offset: int, last_offset: int) -> Iterable[int]:
        """Records are finished: return those that are not blocked any more."""
        for offset in self._order.between(first_offset, last_offset):
            following = self._order.finish(offset)
            if following is not None and following > last_offset:
                yield following

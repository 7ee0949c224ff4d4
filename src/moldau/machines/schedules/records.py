"""Records of `__schedule_state`: how far each schedule has come."""

from typing import NamedTuple


class ScheduleState(NamedTuple):
    """The last tick, and the identity under which its record is published.

    The producer id and the sequence make repeated publications of a tick idempotent: the leader of the partition drops
    a batch with a sequence that it has appended.
    """

    timing: str  # of the definition for which this counts
    topic: str
    tick_ms: int  # the last tick, or the time from which ticks count
    is_published: bool
    producer_id: int
    sequence: int  # of the last tick; -1 before the first
    partition: int


Record = tuple[str, ScheduleState | None]
"""Name of a schedule, and its state; None once it is removed."""

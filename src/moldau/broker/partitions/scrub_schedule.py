"""When the scrubber reads the next slice, and of which segment. Pure: time is an argument.

A pass visits the segments in the order of topic, partition and offset, and is spread evenly over the interval. If there
is too much data for that, the limit is the share of time in which a slice is read: the pass then takes longer.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

BUSY_SHARE_MAX: Final = 0.03
BUSY_MS_MAX: Final = 2000.0  # beyond it a slice has waited for other work in the worker process


class SegmentKey(NamedTuple):
    """A segment of a log; also the order of a pass."""

    topic: str
    partition: int
    base_offset: int


FIRST: Final = SegmentKey("", -1, -1)


class ScrubSchedule:
    """One pass after the other. `cursor` is the last segment that this pass has completed."""

    def __init__(self, started_ms: int, cursor: SegmentKey = FIRST) -> None:
        """`started_ms` is the wall time at which the pass began, perhaps in an earlier run."""
        self.started_ms = started_ms
        self.cursor = cursor
        self.is_complete = False
        self.remaining_bytes = 0
        self.pass_bytes = 0  # what a pass has in total, when it was last counted
        self._sliced_ms: float | None = None  # when the last slice ended
        self._slice_bytes = 0
        self._busy_ms = 0.0

    def count(self, sizes: Iterable[tuple[SegmentKey, int]]) -> None:
        """Set how much there is to read."""
        self.pass_bytes = self.remaining_bytes = 0
        for key, size in sizes:
            self.pass_bytes += size
            if key > self.cursor:
                self.remaining_bytes += size

    def wait_ms(self, now_ms: int, interval_ms: int) -> float:
        """Return the time until the next slice, or until the next pass after a complete one."""
        left_ms = min(self.started_ms + interval_ms - now_ms, interval_ms)
        if self.is_complete:
            return max(left_ms, 0.0)
        if self._sliced_ms is None:
            return 0.0
        rest_ms = self._busy_ms * (1 / BUSY_SHARE_MAX - 1)
        left_then_ms = left_ms + (now_ms - self._sliced_ms)
        share = self._slice_bytes / max(self.remaining_bytes + self._slice_bytes, 1)
        return max(rest_ms, left_then_ms * share) - (now_ms - self._sliced_ms)

    def sliced(self, now_ms: int, slice_bytes: int, busy_ms: float) -> None:
        """A slice was read."""
        self._sliced_ms = now_ms
        self._slice_bytes = slice_bytes
        self._busy_ms = min(busy_ms, BUSY_MS_MAX)
        self.remaining_bytes = max(0, self.remaining_bytes - slice_bytes)

    def completed(self, key: SegmentKey) -> None:
        """The last slice of a segment was read, or the segment is gone."""
        self.cursor = key

    def complete(self) -> None:
        """There is no other segment."""
        self.is_complete = True
        self.remaining_bytes = 0

    def restart(self, now_ms: int) -> None:
        """Begin the next pass."""
        self.started_ms = now_ms
        self.cursor = FIRST
        self.is_complete = False
        self._sliced_ms = None

    @property
    def progress(self) -> float:
        """The share of the pass that is done."""
        if self.is_complete or not self.pass_bytes:
            return float(self.is_complete)
        return 1.0 - self.remaining_bytes / self.pass_bytes

"""Limits the size of a batch, and how long it waits for a minimum size."""

import math
from dataclasses import dataclass

from pyspark_moldau.options.offset_limits import Offsets


@dataclass(slots=True)
class RateLimit:
    """`minOffsetsPerTrigger`, `maxOffsetsPerTrigger` and `maxTriggerDelay` of one query."""

    offsets_min: int | None
    offsets_max: int | None
    delay_ms_max: float
    _last_batch_ms: float = -math.inf

    def limit(self, begin: Offsets, end: Offsets, now_ms: float, *, waits: bool) -> Offsets | None:
        """Return the end offsets of the batch; None to wait for more records. Without `waits`, any size is enough."""
        if waits and self.offsets_min is not None:
            is_due = now_ms - self._last_batch_ms >= self.delay_ms_max
            if not is_due and backlog(begin, end) < self.offsets_min:
                return None
        self._last_batch_ms = now_ms
        return end if self.offsets_max is None else share(self.offsets_max, begin, end)


def backlog(begin: Offsets, end: Offsets) -> int:
    return sum(max(end[where] - begin[where], 0) for where in end)


def share(offsets_max: int, begin: Offsets, end: Offsets) -> Offsets:
    """Divide `offsets_max` among partitions in proportion to their backlog, at least one record each."""
    total = backlog(begin, end)
    if total <= offsets_max:
        return end
    return {
        where: min(end[where], begin[where] + _part(offsets_max, end[where] - begin[where], total)) for where in end
    }


def _part(offsets_max: int, size: int, total: int) -> int:
    return max(offsets_max * size // total, 1) if size > 0 else size

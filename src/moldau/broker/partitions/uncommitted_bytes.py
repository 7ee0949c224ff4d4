"""Counts the bytes between the high watermark and the log end, to wake delayed fetches when enough are committed."""

from collections import deque
from typing import Final

STEPS_MAX: Final = 1024  # while commits stall; beyond it the last ones are counted as one


class UncommittedBytes:
    """The steps in which a log has grown: the end offset after each, and its bytes."""

    __slots__ = ("_steps",)

    def __init__(self) -> None:
        self._steps: deque[tuple[int, int]] = deque()

    def grew(self, end_offset: int, count: int) -> None:
        steps = self._steps
        if len(steps) >= STEPS_MAX:
            count += steps.pop()[1]
        steps.append((end_offset, count))

    def take(self, high_watermark: int) -> int:
        """Return how many bytes are newly committed."""
        steps = self._steps
        count = 0
        while steps and steps[0][0] <= high_watermark:
            count += steps.popleft()[1]
        return count

    def truncate(self, end_offset: int) -> None:
        """The log was truncated to `end_offset`."""
        steps = self._steps
        while steps and steps[-1][0] > end_offset:
            steps.pop()

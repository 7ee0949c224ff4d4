"""How many bytes lie between the high watermark and the end of a log, so that who waits for so many is told in time."""

from collections import deque
from typing import Final

STEPS_MAX: Final = 1024  # while nothing is committed; beyond it the last ones are counted as one


class UncommittedBytes:
    """Steps in which a log has grown: where it ended then, and by how many bytes it grew."""

    __slots__ = ("_steps",)

    def __init__(self) -> None:
        self._steps: deque[tuple[int, int]] = deque()

    def grew(self, end_offset: int, count: int) -> None:
        steps = self._steps
        if len(steps) >= STEPS_MAX:
            count += steps.pop()[1]
        steps.append((end_offset, count))

    def take(self, high_watermark: int) -> int:
        """How many bytes are committed now that were not before."""
        steps = self._steps
        count = 0
        while steps and steps[0][0] <= high_watermark:
            count += steps.popleft()[1]
        return count

    def cut(self, end_offset: int) -> None:
        """Nothing at `end_offset` or above is there any longer."""
        steps = self._steps
        while steps and steps[-1][0] > end_offset:
            steps.pop()

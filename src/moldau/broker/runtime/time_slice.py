"""Time slices: a long request yields to others after a millisecond or some thousand steps."""

import asyncio
from typing import Final, Protocol

from moldau.model.ports import Clock

ALONE: Final = 128  # the weight of a request that must finish before later ones of its connection start
TURN_MS: Final = 1.0
STEPS_PER_LOOK: Final = 16
STEPS_MAX: Final = 2048


class WeightedRequest(Protocol):
    """A request with its weight in the limit of its connection's requests in flight."""

    weight: int

    @property
    def clock(self) -> Clock: ...


class TimeSlice:
    """Counts the steps of one request. After the first slice the request is heavy and runs alone on its connection."""

    __slots__ = ("_began_ms", "_clock", "_context", "_look_at", "_steps")

    def __init__(self, context: WeightedRequest) -> None:
        self._context = context
        self._clock = context.clock
        self._steps = 0
        self._look_at = STEPS_PER_LOOK
        self._began_ms = self._clock.monotonic_ms()

    def is_over(self, steps: int = 1) -> bool:
        """Whether the slice is used up: then `await turn.next()`. Call it after each step, or after several."""
        self._steps += steps
        if self._steps < self._look_at:
            return False
        self._look_at = self._steps + STEPS_PER_LOOK
        return self._steps >= STEPS_MAX or self._clock.monotonic_ms() - self._began_ms >= TURN_MS

    async def next(self) -> None:
        self._context.weight = ALONE
        await asyncio.sleep(0)
        self._steps = 0
        self._look_at = STEPS_PER_LOOK
        self._began_ms = self._clock.monotonic_ms()

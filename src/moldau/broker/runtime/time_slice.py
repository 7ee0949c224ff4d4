"""Requests that ask for much take turns: every few hundred steps, or once a millisecond is over, others go first."""

import asyncio
from typing import Final, Protocol

from moldau.model.ports import Clock

ALONE: Final = 128  # the weight of a request behind which nothing of its connection begins
TURN_MS: Final = 1.0
STEPS_PER_LOOK: Final = 16
STEPS_MAX: Final = 2048


class WeightedRequest(Protocol):
    """A request that takes turns, with its share of the requests that its connection may have in flight."""

    weight: int

    @property
    def clock(self) -> Clock: ...


class TimeSlice:
    """One request's steps. Whoever runs out of its turn is heavy: nothing more of its connection begins meanwhile."""

    __slots__ = ("_began_ms", "_clock", "_context", "_look_at", "_steps")

    def __init__(self, context: WeightedRequest) -> None:
        self._context = context
        self._clock = context.clock
        self._steps = 0
        self._look_at = STEPS_PER_LOOK
        self._began_ms = self._clock.monotonic_ms()

    def is_over(self, steps: int = 1) -> bool:
        """To be asked after every step, or after some; then `await turn.next()`."""
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

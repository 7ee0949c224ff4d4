"""Requests that ask for much take turns: every few hundred steps, or once a millisecond is over, others go first."""

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from moldau.broker.context import RequestContext

ALONE: Final = 128  # the weight of a request behind which nothing of its connection begins
TURN_MS: Final = 1.0
STEPS_PER_LOOK: Final = 16
STEPS_MAX: Final = 2048


class Turn:
    """One request's steps. Whoever runs out of its turn is heavy: nothing more of its connection begins meanwhile."""

    __slots__ = ("_began_ms", "_context", "_steps")

    def __init__(self, context: "RequestContext") -> None:
        self._context = context
        self._steps = 0
        self._began_ms = context.broker.clock.monotonic_ms()

    def is_over(self) -> bool:
        """To be asked at every step; then `await turn.next()`."""
        self._steps += 1
        if self._steps % STEPS_PER_LOOK:
            return False
        return self._steps >= STEPS_MAX or self._context.broker.clock.monotonic_ms() - self._began_ms >= TURN_MS

    async def next(self) -> None:
        self._context.weight = ALONE
        await asyncio.sleep(0)
        self._steps = 0
        self._began_ms = self._context.broker.clock.monotonic_ms()

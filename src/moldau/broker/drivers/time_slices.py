"""Long work of a driver in slices, between which requests are served.

A request takes a few turns of the loop from its bytes to its answer. A slice after each turn would delay it several
times: so after a slice come as many turns without one.
"""

import asyncio
from typing import Final

from moldau.model.ports import Clock

SLICE_MS: Final = 0.06
TURNS: Final = 5  # to read a request, to decide it, to send the answer; and some for those who come meanwhile


async def give_way() -> None:
    """Let a request that has come be read, decided and answered."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


class Slices:
    """The work of one task, which asks after every few steps."""

    __slots__ = ("_began_ms", "_clock")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_ms = clock.monotonic_ms()

    def is_over(self) -> bool:
        """Whether it is time to `await give_way()`."""
        return self._clock.monotonic_ms() - self._began_ms >= SLICE_MS

    async def give_way(self) -> None:
        await give_way()
        self._began_ms = self._clock.monotonic_ms()

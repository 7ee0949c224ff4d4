"""Long work of a driver in slices, between which requests are served.

A request takes a few turns of the event loop from its bytes to its response. A slice after each turn would delay it
several times, so each slice is followed by several turns without one.
"""

import asyncio
from typing import Final

from moldau.model.ports import Clock

SLICE_MS: Final = 0.06
TURNS_PER_SLICE: Final = (
    5  # to read a request, decide it and send the response; plus some for requests that arrive meanwhile
)


async def yield_to_requests() -> None:
    """Let an arrived request be read, decided and responded to."""
    for _ in range(TURNS_PER_SLICE):
        await asyncio.sleep(0)


class Slices:
    """The slices of one task, which checks `is_over` every few steps."""

    __slots__ = ("_clock", "_slice_ms", "_started_ms")

    def __init__(self, clock: Clock, slice_ms: float = SLICE_MS) -> None:
        self._clock = clock
        self._slice_ms = slice_ms
        self._started_ms = clock.monotonic_ms()

    def is_over(self) -> bool:
        """Whether it is time to `await yield_to_requests()`."""
        return self._clock.monotonic_ms() - self._started_ms >= self._slice_ms

    async def yield_to_requests(self) -> None:
        await yield_to_requests()
        self._started_ms = self._clock.monotonic_ms()

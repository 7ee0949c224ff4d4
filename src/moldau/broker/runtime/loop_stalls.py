"""Event loop lag: measures how late a periodic timer fires."""

import asyncio
from typing import Final

from moldau.broker.runtime.meters import LatencyMeter
from moldau.model.ports import Clock

INTERVAL_MS: Final = 20.0


class LoopStalls:
    """A histogram of the loop's lag. A stalled loop delays everything the node does."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self._due_ms = 0.0
        self.lateness = LatencyMeter()

    def start(self) -> None:
        self._due_ms = self._clock.monotonic_ms() + INTERVAL_MS
        self._timer = asyncio.get_running_loop().call_later(INTERVAL_MS / 1000, self._fired)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _fired(self) -> None:
        self.lateness.finished(max(0.0, self._clock.monotonic_ms() - self._due_ms))
        self.start()

"""How late the event loop is: a timer that should fire every so often, and by how much it did not."""

import asyncio
from typing import Final

from moldau.broker.runtime.meters import LatencyMeter
from moldau.model.ports import Clock

INTERVAL_MS: Final = 20.0


class LoopStalls:
    """Everything a node does waits for its loop, so this is the first place to look when it is slow."""

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

"""The TLS handshakes of a network: how many at once, for how long, and how much of a turn of the event loop.

A handshake costs a millisecond of computation, and a thousand clients may reconnect in one instant. So steps are queued
and run for a bounded time per turn, between which established connections are served.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Final, Protocol

HANDSHAKE_S_MAX: Final = 10.0
HANDSHAKES_MAX: Final = 1000  # of a network at the same time
TURN_SECONDS_MAX: Final = 0.002


class Handshake(Protocol):
    """A connection whose handshake is under way."""

    def fail_handshake(self, reason: str) -> None: ...


class Handshakes:
    """Runs the steps of all handshakes in order of arrival, and ends those that take too long."""

    def __init__(self) -> None:
        self._steps: deque[Callable[[], None]] = deque()
        self._is_scheduled = False
        self._pending: dict[Handshake, float] = {}  # to the time at which it began, oldest first
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, handshake: Handshake) -> None:
        """Limit the time of a handshake. Where too many are pending, the oldest, likely a silent peer, fails."""
        if len(self._pending) >= HANDSHAKES_MAX:
            next(iter(self._pending)).fail_handshake(f"more than {HANDSHAKES_MAX} handshakes are pending")
        loop = asyncio.get_running_loop()
        self._pending[handshake] = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(HANDSHAKE_S_MAX, self._expire)

    def end(self, handshake: Handshake) -> None:
        self._pending.pop(handshake, None)
        if not self._pending and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def queue(self, step: Callable[[], None]) -> None:
        self._steps.append(step)
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        steps = self._steps
        give_way_s = monotonic() + TURN_SECONDS_MAX
        while steps:
            steps.popleft()()
            if monotonic() >= give_way_s:
                break
        self._is_scheduled = bool(steps)
        if steps:
            asyncio.get_running_loop().call_soon(self._run)

    def _expire(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for handshake, began_s in list(self._pending.items()):
            if now_s - began_s < HANDSHAKE_S_MAX - 0.001:
                self._timer = loop.call_later(began_s + HANDSHAKE_S_MAX - now_s, self._expire)
                return
            handshake.fail_handshake(f"not complete within {HANDSHAKE_S_MAX:g} s")

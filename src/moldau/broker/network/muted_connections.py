"""Connections that are not read for a while because their client exceeds a quota: one timer for all of them."""

import asyncio
from heapq import heappop, heappush
from itertools import count

from moldau.broker.network.response_queue import ResponseQueue


class MutedConnections:
    """Ends each mute at its time. The timer is that of the earliest one."""

    def __init__(self) -> None:
        self._muted: list[tuple[float, int, ResponseQueue]] = []  # a heap; the number orders mutes of the same time
        self._numbers = count()
        self._timer: asyncio.TimerHandle | None = None

    def mute(self, responses: ResponseQueue, throttle_ms: float) -> None:
        """Stop reading from a client for this long; an earlier mute that lasts longer stays."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + throttle_ms / 1000
        if not responses.mute(until_s):
            return
        heappush(self._muted, (until_s, next(self._numbers), responses))
        self._schedule(loop)

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        until_s = self._muted[0][0]
        if self._timer is not None:
            if self._timer.when() <= until_s:
                return
            self._timer.cancel()
        self._timer = loop.call_at(until_s, self._fire)

    def _fire(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        while self._muted and self._muted[0][0] <= now_s:
            until_s, _, responses = heappop(self._muted)
            responses.unmute(until_s)
        if self._muted:
            self._schedule(loop)

    def close(self) -> None:
        self._muted.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

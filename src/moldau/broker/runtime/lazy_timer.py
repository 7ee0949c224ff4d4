"""A timer for deadlines that are moved often and rarely expire.

Setting and cancelling an asyncio timer costs as much as a small request. A `LazyTimer` that is moved to a later time
keeps its asyncio timer: when that fires too early, it is set again for the remaining time.
"""

import asyncio
from collections.abc import Callable
from math import inf


class LazyTimer:
    """Calls `on_expired` when the delay that was set last is over, unless it was stopped."""

    __slots__ = ("_at_s", "_handle", "_handle_at_s", "_on_expired")

    def __init__(self, on_expired: Callable[[], None]) -> None:
        self._on_expired = on_expired
        self._at_s = inf
        self._handle: asyncio.TimerHandle | None = None
        self._handle_at_s = inf

    @property
    def is_set(self) -> bool:
        return self._at_s != inf

    def set(self, delay_ms: float) -> None:
        """Replace the deadline."""
        loop = asyncio.get_running_loop()
        at_s = self._at_s = loop.time() + delay_ms / 1000
        if at_s < self._handle_at_s:
            if self._handle is not None:
                self._handle.cancel()
            self._schedule(loop)

    def stop(self) -> None:
        self._at_s = inf

    def close(self) -> None:
        """Stop, and cancel the asyncio timer."""
        self._at_s = self._handle_at_s = inf
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        self._handle_at_s = self._at_s
        self._handle = loop.call_at(self._at_s, self._fire)

    def _fire(self) -> None:
        is_due = self._at_s <= self._handle_at_s
        self._handle, self._handle_at_s = None, inf
        if is_due:
            self._at_s = inf
            self._on_expired()
        elif self._at_s != inf:
            self._schedule(asyncio.get_running_loop())

"""A timer that is set again and again, and hardly ever rings.

A timer of asyncio costs as much to set and to cancel as a small request does. What waits for something that mostly
comes in time sets this one instead: it is moved to a later time without a word to the loop, rings too early then, and
goes on waiting.
"""

import asyncio
from collections.abc import Callable
from math import inf


class LazyTimer:
    """Calls `ring` once the time that was set last is over, unless it was stopped."""

    __slots__ = ("_at_s", "_handle", "_handle_at_s", "_ring")

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._at_s = inf
        self._handle: asyncio.TimerHandle | None = None
        self._handle_at_s = inf

    @property
    def is_set(self) -> bool:
        return self._at_s != inf

    def set(self, delay_ms: float) -> None:
        """Whatever was set before is forgotten."""
        loop = asyncio.get_running_loop()
        at_s = self._at_s = loop.time() + delay_ms / 1000
        if at_s < self._handle_at_s:
            if self._handle is not None:
                self._handle.cancel()
            self._begin(loop)

    def stop(self) -> None:
        self._at_s = inf

    def close(self) -> None:
        """Nothing of it is left with the loop."""
        self._at_s = self._handle_at_s = inf
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._handle_at_s = self._at_s
        self._handle = loop.call_at(self._at_s, self._rang)

    def _rang(self) -> None:
        is_due = self._at_s <= self._handle_at_s
        self._handle, self._handle_at_s = None, inf
        if is_due:
            self._at_s = inf
            self._ring()
        elif self._at_s != inf:
            self._begin(asyncio.get_running_loop())

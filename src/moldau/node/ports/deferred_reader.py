"""Sockets whose frames may come a little late are read together: one look at all of them instead of one at each.

A sign of life of a group's member has seconds to arrive in, and there are thousands of members. Such sockets stand in
an epoll of their own, which the event loop watches as if it were one socket. The first that has something to say after
a pause is read at once. While they come thick and fast, there is a look every few milliseconds.
"""

import asyncio
import select
from collections.abc import Callable
from typing import Final

PAUSE_S: Final = 0.004  # between two looks; whoever comes in between waits no longer than this
READS_PER_TURN_MAX: Final = 16  # then others have their turn

Readable = Callable[[], None]


class Patience:
    """All sockets of a network that may wait. Nothing runs while they are silent."""

    def __init__(self) -> None:
        self._sockets = select.epoll()
        self._readable: dict[int, Readable] = {}
        self._loop: asyncio.AbstractEventLoop | None = None  # while it listens
        self._next: asyncio.Handle | None = None  # the look to come, while it does not
        self._looked_s = 0.0

    def add(self, descriptor: int, readable: Readable) -> None:
        self._sockets.register(descriptor, select.EPOLLIN)
        self._readable[descriptor] = readable
        if self._next is None:
            self._listen()

    def remove(self, descriptor: int) -> None:
        self._sockets.unregister(descriptor)
        del self._readable[descriptor]
        if not self._readable:
            self._ignore()
            if self._next is not None:
                self._next.cancel()
                self._next = None

    def _listen(self) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._sockets.fileno(), self._look)

    def _ignore(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._sockets.fileno())
            self._loop = None

    def _look(self) -> None:
        self._next = None
        loop = asyncio.get_running_loop()
        found = self._sockets.poll(0, READS_PER_TURN_MAX)
        for descriptor, _ in found:
            readable = self._readable.get(descriptor)  # the one before may have ended this one
            if readable is not None:
                readable()
        if not self._readable:
            return
        now_s, before_s = loop.time(), self._looked_s
        self._looked_s = now_s
        if len(found) == READS_PER_TURN_MAX:
            self._ignore()
            self._next = loop.call_soon(self._look)
        elif found and now_s - before_s < 2 * PAUSE_S:
            self._ignore()
            self._next = loop.call_later(PAUSE_S, self._look)
        else:
            self._listen()

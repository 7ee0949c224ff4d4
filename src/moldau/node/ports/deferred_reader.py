"""Batched reads of sockets that tolerate a few milliseconds of delay.

A group member's heartbeat has seconds to arrive, and there are thousands of members. Their sockets are registered in a
separate epoll, which the event loop watches as a single descriptor. After a quiet period the first readable socket is
read at once; under load, all readable sockets are read together every few milliseconds.
"""

import asyncio
import select
from collections.abc import Callable
from typing import Final

PAUSE_S: Final = 0.004  # between two polls under load; the longest delay of a read
READS_PER_TURN_MAX: Final = 16  # then other callbacks of the event loop run

Readable = Callable[[], None]


class DeferredReader:
    """Reads every socket of a network whose reads may be deferred. No timer runs while all of them are quiet."""

    def __init__(self) -> None:
        self._sockets = select.epoll()
        self._readable: dict[int, Readable] = {}
        self._loop: asyncio.AbstractEventLoop | None = None  # set while the loop watches the epoll
        self._next: asyncio.Handle | None = None  # the scheduled poll, while the loop does not
        self._polled_s = 0.0

    def add(self, descriptor: int, readable: Readable) -> None:
        self._sockets.register(descriptor, select.EPOLLIN)
        self._readable[descriptor] = readable
        if self._next is None:
            self._watch()

    def remove(self, descriptor: int) -> None:
        self._sockets.unregister(descriptor)
        del self._readable[descriptor]
        if not self._readable:
            self._unwatch()
            if self._next is not None:
                self._next.cancel()
                self._next = None

    def _watch(self) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._sockets.fileno(), self._poll)

    def _unwatch(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._sockets.fileno())
            self._loop = None

    def _poll(self) -> None:
        self._next = None
        loop = asyncio.get_running_loop()
        found = self._sockets.poll(0, READS_PER_TURN_MAX)
        for descriptor, _ in found:
            readable = self._readable.get(descriptor)  # an earlier callback may have closed this socket
            if readable is not None:
                readable()
        if not self._readable:
            return
        now_s, before_s = loop.time(), self._polled_s
        self._polled_s = now_s
        if len(found) == READS_PER_TURN_MAX:
            self._unwatch()
            self._next = loop.call_soon(self._poll)
        elif found and now_s - before_s < 2 * PAUSE_S:
            self._unwatch()
            self._next = loop.call_later(PAUSE_S, self._poll)
        else:
            self._watch()

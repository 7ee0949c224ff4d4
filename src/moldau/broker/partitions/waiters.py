"""Requests that wait on partitions: delayed fetches for bytes, delayed produces for a commit.

A `DelayedFetch` watches all partitions of its fetch and counts the bytes that become readable in them; another change
(leadership, deletion) wakes it at once. `OffsetWaiters` is a heap of the offsets that produces wait for: when the high
watermark (or the flushed offset) advances, the lowest are completed; when the leadership ends, all fail. A waiter that
is done, by a timeout or a closed connection, stays in the heap until it is reached or purged.
"""

import asyncio
import heapq
from collections.abc import Iterable
from typing import Final, Protocol

PURGE_FROM: Final = 1024  # from this size on, abandoned waiters are purged now and then


class FetchWatcher(Protocol):
    """Watches a partition for changes."""

    def on_bytes_available(self, count: int) -> None:
        """`count` more bytes can be read."""
        ...

    def wake(self) -> None:
        """Something else changed: check the partition now."""
        ...


class Watched(Protocol):
    """Tells its watchers about changes."""

    @property
    def watchers(self) -> dict[FetchWatcher, None]: ...


class DelayedFetch:
    """A fetch with too few bytes, delayed until enough have arrived or its deadline."""

    __slots__ = ("_done", "_needed_bytes", "_partitions", "was_disturbed")

    def __init__(self, needed_bytes: int) -> None:
        self._needed_bytes = needed_bytes
        self.was_disturbed = False  # by something other than new bytes
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._partitions: list[Watched] = []

    def watch(self, partitions: Iterable[Watched]) -> None:
        for partition in partitions:
            self._partitions.append(partition)
            partition.watchers[self] = None

    def on_bytes_available(self, count: int) -> None:
        """`count` more bytes can be read from one of its partitions."""
        self._needed_bytes -= count
        if self._needed_bytes <= 0:
            self._end()

    def wake(self) -> None:
        """Something else changed: complete the fetch now."""
        self.was_disturbed = True
        self._end()

    def _end(self) -> None:
        if not self._done.done():
            self._done.set_result(None)

    async def wait_at_most(self, wait_ms: float) -> None:
        timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self._end)
        try:
            await self._done
        finally:
            timer.cancel()
            for partition in self._partitions:
                partition.watchers.pop(self, None)


class CommitWaiter(Protocol):
    """Waits for an offset; futures qualify."""

    def done(self) -> bool: ...

    def set_result(self, result: None, /) -> None: ...

    def set_exception(self, error: Exception, /) -> None: ...


class OffsetWaiters:
    """Waits for the high watermark to reach an offset, the lowest first."""

    __slots__ = ("_count", "_purge_at", "waits")

    def __init__(self) -> None:
        self.waits: list[tuple[int, int, CommitWaiter]] = []
        self._count = 0
        self._purge_at = PURGE_FROM

    def wait_for(self, offset: int) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.add(offset, done)
        return done

    def add(self, offset: int, waiter: CommitWaiter) -> None:
        self._count += 1
        if len(self.waits) >= self._purge_at:
            self._purge_done()
        heapq.heappush(self.waits, (offset, self._count, waiter))

    def _purge_done(self) -> None:
        """Purge waiters that timed out or disconnected while commits stall: their clients retry and add new ones."""
        self.waits[:] = [each for each in self.waits if not each[2].done()]
        heapq.heapify(self.waits)
        self._purge_at = max(PURGE_FROM, 2 * len(self.waits))

    def reached(self, offset: int) -> None:
        waits = self.waits
        while waits and waits[0][0] <= offset:
            done = heapq.heappop(waits)[2]
            if not done.done():
                done.set_result(None)

    def fail(self, error: Exception) -> None:
        waits, self.waits = self.waits, []
        for _, _, done in waits:
            if not done.done():
                done.set_exception(error)

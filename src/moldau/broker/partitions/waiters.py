"""Requests that wait on partitions: delayed fetches for bytes, delayed produces for a commit.

A `DelayedFetch` watches all partitions of its fetch and counts the bytes that become readable in them; another change
(leadership, deletion) wakes it at once. `OffsetWaiters` is a heap of the offsets that produces wait for: when the high
watermark (or the flushed offset) advances, the lowest are completed; when the leadership ends, all fail. A waiter that
is done, by a timeout or a closed connection, stays in the heap until it is reached or purged.

`PartitionWaiters` holds those of one partition: acks=all waits for the high watermark, acks=1 for the flush if the
topic requires flushed records. A lone replica's high watermark is its flushed offset then, so both wait for the same.
"""

import asyncio
import heapq
from collections.abc import Iterable
from typing import Final, Protocol

from moldau.broker.partitions.partition_role import PartitionRole
from moldau.storage.log import Log

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


class WaitedFor(Protocol):
    """The state of a partition that requests wait for."""

    @property
    def high_watermark(self) -> int: ...

    @property
    def log(self) -> Log: ...

    @property
    def role(self) -> PartitionRole: ...


class PartitionWaiters:
    """The delayed produces and fetches of one partition."""

    __slots__ = ("_partition", "_syncs", "commits", "watchers")

    def __init__(self, partition: WaitedFor) -> None:
        self._partition = partition
        self.commits = OffsetWaiters()
        self._syncs = OffsetWaiters()  # waits for the flush only (acks=1)
        self.watchers: dict[FetchWatcher, None] = {}

    def commit_wait(self, offset: int) -> asyncio.Future[None]:
        """Done when everything below `offset` is committed; fails when this broker cannot tell any more."""
        return self._wait(self.commits, offset, self._partition.high_watermark)

    def await_commit(self, offset: int, waiter: CommitWaiter) -> None:
        """The same for a waiter that is not a future: notified at once if there is nothing to wait for."""
        partition = self._partition
        if offset <= partition.high_watermark:
            waiter.set_result(None)
        elif partition.role.is_leader:
            self.commits.add(offset, waiter)
        else:
            waiter.set_exception(partition.role.not_leader_error())

    def sync_wait(self, offset: int) -> asyncio.Future[None]:
        """Done when everything below `offset` is flushed on this broker; fails like `commit_wait`."""
        if self._partition.role.leads_alone:
            return self.commit_wait(offset)
        return self._wait(self._syncs, offset, self._partition.log.recovery_point)

    def _wait(self, waiters: OffsetWaiters, offset: int, reached_offset: int) -> asyncio.Future[None]:
        role = self._partition.role
        if offset > reached_offset and role.is_leader:
            return waiters.wait_for(offset)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if offset <= reached_offset:
            done.set_result(None)
        else:
            done.set_exception(role.not_leader_error())
        return done

    def committed(self, offset: int, count: int) -> None:
        """The high watermark has advanced to `offset`, by `count` bytes."""
        self.commits.reached(offset)
        if self.watchers:
            for each in list(self.watchers):
                each.on_bytes_available(count)

    def offsets_changed(self) -> None:
        """The log start has moved, or the high watermark not forward: fetch sessions look at the partition again."""
        for each in list(self.watchers):
            each.on_bytes_available(0)

    def synced(self, offset: int) -> None:
        """Everything below `offset` is flushed here."""
        self._syncs.reached(offset)

    def wake(self) -> None:
        """Have every delayed fetch check its partitions again."""
        for each in list(self.watchers):
            each.wake()

    def fail(self, error: Exception) -> None:
        """Fail all waits for an offset, and wake the delayed fetches."""
        self.commits.fail(error)
        self._syncs.fail(error)
        self.wake()

"""Flushes logs: before acknowledgement where a topic requires it, in the background elsewhere."""

import asyncio
import logging
from collections.abc import Callable

from moldau.broker.partitions.partition import Partition
from moldau.broker.runtime.log_dir_monitor import WriteObserver
from moldau.broker.runtime.meters import LatencyMeter
from moldau.broker.runtime.rate_limited_logger import RateLimitedLogger
from moldau.model.errors import StorageFailed
from moldau.model.ports import Clock, Executor
from moldau.storage.files import SyncFailed
from moldau.storage.flush import Flush

logger = logging.getLogger(__name__)


class LogFlusher:
    """Flushes logs in the executor, one flush at a time per log.

    Group commit: appends continue while a flush runs; when it ends, everything it covered is committed and the next one
    starts at once, without added delay. A failed fsync is never retried, because the kernel may have dropped the dirty
    pages: the node stops, or does without the log dir if it has others.
    """

    def __init__(
        self,
        executor: Executor,
        clock: Clock,
        on_failure: Callable[[Partition, SyncFailed], None],
        observer_of: Callable[[Partition], WriteObserver],
        limited_logger: RateLimitedLogger,
    ) -> None:
        self._executor = executor
        self._clock = clock
        self._on_failure = on_failure
        self._observer_of = observer_of
        self._limited_logger = limited_logger
        self._tasks: dict[Partition, asyncio.Task[None]] = {}
        self._wanted: set[Partition] = set()
        self.latency = LatencyMeter()

    def request(self, partition: Partition) -> None:
        """Flush the partition's log soon."""
        self._wanted.add(partition)
        if partition not in self._tasks:
            task = asyncio.get_running_loop().create_task(self._run(partition))
            self._tasks[partition] = task

    async def finish(self, partition: Partition) -> None:
        """Wait until no flush of the partition is running."""
        self._wanted.discard(partition)
        task = self._tasks.get(partition)
        if task is not None:
            await asyncio.wait([task])

    async def sync_now(self, partition: Partition) -> None:
        """Flush everything and wait. The log itself records a failure."""
        self.request(partition)
        await asyncio.wait([self._tasks[partition]])

    async def _run(self, partition: Partition) -> None:
        try:
            while partition in self._wanted and partition.role.is_open:
                self._wanted.discard(partition)
                await self._sync(partition)
        except StorageFailed as error:
            logger.debug("Flush skipped: the log has failed: %s", error)
        except SyncFailed as error:
            self._on_failure(partition, error)
        except OSError as error:  # nothing is lost; the next append or the next maintenance round retries
            self._observer_of(partition).failed(error)
            self._limited_logger.write("flush", f"{partition.name}: flush failed, will retry: {error}")
        finally:
            del self._tasks[partition]

    async def sync_last(self, partition: Partition) -> None:
        """Flush the whole log before it is closed."""
        await self._run_flush(partition, partition.log.begin_close(self._clock.wall_ms()))

    async def _run_flush(self, partition: Partition, flush: Flush) -> None:
        started_ms = self._clock.monotonic_ms()
        observer = self._observer_of(partition)
        write = observer.began()
        try:
            await self._executor.run(flush.run)
        except (OSError, SyncFailed) as error:
            partition.log.flush_failed(flush, error)
            raise
        finally:
            observer.ended(write)
        self.latency.finished(self._clock.monotonic_ms() - started_ms)
        partition.log.finish_flush(flush)

    async def _sync(self, partition: Partition) -> None:
        log = partition.log
        target = log.flush_target(self._clock.wall_ms())
        if target is None:
            return
        flush = log.begin_flush(self._clock.wall_ms(), target)
        pending_bytes = partition.pending_bytes
        await self._run_flush(partition, flush)
        partition.synced_to(flush.end_offset, pending_bytes)

"""Periodic log maintenance: retention, time-based flushes, checkpoints, producer expiration, compaction."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from moldau.broker.configs.broker_settings import BrokerSettings
from moldau.broker.partitions.log_cleaner import LogCleaner
from moldau.broker.partitions.log_flusher import LogFlusher
from moldau.broker.partitions.partition import Partition
from moldau.broker.partitions.table import Partitions
from moldau.broker.runtime.rate_limited_logger import RateLimitedLogger
from moldau.model.errors import KafkaError
from moldau.model.ports import Clock, Disk, Executor
from moldau.storage.files import SyncFailed

logger = logging.getLogger(__name__)

FLUSH_CHECK_MS: Final = 1000.0
PRODUCERS_CHECK_MS: Final = 5000.0
PRODUCERS_MAX: Final = 200_000  # in all logs of a node; beyond it the least recent ones expire
INTERVAL_MS_MIN: Final = 10.0
SLICE_PARTITIONS: Final = 64


class LogMaintenance:
    """Runs each task at its own interval. None of them blocks reads or writes: blocking work runs in the executor."""

    def __init__(
        self,
        partitions: Partitions,
        flusher: LogFlusher,
        clock: Clock,
        disk: Disk,
        executor: Executor,
        settings: Callable[[], BrokerSettings],
        cleaner: LogCleaner,
        needs_space: Callable[[], bool] = lambda: False,
    ) -> None:
        """While the disk `needs_space`, files are removed without `file.delete.delay.ms`."""
        self._needs_space = needs_space
        self._partitions = partitions
        self._flusher = flusher
        self._clock = clock
        self._disk = disk
        self._executor = executor
        self._settings = settings
        self._cleaner = cleaner
        self._limited_logger = RateLimitedLogger(clock, logger)
        self._failing: set[str] = set()  # tasks whose last round failed
        self._tasks: list[asyncio.Task[None]] = []
        self._deleting: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self._every(lambda each: each.log_retention_check_interval_ms, self.apply_retention)
        self._every(lambda _: FLUSH_CHECK_MS, self._flush_due)
        self._every(lambda _: FLUSH_CHECK_MS, self._partitions.open_rest)
        self._every(
            lambda each: each.recovery_point_checkpoint_interval_ms, self._partitions.checkpoint_recovery_points
        )
        self._every(lambda each: each.start_offset_checkpoint_interval_ms, self._partitions.checkpoint_starts)
        self._every(
            lambda each: each.high_watermark_checkpoint_interval_ms, self._partitions.checkpoint_high_watermarks
        )
        self._every(lambda each: each.producer_id_expiration_check_interval_ms, self._expire_producers)
        self._every(lambda _: PRODUCERS_CHECK_MS, self._limit_producers)
        self._every(lambda each: each.log_cleaner_backoff_ms, self._compact)

    async def stop(self) -> None:
        for task in [*self._tasks, *self._deleting]:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._deleting, return_exceptions=True)

    def _every(self, interval_ms: Callable[[BrokerSettings], float], task: Callable[[], Awaitable[None]]) -> None:
        """The interval is read each time, because the setting may change at runtime."""

        async def run() -> None:
            while True:
                await asyncio.sleep(max(interval_ms(self._settings()), INTERVAL_MS_MIN) / 1000)
                try:
                    await task()
                    self._succeeded(task.__name__)
                except (OSError, SyncFailed) as error:  # a full disk, for example: the next round may succeed
                    self._failed(task.__name__, error)
                except Exception as bug:  # a bug must not end the task for good
                    text = "Unexpected error in log maintenance; please report this bug"
                    self._limited_logger.write("bug", text, logging.ERROR, bug)

        self._tasks.append(asyncio.get_running_loop().create_task(run()))

    def _failed(self, task: str, error: Exception) -> None:
        """Log the first failure only: most tasks fail for the same reason, each at its own interval."""
        if not self._failing:
            self._limited_logger.write("failed", f"Log maintenance failed, will retry: {error}")
        self._failing.add(task)

    def _succeeded(self, task: str) -> None:
        if task in self._failing:
            self._failing.discard(task)
            if not self._failing:
                self._limited_logger.write("succeeded", "Log maintenance succeeds again", logging.INFO)

    async def apply_retention(self, *, is_urgent: bool = False) -> None:
        """Delete expired segments: hidden at once, removed from disk after `file.delete.delay.ms`, or if `is_urgent`
        before this returns."""
        async for partition in self._in_slices():
            if self._cleaner.is_busy_with(partition):
                continue  # compaction is replacing its segments; the next round will do
            try:
                removed = partition.log.apply_retention(
                    self._clock.wall_ms(), committed_offset=partition.high_watermark
                )
            except (OSError, KafkaError) as error:  # one log that is corrupt must not stop retention of the others
                self._limited_logger.write("retention", f"{partition.name}: retention failed, will retry: {error}")
                continue
            if removed:
                partition.waiters.offsets_changed()
                logger.info("%s: deleted %d files of old segments", partition.name, len(removed))
                if is_urgent or self._needs_space():
                    await self._delete(removed)
                else:
                    self.delete_later(removed, partition.log.settings.file_delete_delay_ms)

    def delete_later(self, paths: list[str], delay_ms: float) -> None:
        async def delete() -> None:
            await asyncio.sleep(delay_ms / 1000)
            await self._delete(paths)

        task = asyncio.get_running_loop().create_task(delete())
        self._deleting.add(task)
        task.add_done_callback(self._deleting.discard)

    async def _delete(self, paths: list[str]) -> None:
        for path in paths:
            await self._executor.run(self._unlink, path)

    def _unlink(self, path: str) -> None:
        try:
            self._disk.unlink(path)
        except FileNotFoundError:
            logger.debug("%s was deleted already", path)
        except OSError as error:
            logger.warning("Cannot delete %s, retrying at the next start: %s", path, error)

    async def _flush_due(self) -> None:
        """One log after the other: many flushing threads would take the GIL from the event loop."""
        now_ms = self._clock.wall_ms()
        async for partition in self._in_slices():
            if partition.log.flush_target(now_ms) is not None:
                await self._flusher.sync_now(partition)

    async def _compact(self) -> None:
        """Clean the dirtiest log, then the next, until all are clean enough."""
        while self._settings().log_cleaner_enable:
            removed = await self._cleaner.clean_dirtiest(self._settings().log_cleaner_dedupe_buffer_bytes)
            if removed is None:
                return
            self.delete_later(removed.paths, removed.delay_ms)

    async def _expire_producers(self) -> None:
        now_ms = self._clock.wall_ms()
        async for partition in self._in_slices():
            partition.log.producers.expiration_ms = self._settings().producer_id_expiration_ms
            partition.log.producers.expire(now_ms)

    async def _limit_producers(self) -> None:
        """Each log has its own limit; this one is for all logs together."""
        logs = [partition.log for partition in self._partitions.all()]
        excess = sum(len(log.producers.by_id) for log in logs) - PRODUCERS_MAX
        for log in sorted(logs, key=lambda each: -len(each.producers.by_id)):
            if excess <= 0:
                return
            forgotten = min(excess, (len(log.producers.by_id) + 1) // 2)
            log.producers.evict_idle(forgotten)
            excess -= forgotten
            await asyncio.sleep(0)

    async def _in_slices(self) -> AsyncIterator[Partition]:
        for index, partition in enumerate(self._partitions.all()):
            if index % SLICE_PARTITIONS == SLICE_PARTITIONS - 1:
                await asyncio.sleep(0)
            if partition.role.is_open:
                yield partition

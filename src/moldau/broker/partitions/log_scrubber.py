"""The scrubber: verifies closed segments in the background, so that corruption is found while another replica is whole.

Slices of segments are verified in the worker process (`moldau.storage.scrub`); scrub_schedule.py decides when. What is
corrupt is marked at its partition: with other replicas, the replica is given up and fetched again; without one, the
range is not served. Invalid indexes are computed again.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Final

from moldau.broker.configs.broker_settings import BrokerSettings
from moldau.broker.partitions.partition import Partition
from moldau.broker.partitions.scrub_schedule import FIRST, ScrubSchedule, SegmentKey
from moldau.broker.partitions.table import Partitions
from moldau.broker.runtime.rate_limited_logger import RateLimitedLogger
from moldau.model.ports import Ports
from moldau.model.units import MINUTE_MS
from moldau.storage.checkpoints import CorruptCheckpoint, decode_lines, encode_lines
from moldau.storage.files import SyncFailed, replace_file
from moldau.storage.scrub import SLICE_BYTES, WHOLE, ScrubJob, ScrubResult, compute_indexes, verify_slice
from moldau.storage.segment import Segment
from moldau.storage.transaction_replay import replay_transactions

logger = logging.getLogger(__name__)

CHECKPOINT: Final = "scrub-checkpoint"
FIRST_SLICE_MS: Final = 1.0 * MINUTE_MS  # after the start, which has enough to do
RECHECK_MS: Final = 1.0 * MINUTE_MS  # the interval may be altered at run time
CHECKPOINT_MS: Final = 1.0 * MINUTE_MS
ATTEMPTS_MAX: Final = 3  # while the log is changed by other work


class LogScrubber:
    """One slice at a time. A verification that a consumer waits for does not wait for slices."""

    def __init__(
        self, partitions: Partitions, ports: Ports, data_folder: str, settings: Callable[[], BrokerSettings]
    ) -> None:
        self._partitions = partitions
        self._clock = clock = ports.clock
        self._disk = ports.disk
        self._executor = ports.executor
        self._path = f"{data_folder}/{CHECKPOINT}"
        self._settings = settings
        self._limited_logger = RateLimitedLogger(clock, logger)
        self._schedule = ScrubSchedule(clock.wall_ms())
        self._current: ScrubJob | None = None  # the next slice of a segment that is verified in part
        self._checkpointed: tuple[int, SegmentKey] | None = None
        self._checkpointed_ms = clock.monotonic_ms()
        self._verifying: dict[Segment, asyncio.Task[None]] = {}
        self._verifying_transactions: dict[Segment, asyncio.Task[None]] = {}
        self._task: asyncio.Task[None] | None = None
        self.bytes_read = 0
        self.passes = 0
        self.corrupt_ranges = 0
        self.restored_indexes = 0

    @property
    def progress(self) -> float:
        return self._schedule.progress

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        tasks = [*self._verifying.values(), *self._verifying_transactions.values()]
        if self._task is not None:
            tasks.append(self._task)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- in the background

    async def _run(self) -> None:
        await self._load_checkpoint()
        await asyncio.sleep(min(FIRST_SLICE_MS, max(self._settings().scrub_interval_ms, 0) / 10) / 1000)
        self._schedule.count(self._sizes())
        while True:
            try:
                await self._wait()
                await self._scrub_next()
            except (OSError, SyncFailed) as error:
                self._current = None
                self._limited_logger.write("scrub", f"Scrubbing failed, will retry: {error}")
                await asyncio.sleep(RECHECK_MS / 1000)
            except Exception as bug:  # a bug must not end the task for good
                self._current = None
                logger.error("Unexpected error while scrubbing; please report this bug", exc_info=bug)
                await asyncio.sleep(RECHECK_MS / 1000)

    async def _wait(self) -> None:
        """Until the next slice is due."""
        while True:
            interval_ms = self._settings().scrub_interval_ms
            wait_ms = RECHECK_MS if interval_ms < 0 else self._schedule.wait_ms(self._clock.wall_ms(), interval_ms)
            if wait_ms <= 0:
                return
            await asyncio.sleep(min(wait_ms, RECHECK_MS) / 1000)

    async def _scrub_next(self) -> None:
        schedule = self._schedule
        if schedule.is_complete:
            schedule.restart(self._clock.wall_ms())
            schedule.count(self._sizes())
        found = self._next_segment()
        if found is None:
            schedule.complete()
            self.passes += 1
            await self._write_checkpoint()
            return
        partition, segment = found
        key = SegmentKey(partition.name.topic, partition.name.partition, segment.base_offset)
        began_ms = self._clock.monotonic_ms()
        try:
            bytes_read, is_complete = await self._scrub_slice(partition, segment)
        except FileNotFoundError:  # deleted meanwhile
            bytes_read, is_complete = 0, True
        schedule.sliced(self._clock.wall_ms(), bytes_read, self._clock.monotonic_ms() - began_ms)
        self.bytes_read += bytes_read
        if is_complete:
            self._current = None
            schedule.completed(key)
            if self._clock.monotonic_ms() - self._checkpointed_ms >= CHECKPOINT_MS:
                await self._write_checkpoint()

    def _sizes(self) -> Iterator[tuple[SegmentKey, int]]:
        for partition in self._partitions.all():
            name = partition.name
            for base_offset, size in partition.log.closed_sizes() if partition.role.is_open else ():
                yield SegmentKey(name.topic, name.partition, base_offset), size

    def _next_segment(self) -> tuple[Partition, Segment] | None:
        """Return the first segment after the cursor. Of an active one only what an earlier run has left."""
        topic, index, base_offset = self._schedule.cursor
        for name in sorted(each.name for each in self._partitions.all() if each.name >= (topic, index)):
            partition = self._partitions.find(*name)
            if partition is None or not partition.role.is_open:
                continue
            segment = partition.log.segment_after(base_offset if name == (topic, index) else FIRST.base_offset)
            if segment is not None and (not segment.is_active or segment.verification.trusted_from):
                return partition, segment
        return None

    async def _scrub_slice(self, partition: Partition, segment: Segment) -> tuple[int, bool]:
        """Verify a slice; return its size, and whether it was the last of the segment."""
        log = partition.log
        job = self._current
        if job is None or job.folder != log.folder or job.verifier.base_offset != segment.base_offset:
            verifier = log.verifier(segment)
            if verifier is None:
                return 0, True
            job = ScrubJob(log.folder, verifier, SLICE_BYTES)
        layout = log.layout_version
        result = await self._executor.work_on_files(verify_slice, job)
        if log.layout_version != layout and (result.verifier.corrupt or result.has_invalid_index):
            self._current = None  # read while it was changed: verify it again
            return result.bytes_read, False
        await self._put_into_effect(partition, segment, result)
        self._current = None if result.verifier.is_done else ScrubJob(log.folder, result.verifier, SLICE_BYTES)
        return result.bytes_read, result.verifier.is_done

    async def _put_into_effect(self, partition: Partition, segment: Segment, result: ScrubResult) -> None:
        known = len(segment.verification.corrupt)
        partition.corruption.mark_segment(segment, result.verifier.corrupt)
        self.corrupt_ranges += len(segment.verification.corrupt) - known
        if result.has_invalid_index and not segment.is_active:
            await self._restore_indexes(partition, segment)

    async def _restore_indexes(self, partition: Partition, segment: Segment) -> None:
        verifier = partition.log.verifier(segment)
        if verifier is None:
            return
        indexes = await self._executor.work_on_files(compute_indexes, ScrubJob(partition.log.folder, verifier))
        if partition.role.is_open and partition.log.restore_indexes(segment, indexes):
            self.restored_indexes += 1
            logger.warning("%s: restored the indexes of segment %d", partition.name, segment.base_offset)

    # -- on demand

    async def verify(self, partition: Partition, segment: Segment) -> None:
        """Verify a whole segment at once; corrupt ranges are marked when this returns. Callers at the same time share
        one verification."""
        task = self._verifying.get(segment)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._verify(partition, segment))
            self._verifying[segment] = task
            task.add_done_callback(lambda _: self._verifying.pop(segment, None))
        await asyncio.shield(task)

    async def _verify(self, partition: Partition, segment: Segment) -> None:
        log = partition.log
        for _ in range(ATTEMPTS_MAX):
            verifier, layout = log.verifier(segment), log.layout_version
            if verifier is None or not partition.role.is_open:
                return
            job = ScrubJob(log.folder, verifier, WHOLE)
            result = await self._executor.work_on_files(verify_slice, job, is_urgent=True)
            if log.layout_version == layout:
                await self._put_into_effect(partition, segment, result)
                return

    def request(self, partition: Partition, offset: int) -> None:
        """Verify the segment of an offset in the background: a corrupt header was found there."""
        segment = partition.log.segment_of(offset)
        if segment is None or segment in self._verifying:
            return

        async def run() -> None:
            try:
                await self._verify(partition, segment)
            except OSError as error:
                self._limited_logger.write("verify", f"{partition.name}: verification failed: {error}")

        task = asyncio.get_running_loop().create_task(run())
        self._verifying[segment] = task
        task.add_done_callback(lambda _: self._verifying.pop(segment, None))

    async def verify_transactions(self, partition: Partition, segment: Segment) -> bool:
        """Compare a transaction index with the log, and rewrite it if it does not match. Callers at the same time share
        one verification. Return whether the index is valid now; a failure is logged."""
        task = self._verifying_transactions.get(segment)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._verify_transactions(partition, segment))
            self._verifying_transactions[segment] = task
            task.add_done_callback(lambda _: self._verifying_transactions.pop(segment, None))
        await asyncio.shield(task)
        return segment.aborted.is_verified

    async def _verify_transactions(self, partition: Partition, segment: Segment) -> None:
        log = partition.log
        try:
            for _ in range(ATTEMPTS_MAX):
                if not partition.role.is_open:
                    return
                partition.write_buffered()
                replay, layout = log.transaction_replay(segment), log.layout_version
                if replay is None:
                    return
                entries = await self._executor.work_on_files(replay_transactions, replay, is_urgent=True)
                if log.layout_version == layout:
                    if not segment.aborted.confirm(entries, len(replay.entries)):
                        self.restored_indexes += 1
                        logger.warning("%s: rebuilt the invalid %s", partition.name, segment.aborted.path)
                    return
        except OSError as error:
            text = f"{partition.name}: verification of {segment.aborted.path} failed: {error}"
            self._limited_logger.write("transactions", text)

    # -- checkpoint

    async def _load_checkpoint(self) -> None:
        """Continue the pass of an earlier run; without a valid checkpoint, begin one."""
        try:
            ((started_ms, topic, partition, base_offset),) = decode_lines(self._disk.read(self._path))
            cursor = SegmentKey("" if topic == "-" else topic, int(partition), int(base_offset))
            started = int(started_ms)
        except FileNotFoundError:
            return
        except (CorruptCheckpoint, ValueError, OSError) as error:
            logger.warning("Ignoring the scrub checkpoint: %s", error)
            return
        self._schedule = ScrubSchedule(min(started, self._clock.wall_ms()), cursor)

    async def _write_checkpoint(self) -> None:
        schedule = self._schedule
        state = (schedule.started_ms, schedule.cursor)
        if state != self._checkpointed:
            topic, partition, base_offset = schedule.cursor
            data = encode_lines([f"{schedule.started_ms} {topic or '-'} {partition} {base_offset}"])
            await self._executor.run(replace_file, self._disk, self._path, data)
            self._checkpointed, self._checkpointed_ms = state, self._clock.monotonic_ms()

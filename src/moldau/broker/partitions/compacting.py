"""Compaction of logs: planned here, done in a worker process, put into effect here."""

import dataclasses
import logging
from typing import Final, NamedTuple

from moldau.broker.partitions.partition import Partition
from moldau.broker.partitions.store import LogStore
from moldau.broker.partitions.table import Partitions
from moldau.model.errors import KafkaError
from moldau.model.ids import TopicPartition
from moldau.model.ports import Clock, Executor
from moldau.storage.checkpoints import CLEANED
from moldau.storage.compaction import CompactionJob, CompactionResult, compact
from moldau.storage.damage import unreadable
from moldau.storage.scan import BrokenLog

logger = logging.getLogger(__name__)

BYTES_PER_KEY: Final = 210  # what the worker's table of keys takes for each, measured with keys of 16 bytes


class Removed(NamedTuple):
    """Files that compaction has replaced, and how long somebody may still be sent from them."""

    paths: list[str]
    delay_ms: float


class Compacting:
    """One log at a time, the dirtiest first."""

    def __init__(self, partitions: Partitions, store: LogStore, clock: Clock, executor: Executor) -> None:
        self._partitions = partitions
        self._store = store
        self._clock = clock
        self._executor = executor
        self._cleaned: dict[TopicPartition, int] = store.read_checkpoint(CLEANED)
        self._busy_with: Partition | None = None
        self._uncleanable: set[Partition] = set()
        self.rounds = 0
        self.bytes_saved = 0

    def is_busy_with(self, partition: Partition) -> bool:
        return self._busy_with is partition

    async def clean_dirtiest(self, memory_bytes: int) -> Removed | None:
        """Compact the log that needs it most; None when none needs it."""
        found = self._dirtiest()
        if found is None:
            return None
        partition, job = found
        job = dataclasses.replace(job, keys_max=max(1, memory_bytes // BYTES_PER_KEY))
        self._busy_with = partition
        try:
            result = await self._executor.work_on_files(compact, job)
            if not partition.is_open:
                return Removed([], 0)  # the topic was deleted meanwhile, with all that was written
            return await self._put_into_effect(partition, result)
        except OSError:
            if partition.is_open:
                raise
            return Removed([], 0)
        except KafkaError as error:  # records that cannot be read: they stay, and the other logs have their turn
            logger.error("%s cannot be compacted, until the next start it is left alone: %s", partition.name, error)
            self._uncleanable.add(partition)
            if isinstance(error, BrokenLog) and partition.is_open:
                partition.found(unreadable(error.offset, error))
            return Removed([], 0)
        finally:
            self._busy_with = None

    def _dirtiest(self) -> tuple[Partition, CompactionJob] | None:
        now_ms = self._clock.wall_ms()
        self._uncleanable = {partition for partition in self._uncleanable if partition.is_open}
        chosen: tuple[Partition, CompactionJob] | None = None
        for partition in self._partitions.all():
            log = partition.log
            if not log.settings.is_compacted or not partition.is_open or partition in self._uncleanable:
                continue
            log.roll_if_due(now_ms)
            job = log.compaction_job(self._cleaned.get(partition.name, 0), partition.high_watermark, now_ms)
            if job is not None and (chosen is None or job.dirty_ratio > chosen[1].dirty_ratio):
                chosen = partition, job
        return chosen

    async def _put_into_effect(self, partition: Partition, result: CompactionResult) -> Removed:
        paths = partition.log.replace_segments(result)
        self.rounds += 1
        self.bytes_saved += result.bytes_before - result.bytes_after
        logger.info(
            "%s is compacted up to offset %d: %d bytes became %d",
            partition.name,
            result.cleaned_offset,
            result.bytes_before,
            result.bytes_after,
        )
        self._cleaned[partition.name] = result.cleaned_offset
        known = {each.name for each in self._partitions.all()}
        self._cleaned = {name: offset for name, offset in self._cleaned.items() if name in known}
        await self._store.write_checkpoint(CLEANED, self._cleaned)
        return Removed(paths, partition.log.settings.file_delete_delay_ms)

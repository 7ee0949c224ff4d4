"""Log compaction: planned here, run in a worker process, and put into effect here."""

import dataclasses
import logging
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from moldau.broker.partitions.log_stores import LogStores
from moldau.broker.partitions.partition import Partition
from moldau.broker.partitions.table import Partitions
from moldau.model.errors import KafkaError
from moldau.model.ids import NO_EPOCH, NO_OFFSET, TopicPartition
from moldau.model.ports import Clock, Executor
from moldau.model.units import MINUTE_MS
from moldau.storage import names as naming
from moldau.storage.aborted_transactions import UnverifiedTransactionIndex
from moldau.storage.batch_scan import CorruptBatch
from moldau.storage.checkpoints import CLEANED
from moldau.storage.compaction import CompactionJob, CompactionResult, compact
from moldau.storage.corrupt_range import unreadable_from
from moldau.storage.files import SyncFailed
from moldau.storage.segment import Segment

logger = logging.getLogger(__name__)

REST_MS: Final = 10.0 * MINUTE_MS
BYTES_PER_KEY: Final = 210  # memory of the worker's key table per key, measured with keys of 16 bytes


class ReplacedFiles(NamedTuple):
    """Files that compaction has replaced, and how long sends may still read them."""

    paths: list[str]
    delay_ms: float


class CleanerCheckpoint(NamedTuple):
    """The offset up to which a log is compacted, and the leader epoch there; a truncated log continues in a later
    one."""

    offset: int
    epoch: int


class LogCleaner:
    """Compacts one log at a time, the dirtiest first."""

    def __init__(
        self,
        partitions: Partitions,
        store: LogStores,
        clock: Clock,
        executor: Executor,
        verify_transactions: Callable[[Partition, Segment], Awaitable[bool]],
    ) -> None:
        self._partitions = partitions
        self._store = store
        self._clock = clock
        self._executor = executor
        self._verify_transactions = verify_transactions
        self._unverified: dict[Partition, Segment] = {}  # transaction indexes that a compaction needs
        self._cleaned: dict[Partition, CleanerCheckpoint] = {}
        self._busy_with: Partition | None = None
        self._uncleanable: set[Partition] = set()
        self._resting: dict[Partition, float] = {}  # logs to skip, until when
        self.rounds = 0
        self.bytes_saved = 0

    def is_busy_with(self, partition: Partition) -> bool:
        return self._busy_with is partition

    async def clean_dirtiest(self, memory_bytes: int) -> ReplacedFiles | None:
        """Compact the log that needs it most; None if none does."""
        found = self._dirtiest()
        if self._unverified:
            await self._verify_indexes()
            return ReplacedFiles([], 0)
        if found is None:
            return None
        partition, job = found
        job = dataclasses.replace(job, keys_max=max(1, memory_bytes // BYTES_PER_KEY))
        self._busy_with = partition
        try:
            result = await self._executor.work_on_files(compact, job)
            await self._partitions.checkpoint_recovery_points()
            if not partition.role.is_open:
                return ReplacedFiles([], 0)  # the topic was deleted meanwhile
            return await self._put_into_effect(partition, result)
        except (OSError, SyncFailed) as error:  # segments that could not be flushed are not part of the log yet
            if partition.role.is_open:
                self._rest(partition, str(error))
            return ReplacedFiles([], 0)
        except KafkaError as error:
            self._give_up(partition, error)
            return ReplacedFiles([], 0)
        except Exception:
            self._uncleanable.add(partition)  # a bug, which must not affect other logs
            raise
        finally:
            self._busy_with = None

    async def _verify_indexes(self) -> None:
        """Verify the transaction indexes that compactions need. The next round may find more."""
        for partition, segment in self._unverified.items():
            if not await self._verify_transactions(partition, segment):
                self._rest(partition, "a transaction index could not be verified")

    def _give_up(self, partition: Partition, error: KafkaError) -> None:
        """Its records cannot be read: keep them and continue with the other logs."""
        logger.error("%s: compaction failed, skipping it until the next start: %s", partition.name, error)
        self._uncleanable.add(partition)
        if isinstance(error, CorruptBatch) and error.offset != NO_OFFSET and partition.role.is_open:
            partition.corruption.mark(unreadable_from(error.offset, error))

    def _rest(self, partition: Partition, reason: str) -> None:
        logger.warning("%s: compaction postponed: %s", partition.name, reason)
        self._resting[partition] = self._clock.monotonic_ms() + REST_MS

    def _dirtiest(self) -> tuple[Partition, CompactionJob] | None:
        now_ms, monotonic_ms = self._clock.wall_ms(), self._clock.monotonic_ms()
        self._unverified = {}
        self._uncleanable = {partition for partition in self._uncleanable if partition.role.is_open}
        self._resting = {
            each: until for each, until in self._resting.items() if each.role.is_open and until > monotonic_ms
        }
        chosen: tuple[Partition, CompactionJob] | None = None
        for partition in self._partitions.all():
            is_compacted = partition.log.settings.is_compacted and partition.role.is_open
            if is_compacted and partition not in self._uncleanable and partition not in self._resting:
                job = self._job(partition, now_ms)
                if job is not None and (chosen is None or job.dirty_ratio > chosen[1].dirty_ratio):
                    chosen = partition, job
        return chosen

    def _job(self, partition: Partition, now_ms: int) -> CompactionJob | None:
        """The compaction of one log, if any. An error in it does not affect other logs."""
        try:
            partition.log.roll_if_due(now_ms)
            # Recovery after a power loss skips flushed segments. In the rest, an offset gap means a lost batch, so
            # compaction must not leave one there.
            until = min(partition.high_watermark, partition.log.recovery_point)
            return partition.log.compaction_job(self._cleaned_offset(partition), until, now_ms)
        except UnverifiedTransactionIndex as unverified:
            self._unverified[partition] = unverified.segment
        except OSError as error:
            self._rest(partition, str(error))
        except KafkaError as error:
            self._give_up(partition, error)
        return None

    def _cleaned_offset(self, partition: Partition) -> int:
        cleaned = self._cleaned.get(partition)
        if cleaned is None:
            cleaned = self._note(partition, self._store.take_cleaned_offset(partition.name))
        return cleaned.offset if cleaned.epoch == _epoch_before(partition, cleaned.offset) else 0

    def _note(self, partition: Partition, offset: int) -> CleanerCheckpoint:
        cleaned = self._cleaned[partition] = CleanerCheckpoint(offset, _epoch_before(partition, offset))
        return cleaned

    async def _put_into_effect(self, partition: Partition, result: CompactionResult) -> ReplacedFiles:
        paths = partition.log.replace_segments(result)
        self.rounds += 1
        self.bytes_saved += result.bytes_before - result.bytes_after
        logger.info(
            "%s: compacted up to offset %d, %d -> %d bytes",
            partition.name,
            result.cleaned_offset,
            result.bytes_before,
            result.bytes_after,
        )
        unused = [path for path in paths if path.endswith(naming.CLEANED)]
        for path in unused:  # at once: the next round uses the same file names
            await self._executor.run(self._store.unlink, path)
        if not result.is_complete:
            self._rest(partition, "not enough disk space for all of it at once")
        elif not unused:
            self._note(partition, result.cleaned_offset)
        await self._store.write_checkpoint(CLEANED, self._cleaned_offsets)
        return ReplacedFiles(
            [path for path in paths if path not in unused], partition.log.settings.file_delete_delay_ms
        )

    def _cleaned_offsets(self) -> dict[TopicPartition, int]:
        self._cleaned = {each: cleaned for each, cleaned in self._cleaned.items() if each.role.is_open}
        return {each.name: cleaned.offset for each, cleaned in self._cleaned.items()}


def _epoch_before(partition: Partition, offset: int) -> int:
    return partition.log.epochs.epoch_at(offset - 1) if offset > 0 else NO_EPOCH

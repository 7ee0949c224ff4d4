"""The logs in a node's log directory: open, delete and checkpoint them."""

import asyncio
import errno
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from moldau.broker.partitions.partition import Partition
from moldau.machines.metadata.image import MetadataImage
from moldau.model.ids import TopicId, TopicPartition
from moldau.model.ports import Clock, Disk, Executor, Random
from moldau.storage.checkpoints import CLEANED, HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS, encode_offsets
from moldau.storage.files import replace_file
from moldau.storage.log import Log
from moldau.storage.log_dir import LogDir, may_be_topic
from moldau.storage.open_segments import OpenSegments
from moldau.storage.settings import LogSettings

logger = logging.getLogger(__name__)

UNIQUE_BYTES = 16


class LogStore:
    """Knows from the checkpoints and the clean-shutdown marker how the previous run left each log."""

    def __init__(
        self,
        folder: LogDir,
        disk: Disk,
        executor: Executor,
        random: Random,
        clock: Clock,
        *,
        is_clean: bool,
        has_lost_power: bool,
        has_sync_failure: bool = False,
        producer_expiration_ms: Callable[[], int],
    ) -> None:
        self._folder = folder
        self._disk = disk
        self._executor = executor
        self._random = random
        self._clock = clock
        self._is_clean = is_clean
        self._has_lost_power = has_lost_power
        self._has_failed_sync = has_sync_failure
        self._producer_expiration_ms = producer_expiration_ms
        self._written: dict[str, Mapping[TopicPartition, int]] = {
            name: folder.read_checkpoint(name) for name in (RECOVERY_POINTS, LOG_STARTS, HIGH_WATERMARKS, CLEANED)
        }
        self._recovery_points = dict(self._written[RECOVERY_POINTS])
        self._start_offsets = dict(self._written[LOG_STARTS])
        self._high_watermarks = dict(self._written[HIGH_WATERMARKS])
        self._cleaned_offsets = dict(self._written[CLEANED])
        self._known = {found.partition: found.topic_id for found in folder.partitions()}
        # logs closed because of corruption: scanned when reopened, and truncated at this offset
        self._closed_corrupt: dict[TopicPartition, int] = {}
        self._open_segments = OpenSegments()
        self._has_renamed = False  # a partition directory was created, renamed or marked, and not flushed yet
        self._checkpointing = asyncio.Lock()
        self._removals: set[asyncio.Task[None]] = set()

    @property
    def path(self) -> str:
        return self._folder.path

    def knows(self, name: TopicPartition) -> bool:
        """Whether there is a log of this name that was not opened yet."""
        return name in self._known

    def open(
        self, name: TopicPartition, topic_id: TopicId, settings: LogSettings, *, allows_data_loss: bool = False
    ) -> tuple[Log, int]:
        """Open the partition's log, or create it if there is none. Call `remove_leftovers` first.

        Also return its checkpointed high watermark. With `allows_data_loss`, records after a corruption are truncated.
        """
        if self._has_leftovers(name, topic_id):
            raise OSError(errno.EBUSY, "leftovers of another log of this name could not be removed")
        is_known = name in self._known
        found = self._known.get(name)
        if not is_known:
            self._cleaned_offsets.pop(name, None)  # of an earlier topic of this name
        if found != topic_id:  # there is no log yet, or its partition.metadata is missing or corrupt
            if found is not None:
                logger.warning("%s: partition.metadata has a corrupt topic id and is written again", name)
            self._has_renamed = True
            self._folder.create_partition(name, topic_id)
        log = Log.open(
            self._disk,
            self._folder.folder_of(name),
            settings,
            now_ms=self._clock.wall_ms(),
            recovery_point=self._recovery_points.get(name, 0) if is_known else 0,
            log_start_offset=self._start_offsets.get(name, 0) if is_known else 0,
            is_clean=(self._is_clean and name not in self._closed_corrupt) or not is_known,
            has_lost_power=self._has_lost_power and name not in self._closed_corrupt,
            has_sync_failure=self._has_failed_sync,
            cleaned_offset=self._cleaned_offsets.get(name, 0),
            allows_data_loss=allows_data_loss,
            open_segments=self._open_segments,
            producer_expiration_ms=self._producer_expiration_ms(),
        )
        # Only now: an attempt that failed on disk is repeated and must find the same state.
        self._known.pop(name, None)
        self._recovery_points.pop(name, None)
        self._start_offsets.pop(name, None)
        damaged_offset = self._closed_corrupt.pop(name, None)
        if damaged_offset is not None and allows_data_loss:
            log.truncate_to(
                max(damaged_offset, log.start_offset)
            )  # a scan does not notice every wrong base offset or leader epoch
        high_watermark = self._high_watermarks.pop(name, 0) if is_known else 0
        return log, max(high_watermark, log.start_offset)

    async def remove_leftovers(self, names: Iterable[TopicPartition], topic_id: TopicId) -> None:
        """Before logs are created: remove checkpoint entries of earlier logs of the same name."""
        outdated = {name for name in names if self._has_leftovers(name, topic_id)}
        for name in outdated:
            if name in self._known:
                logger.warning("%s belongs to an earlier topic of this name", name)
                self.mark_stray(name)
        for checkpoint, written in self._written.items():
            if not outdated.isdisjoint(written):
                await self.write_checkpoint(checkpoint, partial(self._without, outdated, checkpoint))

    def _has_leftovers(self, name: TopicPartition, topic_id: TopicId) -> bool:
        """Whether something is left of another log of this name."""
        if name in self._known:
            return not may_be_topic(self._known[name], topic_id)
        return any(name in written for written in self._written.values())

    def _without(self, outdated: set[TopicPartition], checkpoint: str) -> Mapping[TopicPartition, int]:
        return {name: offset for name, offset in self._written[checkpoint].items() if name not in outdated}

    def close_damaged(self, partition: Partition, damaged_offset: int) -> None:
        """Close a log in use; the next `open` scans the corrupt segment and all later ones."""
        log, name = partition.log, partition.name
        segment = max((base for base in log.segment_base_offsets if base <= damaged_offset), default=0)
        log.abandon()
        self._known[name] = partition.topic_id
        self._recovery_points[name] = min(log.recovery_point, segment)
        self._start_offsets[name] = log.start_offset
        self._high_watermarks[name] = partition.high_watermark
        self._closed_corrupt[name] = damaged_offset

    def mark_stray(self, name: TopicPartition) -> None:
        """The log cannot be used: rename it, so that the next `open` creates a new one."""
        self._has_renamed = True
        path = self._folder.mark_stray(name, self._unique())
        logger.warning("%s: log directory renamed to %s", name, path)
        self._forget(name)

    async def discard(self, name: TopicPartition, topic_id: TopicId) -> None:
        """Delete a log that could not be opened, with its topic."""
        if self._known.get(name) == topic_id:
            self._forget(name)
            await self._delete(name, topic_id, 0)

    def _forget(self, name: TopicPartition) -> None:
        for memory in (self._known, self._recovery_points, self._start_offsets, self._high_watermarks):
            memory.pop(name, None)
        self._closed_corrupt.pop(name, None)

    async def delete(self, partition: Partition) -> None:
        """Rename it at once; delete the files after `file.delete.delay.ms`, when no send reads them any longer."""
        partition.log.abandon()
        await self._delete(partition.name, partition.topic_id, partition.log.settings.file_delete_delay_ms)

    async def _delete(self, name: TopicPartition, topic_id: TopicId, delay_ms: float) -> None:
        """If a full disk prevents the rename, delete at once: that frees space."""
        self._has_renamed = True
        try:
            path = self._folder.mark_deleted(name, self._unique())
        except OSError as error:
            logger.warning("%s cannot be renamed, deleting it at once: %s", name, error)
            folder = self._folder.folder_of(name)
            await self._attempt(self._disk.remove_directory, folder)
            if self._disk.exists(folder):
                self._known[name] = topic_id  # in the way of a later log of this name
        else:
            self._remove_later(path, delay_ms)

    def create_future(self, partition: Partition) -> Log:
        """Create the log to which a log of another log dir is copied."""
        self._has_renamed = True
        return Log.open(
            self._disk,
            self._folder.create_future(partition.name, partition.topic_id, self._unique()),
            partition.log.settings,
            now_ms=self._clock.wall_ms(),
            is_clean=True,
            open_segments=self._open_segments,
            producer_expiration_ms=self._producer_expiration_ms(),
        )

    def put_in_place(self, name: TopicPartition, future: Log, *, is_synced: bool) -> None:
        """The copy is complete. With `is_synced` this is durable at once."""
        future.renamed_to(self._folder.put_in_place(future.folder, name))
        self._has_renamed = True
        if is_synced:
            self._folder.sync()

    async def remove(self, log: Log) -> None:
        """Close and delete a copy that is not needed."""
        log.abandon()
        await self._attempt(self._disk.remove_directory, log.folder)

    async def delete_moved(self, partition: Partition, log: Log) -> None:
        """Delete the log that was here; the partition has another one."""
        log.abandon()
        if self._known.get(partition.name) == partition.topic_id:  # not opened again nor deleted meanwhile
            self._forget(partition.name)
            await self._delete(partition.name, partition.topic_id, log.settings.file_delete_delay_ms)

    def moved(self, partition: Partition) -> None:
        """The partition has another log, in another log dir; `delete_moved` deletes this one later."""
        self._known[partition.name] = partition.topic_id

    def remove_futures(self) -> list[TopicPartition]:
        """Delete what an earlier run has copied here; return the partitions."""
        found = self._folder.futures()
        for _, path in found:
            self._remove_later(path, 0)
        return [name for name, _ in found]

    def sweep(self, image: MetadataImage, node_id: int, kept: Iterable[str] = ()) -> None:
        """After the first image: delete leftovers of deleted topics, and rename stray logs."""
        for path in self._folder.deleted_directories():
            self._remove_later(path, 0)
        topic_ids = {name: topic.topic_id for name, topic in image.topics.items()}
        strays = [found.partition for found in self._folder.strays(topic_ids, set(kept))]
        for name in strays:
            logger.warning("%s is a stray log: it belongs to no topic", name)
        for name in self._known:
            where = image.partition(name.topic, name.partition)
            if where is not None and node_id not in where.replicas and name not in strays:
                strays.append(name)
        for name in strays:
            try:
                self.mark_stray(name)
            except OSError as error:  # no reason not to start: opening a log of this name retries
                logger.warning("%s: stray log cannot be renamed yet: %s", name, error)

    async def sync(self) -> None:
        """Flush created and deleted directories. A no-op if there were none."""
        if self._has_renamed:
            self._has_renamed = False
            try:
                await self._executor.run(self._folder.sync)
            except OSError:
                self._has_renamed = True
                raise

    async def write_checkpoint(self, name: str, collect: Callable[[], Mapping[TopicPartition, int]]) -> None:
        """In the executor, because it flushes; one at a time, never with older values than the last."""
        async with self._checkpointing:
            offsets = collect()
            path = f"{self._folder.path}/{name}"
            await self._executor.run(replace_file, self._disk, path, encode_offsets(offsets))
            self._written[name] = offsets

    def remembered(self, name: str) -> dict[TopicPartition, int]:
        """The checkpointed offsets of logs that have not been opened since the start."""
        memory = {
            RECOVERY_POINTS: self._recovery_points,
            LOG_STARTS: self._start_offsets,
            HIGH_WATERMARKS: self._high_watermarks,
        }.get(name, {})
        return {each: memory[each] for each in self._known if each in memory}

    def take_cleaned_offset(self, name: TopicPartition) -> int:
        """The checkpointed cleaner offset, returned once: a later log of this name is another one."""
        return self._cleaned_offsets.pop(name, 0)

    def unlink(self, path: str) -> None:
        self._disk.unlink(path)

    async def close(self) -> None:
        """Pending deletions are left to the next start."""
        for task in list(self._removals):
            task.cancel()
        await asyncio.gather(*self._removals, return_exceptions=True)

    def _remove_later(self, path: str, delay_ms: float) -> None:
        async def remove() -> None:
            await asyncio.sleep(delay_ms / 1000)
            await self._attempt(self._disk.remove_directory, path)

        task = asyncio.get_running_loop().create_task(remove())
        self._removals.add(task)
        task.add_done_callback(self._removals.discard)

    async def _attempt(self, work: Callable[[str], None], path: str) -> None:
        try:
            await self._executor.run(work, path)
        except OSError as error:
            logger.warning("Cannot delete %s, retrying at the next start: %s", path, error)

    def _unique(self) -> str:
        return self._random.randbytes(UNIQUE_BYTES).hex()

"""The log of `__cluster_metadata-0` on this node, as leader or follower.

Appends are written at once and flushed together: while one flush runs, new batches wait for the next, which starts as
soon as the current one ends. Flushed records count in the quorum; the quorum decides what is committed.
"""

import asyncio
import logging
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

from moldau.broker.configs.broker_settings import MetadataLogSettings
from moldau.broker.drivers.metadata_batches import build_records, check_batch, read_records
from moldau.broker.drivers.metadata_snapshots import SnapshotId
from moldau.broker.drivers.quorum_records import Control, voter_sets_in
from moldau.broker.drivers.snapshot_store import LoadedSnapshot, SnapshotStore
from moldau.broker.runtime.log_dir_monitor import NoObserver, WriteObserver
from moldau.broker.runtime.rate_limited_logger import RateLimitedLogger
from moldau.machines.metadata.image import MetadataImage
from moldau.machines.metadata.records import EpochBegan, Record
from moldau.machines.raft import OffsetAndEpoch, VotersAt, VoterSet
from moldau.model.errors import CorruptMessage, NotController, StorageFailed
from moldau.model.ids import NO_EPOCH
from moldau.model.ports import Buffer, Clock, Disk, Executor
from moldau.model.protocol import METADATA_TOPIC_ID
from moldau.model.units import MiB
from moldau.records.control import build_control_batch
from moldau.records.header import read_header
from moldau.records.record import iterate_batches
from moldau.storage.checkpoints import CorruptCheckpoint
from moldau.storage.files import SyncFailed, replace_file
from moldau.storage.flush import Flush
from moldau.storage.leader_epochs import LeaderEpochs
from moldau.storage.log import Log
from moldau.storage.log_dir import PARTITION_METADATA, encode_id
from moldau.storage.settings import LogSettings

log = logging.getLogger(__name__)

FOLDER: Final = "__cluster_metadata-0"
READ_BYTES: Final = MiB
RETRY_S: Final = 0.1  # until a checkpoint is retried on a full disk

OffsetListener = Callable[[int], None]


def make_metadata_folder(disk: Disk, data_folder: str) -> None:
    """Create the log's directory if it does not exist; it is durable when this returns."""
    folder = f"{data_folder}/{FOLDER}"
    if not disk.exists(folder):
        disk.make_directory(folder)
        metadata = f"version: 0\ntopic_id: {encode_id(METADATA_TOPIC_ID)}"
        replace_file(disk, f"{folder}/{PARTITION_METADATA}", metadata.encode())
        disk.sync_directory(data_folder)


class MetadataLog:
    """The log of the metadata machine. After `open` it can be read and followed; the leader appends within its
    epoch."""

    def __init__(
        self,
        data_folder: str,
        disk: Disk,
        executor: Executor,
        clock: Clock,
        settings: MetadataLogSettings,
        failed: Callable[[BaseException], None],
        *,
        has_lost_power: bool = False,
        has_sync_failure: bool = False,
        observer: WriteObserver | None = None,
    ) -> None:
        """`failed` is called when a flush fails: what is on disk is unknown then, and the node must stop."""
        self.folder = f"{data_folder}/{FOLDER}"
        self.leading_epoch = NO_EPOCH  # the epoch in which this node may append
        self.high_watermark = 0
        self.synced_offset = 0
        self.bytes_since_snapshot = 0
        self.replays_from = 0  # records below are in the image that the next machine starts with
        self.snapshots = SnapshotStore(disk, executor, self.folder)
        self._last_timestamp_ms = 0
        self._data_folder = data_folder
        self._disk = disk
        self._executor = executor
        self._clock = clock
        self._settings = settings
        self._failed = failed
        self._has_lost_power = has_lost_power
        self._has_failed_sync = has_sync_failure
        self.observer = NoObserver() if observer is None else observer
        self._limited_logger = RateLimitedLogger(clock, log)
        self._log: Log | None = None
        self._watchers: list[OffsetListener] = []
        self._on_appended: OffsetListener | None = None
        self._on_synced: OffsetListener | None = None
        self._syncing: asyncio.Task[None] | None = None
        self._sync_waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._truncations = 0
        self._is_restarting = False  # the old log is gone and the new one not created yet
        self._is_closing = False
        self._loaded: LoadedSnapshot | None = None  # kept from the start to the replay that follows

    # Opening and closing

    def open(self) -> None:
        """Open the log on disk. Records above the newest snapshot may not be flushed yet."""
        make_metadata_folder(self._disk, self._data_folder)
        self.snapshots.open()
        newest = self.snapshots.newest.offset if self.snapshots.newest else 0
        self._log = Log.open(
            self._disk,
            self.folder,
            LogSettings(
                segment_bytes=self._settings.metadata_log_segment_bytes,
                segment_ms=self._settings.metadata_log_segment_ms,
                retention_ms=-1,
                retention_bytes=-1,
            ),
            now_ms=self._clock.wall_ms(),
            recovery_point=self._recovery_point(),
            log_start_offset=self.snapshots.kept_from_offset,
            has_lost_power=self._has_lost_power,
            has_sync_failure=self._has_failed_sync,
        )
        if self._log.end_offset < newest:
            log.warning("%s ends below its snapshot at %d; restarting the log there", self.folder, newest)
            self._log.truncate_fully_and_start_at(newest)
        self.synced_offset = newest

    def _recovery_point(self) -> int:
        """Recovery starts at the newest snapshot if the leader epoch file covers it. That file is written when the log
        is flushed, which a snapshot does not wait for."""
        newest = self.snapshots.newest
        if newest is None:
            return 0
        epochs = LeaderEpochs(self._disk, self.folder)
        with suppress(CorruptCheckpoint):  # it is rebuilt from the log then
            epochs.load()
            return newest.offset if epochs.latest >= newest.epoch else 0
        return newest.offset

    def set_listeners(self, *, appended: OffsetListener, synced: OffsetListener) -> None:
        """Call these with the new end offset: of appends as leader, and of flushed records."""
        self._on_appended, self._on_synced = appended, synced

    async def close(self) -> None:
        """Flush everything and close the files. On a full disk this is tried once: no node counts on the rest."""
        self._is_closing = True
        if self._syncing is not None:
            await asyncio.wait([self._syncing])
        if self._log is not None:
            self._close_files(self._log)
            self._log = None
        for _, waiter in self._sync_waiters:
            waiter.cancel()

    def _close_files(self, open_log: Log) -> None:
        if self._is_restarting:
            open_log.abandon()  # the next start begins at the snapshot
            return
        try:
            open_log.close(self._clock.wall_ms())
        except OSError as error:
            log.error("%s: flush on close failed: %s", self.folder, error)

    # Log state, for the raft machine

    @property
    def start_offset(self) -> int:
        return self._open_log.start_offset

    @property
    def end_offset(self) -> int:
        return self._open_log.end_offset

    @property
    def last_epoch(self) -> int:
        return max(self._open_log.epochs.latest, self._epoch_before(self.end_offset))

    @property
    def latest_snapshot(self) -> OffsetAndEpoch | None:
        newest = self.snapshots.newest
        return OffsetAndEpoch(*newest) if newest is not None and newest.offset > 0 else None

    @property
    def earliest_snapshot(self) -> OffsetAndEpoch | None:
        first = max(self.start_offset, 1)
        return next((OffsetAndEpoch(*each) for each in self.snapshots.ids if each.offset >= first), None)

    def end_of_epoch(self, epoch: int) -> OffsetAndEpoch:
        if epoch >= self.last_epoch:
            return OffsetAndEpoch(self.end_offset, self.last_epoch)
        epochs = self._open_log.epochs
        following = bisect_right(epochs.epochs, epoch)
        if following in (0, len(epochs.epochs)):  # the log has no records of that epoch
            return OffsetAndEpoch(self.start_offset, self._epoch_before(self.start_offset))
        return OffsetAndEpoch(epochs.start_offsets[following], epochs.epochs[following - 1])

    def _epoch_before(self, offset: int) -> int:
        """The epoch of the record before `offset`, which may be in a snapshot only."""
        epoch = self._open_log.epochs.epoch_at(offset - 1)
        if epoch != NO_EPOCH:
            return epoch
        return max((each.epoch for each in self.snapshots.ids if each.offset <= offset), default=0)

    async def voter_sets(self) -> list[VotersAt]:
        """All voter sets in the newest snapshot and the log after it, in order."""
        self._loaded = loaded = await self.load_snapshot()
        sets = []
        offset = 0
        if loaded is not None:
            offset = loaded.snapshot.offset
            voters = loaded.voters()
            sets += [VotersAt(offset - 1, voters)] if voters is not None else []
        async for batches in self._batches_from(offset, None):
            sets += voter_sets_in(batches)
        return sets

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Read whole batches from `offset` on, committed or not, for another replica. Batches are verified here: the
        replica would find the corruption too, but could not repair it."""
        batches = self._open_log.read_bytes(offset, max_bytes)
        for header, batch in iterate_batches(batches):
            check_batch(header, batch)
        return batches

    # Appending

    def append(self, decisions: Sequence[Sequence[Record]]) -> None:
        try:
            for records in decisions:
                self._write(build_records(records, timestamp_ms=self._clock.wall_ms()))
        except OSError as error:
            self.observer.failed(error)
            raise
        finally:
            self._begin_sync()
            self._notify_appended()

    def append_controls(self, controls: Sequence[Control]) -> int:
        """Append control records as one batch; return the offset of the first."""
        base_offset = self.end_offset
        self._write(build_control_batch(controls, timestamp_ms=self._clock.wall_ms()))
        self._begin_sync()
        return base_offset

    def append_as_follower(self, batches: Buffer, epoch: int) -> list[VotersAt]:
        """Append batches from the leader of `epoch` and return the voter sets in them. Invalid batches are rejected."""
        expected = self.end_offset
        size_bytes = 0
        for header, batch in iterate_batches(batches):
            if header.base_offset != expected or not 0 <= header.partition_leader_epoch <= epoch:
                raise CorruptMessage(
                    f"batch at {header.base_offset} of epoch {header.partition_leader_epoch}, but the leader of epoch "
                    f"{epoch} must send offset {expected} next"
                )
            expected = header.next_offset
            size_bytes += len(batch)
            self._last_timestamp_ms = header.max_timestamp
        try:
            self._open_log.append_as_follower(memoryview(batches)[:size_bytes], self._clock.wall_ms())
        except OSError as error:
            self.observer.failed(error)
            raise
        self.bytes_since_snapshot += size_bytes
        self._begin_sync()
        return voter_sets_in(memoryview(batches)[:size_bytes])

    def _write(self, batch: bytearray) -> None:
        if self.leading_epoch == NO_EPOCH:
            raise NotController("This node does not lead the metadata quorum.")
        header = read_header(batch)
        self._open_log.append(memoryview(batch), header, self.leading_epoch, self._clock.wall_ms())
        self.bytes_since_snapshot += len(batch)
        self._last_timestamp_ms = header.max_timestamp

    def _notify_appended(self) -> None:
        if self._on_appended is not None and self._log is not None:
            self._on_appended(self.end_offset)

    # Truncation

    def truncate_to(self, offset: int) -> None:
        """Drop records that diverge from the leader's log. Committed records never do."""
        if offset < self.high_watermark:
            raise AssertionError(f"truncation to {offset}, below the high watermark {self.high_watermark}")
        self._truncations += 1
        self._open_log.truncate_to(offset)
        self.synced_offset = min(self.synced_offset, self.end_offset)
        self._begin_sync()

    async def restart_at(self, snapshot: SnapshotId) -> None:
        """Drop the whole log and restart it at a snapshot. Durable when this returns; retry on `OSError`."""
        self._truncations += 1
        self._is_restarting = True
        self._open_log.truncate_fully_and_start_at(snapshot.offset)
        self._is_restarting = False
        self.synced_offset = snapshot.offset
        self.bytes_since_snapshot = 0
        await self._run(self._open_log, self._open_log.begin_flush(self._clock.wall_ms()))

    # Commits

    def watch(self, committed: OffsetListener) -> None:
        self._watchers.append(committed)

    def commit(self, high_watermark: int) -> None:
        """Advance the high watermark, as decided by the quorum."""
        if high_watermark > self.high_watermark:
            self.high_watermark = high_watermark
            for committed in self._watchers:
                committed(high_watermark)

    # Reading

    async def replay(self) -> AsyncGenerator[Iterable[tuple[int, Record]], None]:
        """Replay from `replays_from` on; if the log starts later, a snapshot comes first."""
        offset = self.replays_from
        if offset == 0 or offset < self.start_offset:
            loaded = await self.load_snapshot()
            if loaded is not None:
                yield [(loaded.snapshot.offset - 1, EpochBegan(loaded.snapshot.epoch))]
                yield loaded.records()
                offset = loaded.snapshot.offset
            self.bytes_since_snapshot = 0
        async for batches in self._batches_from(offset, None):
            self.bytes_since_snapshot += len(batches)
            yield read_records(batches)

    async def load_snapshot(self) -> LoadedSnapshot | None:
        """Load the newest readable snapshot; None if there is none and the log is complete."""
        loaded, self._loaded = self._loaded, None
        if loaded is not None and loaded.snapshot == self.snapshots.newest:
            return loaded
        loaded = await self.snapshots.load_newest(self.start_offset)
        if loaded is None and self.start_offset > 0:
            raise StorageFailed(
                f"{self.folder} starts at {self.start_offset}, and no snapshot covers the offsets before it"
            )
        return loaded

    async def read_committed(self, offset: int) -> bytes:
        """Read whole committed batches from `offset` on; empty if there are none."""
        async for batches in self._batches_from(offset, self.high_watermark):
            return batches
        return b""

    async def _batches_from(self, offset: int, until_offset: int | None) -> AsyncGenerator[bytes, None]:
        while (found := self._open_log.read(offset, READ_BYTES, until_offset=until_offset)) is not None:
            batches = await self._executor.run(found.read)
            if len(batches) < len(found):
                raise StorageFailed(
                    f"{self.folder}: {len(found) - len(batches)} bytes at the end are not a whole batch"
                )
            yield batches
            for header, _ in iterate_batches(batches):
                offset = header.next_offset

    @property
    def _open_log(self) -> Log:
        if self._log is None:
            raise NotController("The metadata log is not open.")
        return self._log

    # Flushing

    async def synced(self, offset: int) -> None:
        """Wait until everything below `offset` is flushed."""
        if self.synced_offset < offset:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._sync_waiters.append((offset, waiter))
            self._begin_sync()
            await waiter

    def _begin_sync(self) -> None:
        if self._syncing is None and self._log is not None:
            self._syncing = asyncio.get_running_loop().create_task(self._sync(self._log))

    async def _sync(self, open_log: Log) -> None:
        """Flush until nothing is left, or until `close` waits for this to end."""
        try:
            while self.synced_offset < open_log.end_offset and not self._is_closing:
                await self._sync_once(open_log)
        except Exception as error:  # a failed fsync, or a bug in a callback
            self._failed(error)
        finally:
            self._syncing = None

    async def _sync_once(self, open_log: Log) -> None:
        truncations = self._truncations
        flush = open_log.begin_flush(self._clock.wall_ms())
        try:
            await self._run(open_log, flush)
        except OSError as error:
            self.observer.failed(error)
            self._limited_logger.write("flush", f"{self.folder}: flush failed, will retry: {error}")
            await asyncio.sleep(RETRY_S)
            return
        if truncations == self._truncations:  # truncated offsets may have been written again
            self.synced_offset = flush.end_offset
            self._notify_synced()

    async def _run(self, open_log: Log, flush: Flush) -> None:
        write = self.observer.began()
        try:
            await self._executor.run(flush.run)
        except (OSError, SyncFailed) as error:
            open_log.flush_failed(flush, error)
            raise
        finally:
            self.observer.ended(write)
        open_log.finish_flush(flush)

    def _notify_synced(self) -> None:
        for offset, waiter in self._sync_waiters:
            if offset <= self.synced_offset and not waiter.done():
                waiter.set_result(None)
        self._sync_waiters = [each for each in self._sync_waiters if not each[1].done()]
        if self._on_synced is not None:
            self._on_synced(self.synced_offset)

    # Snapshots

    async def take_snapshot(self, image: MetadataImage, end_offset: int, voters: VoterSet | None) -> None:
        """Write a snapshot of the committed image below `end_offset`; then drop what it replaces."""
        newest = self.snapshots.newest
        if newest is not None and end_offset <= newest.offset:
            return
        snapshot = SnapshotId(end_offset, self._epoch_before(end_offset))
        self.bytes_since_snapshot = 0
        self._open_log.roll(self._clock.wall_ms())  # segments are deleted as a whole, so end one here
        await self.snapshots.write(snapshot, image, voters, self._last_timestamp_ms)
        await self.drop_obsolete()

    async def drop_obsolete(self) -> None:
        """Drop old snapshots, and segments below those that are kept. May be interrupted and repeated."""
        await self.snapshots.drop_obsolete()
        kept_from = self.snapshots.kept_from_offset
        if kept_from <= self.end_offset:
            self._open_log.advance_start_offset(kept_from)
        paths = self._open_log.apply_retention(self._clock.wall_ms(), committed_offset=self.high_watermark)
        for path in paths:
            await self._executor.run(self._disk.unlink, path)

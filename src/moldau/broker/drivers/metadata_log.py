"""`__cluster_metadata-0` on this node's disk, whether it leads the quorum or follows.

Appends are written at once and synced together: while one sync runs, the batches that come meanwhile wait for the
next, which starts as soon as the last one ends. What is synced counts in the quorum; what is committed the quorum says.
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
RETRY_S: Final = 0.1  # a checkpoint beside the log found no room; there may be some later

Told = Callable[[int], None]


def make_metadata_folder(disk: Disk, data_folder: str) -> None:
    """Make the folder of the log, if it is not there; it lasts when this returns."""
    folder = f"{data_folder}/{FOLDER}"
    if not disk.exists(folder):
        disk.make_directory(folder)
        metadata = f"version: 0\ntopic_id: {encode_id(METADATA_TOPIC_ID)}"
        replace_file(disk, f"{folder}/{PARTITION_METADATA}", metadata.encode())
        disk.sync_directory(data_folder)


class MetadataLog:
    """The log of the metadata machine. `open`, then it can be read and followed; it is appended to in an epoch."""

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
        has_failed_sync: bool = False,
    ) -> None:
        """`failed` hears of a sync that failed: nobody knows then what is on disk, and the node must stop."""
        self.folder = f"{data_folder}/{FOLDER}"
        self.leading_epoch = NO_EPOCH  # in which this node may append
        self.high_watermark = 0
        self.synced_offset = 0
        self.bytes_since_snapshot = 0
        self.replays_from = 0  # what is below is in the image that the next machine begins with
        self.snapshots = SnapshotStore(disk, executor, self.folder)
        self._last_timestamp_ms = 0
        self._data_folder = data_folder
        self._disk = disk
        self._executor = executor
        self._clock = clock
        self._settings = settings
        self._failed = failed
        self._has_lost_power = has_lost_power
        self._has_failed_sync = has_failed_sync
        self._log: Log | None = None
        self._watchers: list[Told] = []
        self._on_appended: Told | None = None
        self._on_synced: Told | None = None
        self._syncing: asyncio.Task[None] | None = None
        self._sync_waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._truncations = 0
        self._is_beginning_anew = False  # what there was is gone, and what comes next is not there yet
        self._is_closing = False
        self._loaded: LoadedSnapshot | None = None  # kept from one start to the replay that follows it

    # Beginning and end

    def open(self) -> None:
        """Bring the log back from disk. What is above the newest snapshot may not be synced yet."""
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
            has_failed_sync=self._has_failed_sync,
        )
        if self._log.end_offset < newest:
            log.warning("%s ends before its snapshot at %d, so it begins anew there", self.folder, newest)
            self._log.truncate_fully_and_start_at(newest)
        self.synced_offset = newest

    def _recovery_point(self) -> int:
        """What is below the newest snapshot is not looked through, if the file of the epochs knows its epoch. It is
        written when the log is synced, which a snapshot does not wait for."""
        newest = self.snapshots.newest
        if newest is None:
            return 0
        epochs = LeaderEpochs(self._disk, self.folder)
        with suppress(CorruptCheckpoint):  # it is made anew from the log then
            epochs.load()
            return newest.offset if epochs.latest >= newest.epoch else 0
        return newest.offset

    def tell(self, *, appended: Told, synced: Told) -> None:
        """Call these with the new end: of what this node appended as leader, and of what is on disk for certain."""
        self._on_appended, self._on_synced = appended, synced

    async def close(self) -> None:
        """Sync everything and let go of the files. On a full disk this is tried once: nobody counts on the rest."""
        self._is_closing = True
        if self._syncing is not None:
            await asyncio.wait([self._syncing])
        if self._log is not None:
            self._let_go(self._log)
            self._log = None
        for _, waiter in self._sync_waiters:
            waiter.cancel()

    def _let_go(self, open_log: Log) -> None:
        if self._is_beginning_anew:
            open_log.abandon()  # the next start begins behind the snapshot
            return
        try:
            open_log.close(self._clock.wall_ms())
        except OSError as error:
            log.error("%s could not be synced before the end: %s", self.folder, error)

    # What the quorum asks

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
        if following in (0, len(epochs.epochs)):  # none of the records is of such an epoch
            return OffsetAndEpoch(self.start_offset, self._epoch_before(self.start_offset))
        return OffsetAndEpoch(epochs.start_offsets[following], epochs.epochs[following - 1])

    def _epoch_before(self, offset: int) -> int:
        """Of the record before `offset`, which may be in a snapshot only."""
        epoch = self._open_log.epochs.epoch_at(offset - 1)
        if epoch != NO_EPOCH:
            return epoch
        return max((each.epoch for each in self.snapshots.ids if each.offset <= offset), default=0)

    async def voter_sets(self) -> list[VotersAt]:
        """All that the newest snapshot and the log after it say of who may vote, in order."""
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
        """Whole batches from `offset` on, committed or not, for another node that keeps the log. Corruption is found:
        whoever fetches would find it too, and could do nothing about it."""
        batches = self._open_log.read_bytes(offset, max_bytes)
        for header, batch in iterate_batches(batches):
            check_batch(header, batch)
        return batches

    # Appending

    def append(self, decisions: Sequence[Sequence[Record]]) -> None:
        try:
            for records in decisions:
                self._write(build_records(records, timestamp_ms=self._clock.wall_ms()))
        finally:
            self._begin_sync()
            self._tell_appended()

    def append_controls(self, controls: Sequence[Control]) -> int:
        """Write control records as one batch, for the quorum; where the first of them stands."""
        base_offset = self.end_offset
        self._write(build_control_batch(controls, timestamp_ms=self._clock.wall_ms()))
        self._begin_sync()
        return base_offset

    def append_as_follower(self, batches: Buffer, epoch: int) -> list[VotersAt]:
        """Write what the leader of `epoch` sent; the voter sets in it. Nothing is taken that cannot be right."""
        expected = self.end_offset
        size_bytes = 0
        for header, batch in iterate_batches(batches):
            if header.base_offset != expected or not 0 <= header.partition_leader_epoch <= epoch:
                raise CorruptMessage(
                    f"a batch at {header.base_offset} of epoch {header.partition_leader_epoch} where the leader of "
                    f"{epoch} should send {expected}"
                )
            expected = header.next_offset
            size_bytes += len(batch)
            self._last_timestamp_ms = header.max_timestamp
        self._open_log.append_as_follower(memoryview(batches)[:size_bytes], self._clock.wall_ms())
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

    def _tell_appended(self) -> None:
        if self._on_appended is not None and self._log is not None:
            self._on_appended(self.end_offset)

    # Cutting

    def truncate_to(self, offset: int) -> None:
        """Drop what another leader has otherwise. What is committed never is."""
        if offset < self.high_watermark:
            raise AssertionError(f"a cut at {offset}, below the high watermark {self.high_watermark}")
        self._truncations += 1
        self._open_log.truncate_to(offset)
        self.synced_offset = min(self.synced_offset, self.end_offset)
        self._begin_sync()

    async def begin_at(self, snapshot: SnapshotId) -> None:
        """Drop the whole log: it begins anew behind a snapshot. Synced when this returns; on `OSError`, ask again."""
        self._truncations += 1
        self._is_beginning_anew = True
        self._open_log.truncate_fully_and_start_at(snapshot.offset)
        self._is_beginning_anew = False
        self.synced_offset = snapshot.offset
        self.bytes_since_snapshot = 0
        await self._run(self._open_log, self._open_log.begin_flush(self._clock.wall_ms()))

    # Commits

    def watch(self, committed: Told) -> None:
        self._watchers.append(committed)

    def commit(self, high_watermark: int) -> None:
        """The quorum says that everything below is committed."""
        if high_watermark > self.high_watermark:
            self.high_watermark = high_watermark
            for committed in self._watchers:
                committed(high_watermark)

    # Reading

    async def replay(self) -> AsyncGenerator[Iterable[tuple[int, Record]], None]:
        """From `replays_from` on; where the log does not reach back to it, a snapshot leads there."""
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
        """The newest that can be read; None if there is none and the log has it all."""
        loaded, self._loaded = self._loaded, None
        if loaded is not None and loaded.snapshot == self.snapshots.newest:
            return loaded
        loaded = await self.snapshots.load_newest(self.start_offset)
        if loaded is None and self.start_offset > 0:
            raise StorageFailed(f"{self.folder} begins at {self.start_offset}, and no snapshot leads there")
        return loaded

    async def read_committed(self, offset: int) -> bytes:
        """Whole committed batches from `offset` on; empty if there are none."""
        async for batches in self._batches_from(offset, self.high_watermark):
            return batches
        return b""

    async def _batches_from(self, offset: int, until_offset: int | None) -> AsyncGenerator[bytes, None]:
        while (found := self._open_log.read(offset, READ_BYTES, until_offset=until_offset)) is not None:
            batches = await self._executor.run(found.read)
            if len(batches) < len(found):
                raise StorageFailed(f"{self.folder} ends {len(found) - len(batches)} bytes before it should")
            yield batches
            for header, _ in iterate_batches(batches):
                offset = header.next_offset

    @property
    def _open_log(self) -> Log:
        if self._log is None:
            raise NotController("The metadata log is not open.")
        return self._log

    # Syncing

    async def synced(self, offset: int) -> None:
        """Until everything below `offset` is on disk."""
        if self.synced_offset < offset:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._sync_waiters.append((offset, waiter))
            self._begin_sync()
            await waiter

    def _begin_sync(self) -> None:
        if self._syncing is None and self._log is not None:
            self._syncing = asyncio.get_running_loop().create_task(self._sync(self._log))

    async def _sync(self, open_log: Log) -> None:
        """Sync until nothing is left to sync, or somebody waits for this to end."""
        try:
            while self.synced_offset < open_log.end_offset and not self._is_closing:
                await self._sync_once(open_log)
        except Exception as error:  # a sync that failed, or a bug in somebody who was told of it
            self._failed(error)
        finally:
            self._syncing = None

    async def _sync_once(self, open_log: Log) -> None:
        truncations = self._truncations
        flush = open_log.begin_flush(self._clock.wall_ms())
        try:
            await self._run(open_log, flush)
        except OSError as error:
            log.warning("%s cannot be synced yet: %s", self.folder, error)
            await asyncio.sleep(RETRY_S)
            return
        if truncations == self._truncations:  # what was cut meanwhile may have been written anew
            self.synced_offset = flush.end_offset
            self._tell_synced()

    async def _run(self, open_log: Log, flush: Flush) -> None:
        try:
            await self._executor.run(flush.run)
        except (OSError, SyncFailed) as error:
            open_log.flush_failed(flush, error)
            raise
        open_log.finish_flush(flush)

    def _tell_synced(self) -> None:
        for offset, waiter in self._sync_waiters:
            if offset <= self.synced_offset and not waiter.done():
                waiter.set_result(None)
        self._sync_waiters = [each for each in self._sync_waiters if not each[1].done()]
        if self._on_synced is not None:
            self._on_synced(self.synced_offset)

    # Snapshots

    async def take_snapshot(self, image: MetadataImage, end_offset: int, voters: VoterSet | None) -> None:
        """Write the committed image that holds everything below `end_offset`; then drop what it makes superfluous."""
        newest = self.snapshots.newest
        if newest is not None and end_offset <= newest.offset:
            return
        snapshot = SnapshotId(end_offset, self._epoch_before(end_offset))
        self.bytes_since_snapshot = 0
        self._open_log.roll(self._clock.wall_ms())  # whole segments can go, so one ends here
        await self.snapshots.write(snapshot, image, voters, self._last_timestamp_ms)
        await self.drop_superfluous()

    async def drop_superfluous(self) -> None:
        """Old snapshots, and segments that lie below those that are kept. May be interrupted and begun again."""
        await self.snapshots.drop_superfluous()
        kept_from = self.snapshots.kept_from_offset
        if kept_from <= self.end_offset:
            self._open_log.advance_start_offset(kept_from)
        paths = self._open_log.apply_retention(self._clock.wall_ms(), committed_offset=self.high_watermark)
        for path in paths:
            await self._executor.run(self._disk.unlink, path)

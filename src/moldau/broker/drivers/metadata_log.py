"""`__cluster_metadata-0` with a single voter: what is on this disk is committed.

Appends are written at once and synced together: while one sync runs, the batches that come meanwhile wait for the
next, which starts as soon as the last one ends. The high watermark follows the syncs.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Final

from moldau.broker.drivers.metadata_batches import (
    Control,
    Voter,
    build_records,
    kraft_version,
    leader_change,
    read_records,
    voter_set,
)
from moldau.broker.drivers.metadata_snapshots import (
    BrokenSnapshot,
    SnapshotId,
    find_snapshots,
    load_snapshot,
    write_snapshot,
)
from moldau.broker.drivers.quorum_state import QuorumState, read_quorum_state, write_quorum_state
from moldau.broker.settings import MetadataLogSettings
from moldau.machines.metadata.image import MetadataImage
from moldau.machines.metadata.records import EpochBegan, Record
from moldau.model.errors import NotController, StorageFailed
from moldau.model.ids import TopicId
from moldau.model.ports import Clock, Disk, Executor
from moldau.model.units import MiB
from moldau.records.control import build_control_batch
from moldau.records.header import read_header
from moldau.records.record import iterate_batches
from moldau.storage.files import SyncFailed, replace_file
from moldau.storage.folder import PARTITION_METADATA, encode_id
from moldau.storage.log import Log
from moldau.storage.settings import LogSettings

log = logging.getLogger(__name__)

FOLDER: Final = "__cluster_metadata-0"
TOPIC_ID: Final = TopicId(bytes(15) + b"\x01")
READ_BYTES: Final = MiB
RETRY_S: Final = 0.1  # a checkpoint beside the log found no room; there may be some later
SNAPSHOTS_KEPT: Final = 2  # the older one is there for the day the newer one cannot be read


class MetadataLog:
    """The machine's log on this node's disk. `open`, `elect`, then it can be appended to."""

    def __init__(
        self,
        data_folder: str,
        voter: Voter,
        disk: Disk,
        executor: Executor,
        clock: Clock,
        settings: MetadataLogSettings,
        failed: Callable[[BaseException], None],
        *,
        has_lost_power: bool = False,
    ) -> None:
        """`failed` hears of a sync that failed: nobody knows then what is on disk, and the node must stop."""
        self.folder = f"{data_folder}/{FOLDER}"
        self.epoch = -1
        self.high_watermark = 0
        self.bytes_since_snapshot = 0
        self.voter = voter
        self._last_timestamp_ms = 0
        self._data_folder = data_folder
        self._disk = disk
        self._executor = executor
        self._clock = clock
        self._settings = settings
        self._failed = failed
        self._has_lost_power = has_lost_power
        self._log: Log | None = None
        self._snapshots: list[SnapshotId] = []
        self._committed: Callable[[int], None] | None = None
        self._syncing: asyncio.Task[None] | None = None

    # Beginning and end

    def open(self) -> None:
        """Bring the log back from disk."""
        is_new = not self._disk.exists(self.folder)
        self._disk.make_folder(self.folder)
        self._snapshots = find_snapshots(self._disk, self.folder)
        if is_new:
            metadata = f"version: 0\ntopic_id: {encode_id(TOPIC_ID)}"
            replace_file(self._disk, f"{self.folder}/{PARTITION_METADATA}", metadata.encode())
            self._disk.sync_folder(self._data_folder)
        newest = self._snapshots[-1].offset if self._snapshots else 0
        oldest_kept = self._snapshots[-SNAPSHOTS_KEPT].offset if len(self._snapshots) >= SNAPSHOTS_KEPT else 0
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
            recovery_point=newest,
            log_start_offset=oldest_kept,
            has_lost_power=self._has_lost_power,
        )
        if self._log.end_offset < newest:
            log.warning("%s ends before its snapshot at %d, so it begins anew there", self.folder, newest)
            self._log.truncate_and_start_at(newest)

    def elect(self) -> None:
        """Win the election, which takes one vote: a new epoch, remembered before anything is written in it."""
        state = read_quorum_state(self._disk, self.folder)
        last_snapshot_epoch = self._snapshots[-1].epoch if self._snapshots else 0
        self.epoch = max(state.leader_epoch, self._open_log.epochs.latest, last_snapshot_epoch, 0) + 1
        me = self.voter
        write_quorum_state(self._disk, self.folder, QuorumState(self.epoch, me.voter_id, me.voter_id, me.directory_id))
        controls: list[Control] = [leader_change(me.voter_id, [me])]
        if self.end_offset == 0:
            controls += [kraft_version(), voter_set([me])]
        self._write(build_control_batch(controls, timestamp_ms=self._clock.wall_ms()))
        self._begin_sync()

    async def close(self) -> None:
        """Sync everything and let go of the files."""
        if self._syncing is not None:
            await asyncio.wait([self._syncing])
        if self._log is not None:
            self._log.close(self._clock.wall_ms())
            self._log = None

    # What the driver asks for

    @property
    def end_offset(self) -> int:
        return self._open_log.end_offset

    def watch(self, committed: Callable[[int], None]) -> None:
        self._committed = committed

    def append(self, decisions: Sequence[Sequence[Record]]) -> None:
        try:
            for records in decisions:
                self._write(build_records(records, timestamp_ms=self._clock.wall_ms()))
        finally:
            self._begin_sync()

    async def replay(self) -> AsyncGenerator[Iterable[tuple[int, Record]], None]:
        """The newest snapshot that can be read, then what the log holds after it."""
        offset = self._open_log.start_offset
        for snapshot in reversed(self._snapshots):
            try:
                records = await load_snapshot(self._disk, self._executor, self.folder, snapshot)
            except (BrokenSnapshot, OSError) as error:
                log.error("a snapshot of the metadata cannot be read: %s", error)
                continue
            yield [(snapshot.offset - 1, EpochBegan(snapshot.epoch))]
            yield records
            offset = snapshot.offset
            break
        else:
            if offset > 0:
                raise StorageFailed(f"{self.folder} begins at {offset}, and no snapshot leads there")
        async for chunk in self._read_from(offset):
            yield chunk

    async def _read_from(self, offset: int) -> AsyncGenerator[Iterable[tuple[int, Record]], None]:
        self.bytes_since_snapshot = 0
        while (found := self._open_log.read(offset, READ_BYTES)) is not None:
            batches = await self._executor.run(found.read)
            if len(batches) < len(found):
                raise StorageFailed(f"{self.folder} ends {len(found) - len(batches)} bytes before it should")
            self.bytes_since_snapshot += len(batches)
            yield read_records(batches)
            for header, _ in iterate_batches(batches):
                offset = header.next_offset

    @property
    def _open_log(self) -> Log:
        if self._log is None:
            raise NotController("The metadata log is not open.")
        return self._log

    def _write(self, batch: bytearray) -> None:
        header = read_header(batch)
        self._open_log.append(memoryview(batch), header, self.epoch, self._clock.wall_ms())
        self.bytes_since_snapshot += len(batch)
        self._last_timestamp_ms = header.max_timestamp

    def _begin_sync(self) -> None:
        if self._syncing is None and self._log is not None:
            self._syncing = asyncio.get_running_loop().create_task(self._sync(self._log))

    async def _sync(self, open_log: Log) -> None:
        """Sync until nothing is left to sync."""
        try:
            while self.high_watermark < open_log.end_offset:
                await self._sync_once(open_log)
        except Exception as error:  # a sync that failed, or a bug in somebody who was told of a commit
            self._failed(error)
        finally:
            self._syncing = None

    async def _sync_once(self, open_log: Log) -> None:
        flush = open_log.begin_flush(self._clock.wall_ms())
        try:
            await self._executor.run(flush.run)
        except (OSError, SyncFailed) as error:
            open_log.flush_failed(flush, error)
            if isinstance(error, SyncFailed):
                raise
            log.warning("%s cannot be synced yet: %s", self.folder, error)
            await asyncio.sleep(RETRY_S)
            return
        open_log.finish_flush(flush)
        self.high_watermark = flush.end_offset
        if self._committed is not None:
            self._committed(self.high_watermark)

    # Snapshots

    async def take_snapshot(self, image: MetadataImage, end_offset: int) -> None:
        """Write the committed image that holds everything below `end_offset`; then drop what it makes superfluous."""
        open_log = self._open_log
        snapshot = SnapshotId(end_offset, max(open_log.epochs.epoch_at(end_offset - 1), 0))
        if self._snapshots and snapshot.offset <= self._snapshots[-1].offset:
            return
        self.bytes_since_snapshot = 0
        open_log.roll(self._clock.wall_ms())  # whole segments can go, so one ends here
        await write_snapshot(
            self._disk, self._executor, self.folder, snapshot, image, [self.voter], self._last_timestamp_ms
        )
        self._snapshots.append(snapshot)
        await self.drop_superfluous()

    async def drop_superfluous(self) -> None:
        """Old snapshots, and segments that lie below those that are kept. May be interrupted and begun again."""
        while len(self._snapshots) > SNAPSHOTS_KEPT:
            await self._executor.run(self._disk.unlink, f"{self.folder}/{self._snapshots[0].name}")
            del self._snapshots[0]
        if len(self._snapshots) == SNAPSHOTS_KEPT:
            self._open_log.advance_start(self._snapshots[0].offset)
        paths = self._open_log.apply_retention(self._clock.wall_ms(), committed_offset=self.high_watermark)
        for path in paths:
            await self._executor.run(self._disk.unlink, path)

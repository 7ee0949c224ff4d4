"""Moves of logs between the log dirs of this broker (KIP-113, KIP-858), one at a time.

    copy      batches below the high watermark are copied into a future log, `<topic>-<partition>.<id>-future`
    assign    the controller learns the new log dir: if that one fails from now on, the replica counts as offline
    swap      in one turn of the loop: the rest is copied, the future log takes the name and the place of the old one
    delete    once the rename is durable and the checkpoints are written, the old log is deleted

A broker that stops before the swap begins the copy again at the next start. One that stops after it may find the log in
both log dirs, and keeps the one that the metadata name. Clients notice nothing: role, waiters and sessions of the
partition stay.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol

from moldau.broker.configs.replica_settings import ReplicaSettings
from moldau.broker.partitions.log_flusher import LogFlusher
from moldau.broker.partitions.log_stores import LogStores
from moldau.broker.partitions.partition import FLUSH_EVERY_MESSAGE, Partition
from moldau.broker.replicas.throttles import Bucket
from moldau.broker.runtime.log_dirs import path_of
from moldau.machines.metadata.image import MetadataImage
from moldau.model.errors import KafkaError, StorageFailed
from moldau.model.ids import DirectoryId
from moldau.model.ports import Clock, Executor
from moldau.model.units import KiB, MiB
from moldau.records.header import HEADER_BYTES, read_header
from moldau.storage.files import SyncFailed
from moldau.storage.log import Log

logger = logging.getLogger(__name__)

CHUNK_BYTES: Final = 256 * KiB
SWAP_BYTES_MAX: Final = 1 * MiB  # what the swap copies in one turn
PAUSE_MS: Final = 20.0


class MoveRoles(Protocol):
    """The role of a partition whose log moves."""

    def assign_dir(self, partition: Partition, directory: DirectoryId | None) -> None:
        """Report this log dir to the controller instead of the current one; None: report the current one again."""
        ...

    def log_replaced(self, partition: Partition) -> None:
        """The partition has another log with the same records."""
        ...


@dataclass(slots=True, eq=False)
class LogMove:
    """A requested move."""

    partition: Partition
    path: str  # the log dir that it moves to
    future: Log | None = None  # None until the copy begins

    @property
    def lag(self) -> int:
        """How many offsets the copy is behind."""
        log = self.partition.log
        return log.end_offset - (log.start_offset if self.future is None else self.future.end_offset)


class LogMoves:
    """A failed move is logged and given up; the log stays where it is."""

    def __init__(
        self,
        stores: LogStores,
        roles: MoveRoles,
        flusher: LogFlusher,
        clock: Clock,
        executor: Executor,
        settings: Callable[[], ReplicaSettings],
        image: Callable[[], MetadataImage],
        node_id: int,
        checkpoint: Callable[[], Awaitable[None]],
        is_compacting: Callable[[Partition], bool],
    ) -> None:
        """`checkpoint` writes all checkpoints of logs."""
        self._stores, self._roles, self._flusher = stores, roles, flusher
        self._clock, self._executor = clock, executor
        self._settings, self._image, self._node_id = settings, image, node_id
        self._checkpoint, self._is_compacting = checkpoint, is_compacting
        self._bucket = Bucket(clock)
        self._moves: dict[Partition, LogMove] = {}
        self._task: asyncio.Task[None] | None = None
        self.completed = 0

    @property
    def all(self) -> list[LogMove]:
        return list(self._moves.values())

    def request(self, partition: Partition, path: str) -> None:
        """Move a log to this log dir; if it is there already, or moves elsewhere, that move ends."""
        moving = self._moves.get(partition)
        if moving is not None and moving.path == path:
            return
        self._moves.pop(partition, None)
        if path_of(partition.log.folder) == path:
            return
        self._moves[partition] = LogMove(partition, path)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while self._moves:
                await self._run_next(next(iter(self._moves.values())))
        finally:
            self._task = None

    async def _run_next(self, move: LogMove) -> None:
        name, path = move.partition.name, move.path
        try:
            if await self._move(move):
                self.completed += 1
                logger.info("%s moved to log dir %s", name, path)
        except (OSError, SyncFailed, KafkaError) as error:
            logger.error(
                "%s stays in log dir %s: moving it to %s failed: %s", name, move.partition.log.folder, path, error
            )
        except Exception as bug:
            logger.error("Unexpected error while moving %s; please report this bug", name, exc_info=bug)
        finally:
            if self._is_wanted(move):
                del self._moves[move.partition]
            self._roles.assign_dir(move.partition, None)
            if move.future is not None and move.future is not move.partition.log:
                await self._stores.abandon_move(move.future)

    def _is_wanted(self, move: LogMove) -> bool:
        return self._moves.get(move.partition) is move

    def _can_continue(self, move: LogMove) -> bool:
        if not self._stores.log_dirs.is_online(move.path):
            raise StorageFailed(f"log dir {move.path} is offline")
        return self._is_wanted(move) and move.partition.role.is_open

    async def _move(self, move: LogMove) -> bool:
        """Return whether the log has moved: it may be deleted, or the request changed."""
        partition = move.partition
        future = move.future = self._stores.create_future(partition, move.path)
        while self._can_continue(move):
            await self._copy(move, future)
            await self._flush(future)
            if not await self._assign(move):
                return False
            old = partition.log
            if self._try_swap(move, future):
                await self._complete(move, old)
                return True
            await asyncio.sleep(PAUSE_MS / 1000)
        return False

    # -- copy

    async def _copy(self, move: LogMove, future: Log) -> None:
        """Copy what is committed."""
        partition = move.partition
        while self._can_continue(move) and future.end_offset < partition.high_watermark:
            await self._throttle()
            if partition.corruption.first is not None:
                raise StorageFailed(f"it is corrupt: {partition.corruption.first}")
            if partition.log.start_offset > future.end_offset:  # deleted meanwhile
                future.truncate_fully_and_start_at(partition.log.start_offset)
            found = partition.read(future.end_offset, CHUNK_BYTES, partition.high_watermark, at_least_one=True)
            if found is None:
                return
            batches = await self._executor.run(found.read)
            self._append(partition, future, batches)
            await asyncio.sleep(0)

    async def _throttle(self) -> None:
        while (delay_ms := self._bucket.delay_ms(self._settings().alter_log_dirs_rate)) >= 1:
            await asyncio.sleep(delay_ms / 1000)

    def _append(self, partition: Partition, future: Log, batches: bytes) -> None:
        """The first batch may begin before the log start offset (after DeleteRecords)."""
        self._bucket.took(len(batches), self._settings().alter_log_dirs_rate)
        if future.start_offset == future.end_offset and len(batches) >= HEADER_BYTES:
            first = read_header(memoryview(batches))
            if first.base_offset < future.end_offset:
                future.truncate_fully_and_start_at(first.base_offset)
        future.append_as_follower(batches, self._clock.wall_ms())
        if partition.log.start_offset > future.start_offset:
            future.advance_start_offset(min(partition.log.start_offset, future.end_offset))

    async def _flush(self, future: Log) -> None:
        flush = future.begin_flush(self._clock.wall_ms())
        try:
            await self._executor.run(flush.run)
        except (OSError, SyncFailed) as error:
            future.flush_failed(flush, error)
            raise
        future.finish_flush(flush)

    # -- assign

    async def _assign(self, move: LogMove) -> bool:
        """Wait until the metadata have the new log dir."""
        directory = self._stores.log_dirs.ids[move.path]
        while self._can_continue(move):
            state = self._image().partition(*move.partition.name)
            if state is None:
                return False
            if state.directory_of(self._node_id) == directory:
                return True
            self._roles.assign_dir(move.partition, directory)
            await asyncio.sleep(PAUSE_MS / 1000)
        return False

    # -- swap

    def _try_swap(self, move: LogMove, future: Log) -> bool:
        """In one turn: nothing is appended, truncated or compacted meanwhile."""
        partition, log = move.partition, move.partition.log
        is_busy = bool(log.append_buffer) or partition.has_unflushed_truncation or self._is_compacting(partition)
        if is_busy or not self._can_continue(move):
            return False
        if not self._copy_rest(partition, future):
            return False
        future.adopt(log.settings)
        future.epochs.assign(log.epochs.latest, future.end_offset)
        is_synced = log.settings.flush_messages == FLUSH_EVERY_MESSAGE
        if is_synced:  # what is acknowledged is on disk, also after a power loss in the next moment
            future.flush(self._clock.wall_ms())
        self._stores.put_in_place(partition, future, move.path, is_synced=is_synced)
        partition.log = future
        self._roles.log_replaced(partition)
        return True

    def _copy_rest(self, partition: Partition, future: Log) -> bool:
        """Copy what is not committed yet; return whether the future log has the same records then."""
        log = partition.log
        if future.end_offset > log.end_offset or not _have_same_epoch(log, future):
            raise StorageFailed("it was truncated")
        rest = log.read_bytes(future.end_offset, SWAP_BYTES_MAX)
        if rest:
            self._append(partition, future, rest)
        if log.start_offset > future.start_offset:
            future.advance_start_offset(min(log.start_offset, future.end_offset))
        return future.end_offset == log.end_offset and future.start_offset == log.start_offset

    async def _complete(self, move: LogMove, old: Log) -> None:
        """Make the new place durable before the old log is deleted."""
        partition = move.partition
        await self._stores.sync()
        await self._checkpoint()
        await self._flusher.finish(partition)
        partition.bring_to_disk()
        await self._stores.delete_moved(partition, old)


def _have_same_epoch(log: Log, future: Log) -> bool:
    last_offset = future.end_offset - 1
    return last_offset < log.start_offset or log.epochs.epoch_at(last_offset) == future.epochs.epoch_at(last_offset)

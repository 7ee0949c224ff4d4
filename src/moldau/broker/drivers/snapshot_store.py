"""The snapshots beside the metadata log: list, write and load them, and receive them from the leader."""

import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, NamedTuple

from moldau.broker.drivers.metadata_snapshots import (
    PARTIAL,
    SUFFIX,
    CorruptSnapshot,
    SnapshotId,
    check_snapshot,
    find_snapshots,
    snapshot_records,
    write_snapshot,
)
from moldau.broker.drivers.quorum_records import voter_sets_in
from moldau.machines.metadata.image import MetadataImage
from moldau.machines.metadata.records import Record
from moldau.machines.raft import VoterSet
from moldau.model.errors import PositionOutOfRange, SnapshotNotFound
from moldau.model.ports import Disk, Executor, File
from moldau.storage.files import sync, sync_directory, write_all

log = logging.getLogger(__name__)

KEPT: Final = 2  # the older one is a fallback if the newer one cannot be read


class LoadedSnapshot(NamedTuple):
    """A complete snapshot, as read from disk."""

    snapshot: SnapshotId
    data: bytes

    def records(self) -> Iterable[tuple[int, Record]]:
        return snapshot_records(self.snapshot, self.data)

    def voters(self) -> VoterSet | None:
        """The voters in it; None with static voters."""
        sets = voter_sets_in(self.data)
        return sets[-1].voters if sets else None


class SnapshotStore:
    """The snapshots in one directory, oldest first."""

    def __init__(self, disk: Disk, executor: Executor, folder: str) -> None:
        self._disk = disk
        self._executor = executor
        self._folder = folder
        self.ids: list[SnapshotId] = []
        self._received = 0

    def open(self) -> None:
        self.ids = find_snapshots(self._disk, self._folder)

    @property
    def newest(self) -> SnapshotId | None:
        return self.ids[-1] if self.ids else None

    @property
    def kept_from_offset(self) -> int:
        """Records below this offset are in two snapshots, so the log may drop them."""
        return self.ids[-KEPT].offset if len(self.ids) >= KEPT else 0

    async def load_newest(self, start_offset: int) -> LoadedSnapshot | None:
        """Load the newest readable snapshot from which the log after `start_offset` continues."""
        for snapshot in reversed([each for each in self.ids if each.offset >= start_offset]):
            try:
                data = await self._executor.run(self._disk.read, self._path(snapshot))
                check_snapshot(snapshot, data)
            except (CorruptSnapshot, OSError) as error:
                log.error("Cannot read metadata snapshot: %s", error)
            else:
                return LoadedSnapshot(snapshot, data)
        return None

    async def write(
        self, snapshot: SnapshotId, image: MetadataImage, voters: VoterSet | None, timestamp_ms: int
    ) -> None:
        await write_snapshot(self._disk, self._executor, self._folder, snapshot, image, voters, timestamp_ms)
        self._add(snapshot)

    async def drop_obsolete(self) -> None:
        """Files that cannot be deleted now are deleted after the next start."""
        while len(self.ids) > KEPT:
            oldest, *self.ids = self.ids  # at once: another call may be deleting, too
            await self._executor.run(self._disk.unlink, self._path(oldest))

    async def read_piece(self, snapshot: SnapshotId, position: int, max_bytes: int) -> tuple[int, bytes]:
        """The size of a snapshot, and a range of its bytes."""
        if snapshot not in self.ids:
            raise SnapshotNotFound(f"Snapshot {snapshot.name} does not exist.")
        file = self._disk.open(self._path(snapshot), read_only=True)
        try:
            size_bytes = file.size()
            if not 0 <= position < size_bytes:
                raise PositionOutOfRange(f"{snapshot.name} has {size_bytes} bytes.")
            return size_bytes, await self._executor.run(file.pread, min(max_bytes, size_bytes - position), position)
        finally:
            file.close()

    def receive(self, snapshot: SnapshotId) -> "IncomingSnapshot":
        """Create a file for a snapshot that is received in pieces; concurrent ones do not interfere."""
        self._received += 1
        path = f"{self._path(snapshot).removesuffix(SUFFIX)}-{self._received}{SUFFIX}{PARTIAL}"
        return IncomingSnapshot(self, snapshot, path, self._disk.open(path, create=True))

    async def keep(self, snapshot: SnapshotId, path: str, file: File) -> LoadedSnapshot:
        """Flush the received snapshot, verify it, and rename it into place."""
        data = await self._executor.run(file.pread, file.size(), 0)
        check_snapshot(snapshot, data)
        await self._executor.run(sync, file)
        self._disk.rename(path, self._path(snapshot))
        await self._executor.run(sync_directory, self._disk, self._folder)
        self._add(snapshot)
        return LoadedSnapshot(snapshot, data)

    def remove(self, path: str) -> None:
        """Delete an incomplete file. If that fails, the next start deletes it."""
        with suppress(OSError):
            self._disk.unlink(path)

    def _add(self, snapshot: SnapshotId) -> None:
        if snapshot not in self.ids:
            self.ids = sorted([*self.ids, snapshot])

    def _path(self, snapshot: SnapshotId) -> str:
        return f"{self._folder}/{snapshot.name}"


class IncomingSnapshot:
    """A snapshot being received from the leader. `add` until it `is_whole`, then `keep`; or `drop`."""

    def __init__(self, store: SnapshotStore, snapshot: SnapshotId, path: str, file: File) -> None:
        self.snapshot = snapshot
        self.position = 0
        self.size_bytes: int | None = None
        self._store = store
        self._path = path
        self._file = file
        file.truncate(0)

    @property
    def is_whole(self) -> bool:
        return self.position == self.size_bytes

    def add(self, position: int, size_bytes: int, piece: bytes | memoryview) -> None:
        """Append a piece; raises `CorruptSnapshot` if it does not follow the previous one."""
        if position != self.position or self.size_bytes not in (None, size_bytes):
            raise CorruptSnapshot(f"piece at {position} of {size_bytes} bytes, expected {self.position}")
        if not piece or position + len(piece) > size_bytes:
            raise CorruptSnapshot(f"piece of {len(piece)} bytes at {position} of {size_bytes}")
        write_all(self._file, piece, position)
        self.position += len(piece)
        self.size_bytes = size_bytes

    async def keep(self) -> LoadedSnapshot:
        """Raises `CorruptSnapshot` or `OSError` on failure; nothing is left behind then."""
        try:
            return await self._store.keep(self.snapshot, self._path, self._file)
        except (CorruptSnapshot, OSError):
            self._store.remove(self._path)
            raise
        finally:
            self._file.close()

    def drop(self) -> None:
        self._file.close()
        self._store.remove(self._path)

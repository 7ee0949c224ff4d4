"""The snapshots beside the metadata log: which there are, a new one written, one taken over from the leader."""

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

KEPT: Final = 2  # the older one is there for the day the newer one cannot be read


class LoadedSnapshot(NamedTuple):
    """A whole snapshot, as it was read."""

    snapshot: SnapshotId
    data: bytes

    def records(self) -> Iterable[tuple[int, Record]]:
        return snapshot_records(self.snapshot, self.data)

    def voters(self) -> VoterSet | None:
        """Whom it names; None where the settings fix the voters."""
        sets = voter_sets_in(self.data)
        return sets[-1].voters if sets else None


class SnapshotStore:
    """The snapshots in one folder, the oldest first."""

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
        """What the log holds below it is in two snapshots: it can go."""
        return self.ids[-KEPT].offset if len(self.ids) >= KEPT else 0

    async def load_newest(self, start_offset: int) -> LoadedSnapshot | None:
        """The newest that can be read, and that the log after `start_offset` goes on from."""
        for snapshot in reversed([each for each in self.ids if each.offset >= start_offset]):
            try:
                data = await self._executor.run(self._disk.read, self._path(snapshot))
                check_snapshot(snapshot, data)
            except (CorruptSnapshot, OSError) as error:
                log.error("a snapshot of the metadata cannot be read: %s", error)
            else:
                return LoadedSnapshot(snapshot, data)
        return None

    async def write(
        self, snapshot: SnapshotId, image: MetadataImage, voters: VoterSet | None, timestamp_ms: int
    ) -> None:
        await write_snapshot(self._disk, self._executor, self._folder, snapshot, image, voters, timestamp_ms)
        self._add(snapshot)

    async def drop_superfluous(self) -> None:
        """What cannot be removed goes after the next start."""
        while len(self.ids) > KEPT:
            oldest, *self.ids = self.ids  # at once: somebody else may be dropping, too
            await self._executor.run(self._disk.unlink, self._path(oldest))

    async def read_piece(self, snapshot: SnapshotId, position: int, max_bytes: int) -> tuple[int, bytes]:
        """The size of a snapshot, and some of its bytes."""
        if snapshot not in self.ids:
            raise SnapshotNotFound(f"There is no snapshot {snapshot.name}.")
        file = self._disk.open(self._path(snapshot), read_only=True)
        try:
            size_bytes = file.size()
            if not 0 <= position < size_bytes:
                raise PositionOutOfRange(f"{snapshot.name} has {size_bytes} bytes.")
            return size_bytes, await self._executor.run(file.pread, min(max_bytes, size_bytes - position), position)
        finally:
            file.close()

    def receive(self, snapshot: SnapshotId) -> "IncomingSnapshot":
        """Room for a snapshot that comes from the leader in pieces: a file of its own, whatever else is under way."""
        self._received += 1
        path = f"{self._path(snapshot).removesuffix(SUFFIX)}-{self._received}{SUFFIX}{PARTIAL}"
        return IncomingSnapshot(self, snapshot, path, self._disk.open(path, create=True))

    async def keep(self, snapshot: SnapshotId, path: str, file: File) -> LoadedSnapshot:
        """Sync what has come, see that it is whole, and put it into its place."""
        data = await self._executor.run(file.pread, file.size(), 0)
        check_snapshot(snapshot, data)
        await self._executor.run(sync, file)
        self._disk.rename(path, self._path(snapshot))
        await self._executor.run(sync_directory, self._disk, self._folder)
        self._add(snapshot)
        return LoadedSnapshot(snapshot, data)

    def remove(self, path: str) -> None:
        """What was not kept. If the disk refuses, it goes at the next start."""
        with suppress(OSError):
            self._disk.unlink(path)

    def _add(self, snapshot: SnapshotId) -> None:
        if snapshot not in self.ids:
            self.ids = sorted([*self.ids, snapshot])

    def _path(self, snapshot: SnapshotId) -> str:
        return f"{self._folder}/{snapshot.name}"


class IncomingSnapshot:
    """A snapshot on its way from the leader. `add` until it `is_whole`, then `keep`; or `drop`."""

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
        """`CorruptSnapshot` if the piece does not follow what there is."""
        if position != self.position or self.size_bytes not in (None, size_bytes):
            raise CorruptSnapshot(f"a piece at {position} of {size_bytes} bytes where {self.position} is due")
        if not piece or position + len(piece) > size_bytes:
            raise CorruptSnapshot(f"a piece of {len(piece)} bytes at {position} of {size_bytes}")
        write_all(self._file, piece, position)
        self.position += len(piece)
        self.size_bytes = size_bytes

    async def keep(self) -> LoadedSnapshot:
        """`CorruptSnapshot` or `OSError` if that cannot be; then nothing of it is left."""
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

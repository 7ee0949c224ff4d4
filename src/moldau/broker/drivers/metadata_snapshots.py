"""Snapshot files: the whole metadata at one offset, in Kafka's format.

    <offset, 20 digits>-<epoch, 10 digits>.checkpoint

A control batch opens the file (header, kraft.version and voters), batches of records follow, and a footer completes it.
It is written under a temporary name and then renamed, so a file under the final name is complete.
"""

import asyncio
import logging
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from moldau.broker.drivers.metadata_batches import build_records, check_batch, read_records
from moldau.broker.drivers.quorum_records import (
    Control,
    kraft_version,
    snapshot_footer,
    snapshot_header,
    voter_set,
)
from moldau.machines.metadata.image import MetadataImage
from moldau.machines.metadata.records import Record
from moldau.machines.metadata.snapshot import records_of
from moldau.machines.raft import VoterSet
from moldau.model.errors import KafkaError
from moldau.model.ports import Disk, Executor
from moldau.records.control import ControlType, build_control_batch, iterate_control_records
from moldau.records.header import BatchHeader
from moldau.records.record import iterate_batches
from moldau.storage.files import sync, sync_directory, write_all

log = logging.getLogger(__name__)

SUFFIX: Final = ".checkpoint"
PARTIAL: Final = ".part"
BATCH_RECORDS: Final = 64  # about one millisecond, the limit for one turn of the event loop
_NAME: Final = re.compile(r"(\d{20})-(\d{10})\.checkpoint")


class CorruptSnapshot(Exception):
    """The file is not a complete snapshot."""


class SnapshotId(NamedTuple):
    """Holds every record below `offset`; `epoch` is that of the last one."""

    offset: int
    epoch: int

    @property
    def name(self) -> str:
        return f"{self.offset:020d}-{self.epoch:010d}{SUFFIX}"


def find_snapshots(disk: Disk, folder: str) -> list[SnapshotId]:
    """List the snapshots, oldest first. Leftovers of interrupted writers are removed."""
    found = []
    for name in disk.list(folder):
        match = _NAME.fullmatch(name)
        if match is not None:
            found.append(SnapshotId(int(match[1]), int(match[2])))
        elif name.endswith(SUFFIX + PARTIAL):
            disk.unlink(f"{folder}/{name}")
    return sorted(found)


async def write_snapshot(
    disk: Disk,
    executor: Executor,
    folder: str,
    snapshot: SnapshotId,
    image: MetadataImage,
    voters: VoterSet | None,
    timestamp_ms: int,
) -> None:
    """Write the image, a few records per turn of the loop. Images are immutable, so newer metadata does not
    interfere."""
    path = f"{folder}/{snapshot.name}"
    file = disk.open(path + PARTIAL, create=True)
    try:
        file.truncate(0)
        position = 0
        opening = _opening(voters, timestamp_ms)
        for batch in snapshot_batches(snapshot, image, opening, timestamp_ms):
            write_all(file, batch, position)
            position += len(batch)
            await asyncio.sleep(0)
        await executor.run(sync, file)
    finally:
        file.close()
    disk.rename(path + PARTIAL, path)
    await executor.run(sync_directory, disk, folder)


def _opening(voters: VoterSet | None, timestamp_ms: int) -> list[Control]:
    """With static voters, a snapshot does not contain them."""
    if voters is None:
        return [snapshot_header(timestamp_ms)]
    return [snapshot_header(timestamp_ms), kraft_version(), voter_set(voters)]


def bootstrap_snapshot(voters: VoterSet, timestamp_ms: int) -> tuple[SnapshotId, bytes]:
    """The snapshot of a newly formatted log directory: empty, but for the first voters."""
    snapshot = SnapshotId(0, 0)
    opening = _opening(voters, timestamp_ms)
    return snapshot, b"".join(snapshot_batches(snapshot, MetadataImage(), opening, timestamp_ms))


def snapshot_batches(
    snapshot: SnapshotId, image: MetadataImage, opening: Sequence[Control], timestamp_ms: int
) -> Iterator[bytearray]:
    """Yield the batches of a snapshot file."""
    offset, epoch = 0, snapshot.epoch
    yield build_control_batch(opening, timestamp_ms=timestamp_ms, leader_epoch=epoch)
    offset += len(opening)
    records = records_of(image)
    while some := list(islice(records, BATCH_RECORDS)):
        yield build_records(some, timestamp_ms=timestamp_ms, base_offset=offset, leader_epoch=epoch)
        offset += len(some)
    yield build_control_batch([snapshot_footer()], timestamp_ms=timestamp_ms, base_offset=offset, leader_epoch=epoch)


def snapshot_records(snapshot: SnapshotId, data: bytes) -> Iterator[tuple[int, Record]]:
    """The records of a complete snapshot, decoded lazily."""
    # The machine applies a snapshot in one step: all its records are at the last offset it covers.
    return ((snapshot.offset - 1, record) for _, record in read_records(data))


def check_snapshot(snapshot: SnapshotId, data: bytes) -> None:
    """Raise `CorruptSnapshot` if the snapshot is not complete."""
    try:
        _check(data)
    except KafkaError as error:
        raise CorruptSnapshot(f"{snapshot.name}: {error}") from None


def _check(data: bytes) -> None:
    first: list[ControlType] = []
    last: list[ControlType] = []
    size_bytes = 0
    for header, batch in iterate_batches(data):
        check_batch(header, batch)
        last = _controls(header, batch)
        first = first or last
        size_bytes += len(batch)
    if size_bytes != len(data):
        raise CorruptSnapshot(f"{len(data) - size_bytes} bytes at the end are not a whole batch")
    if first[:1] != [ControlType.SNAPSHOT_HEADER] or last != [ControlType.SNAPSHOT_FOOTER]:
        raise CorruptSnapshot("the header or footer is missing")


def _controls(header: BatchHeader, batch: memoryview) -> list[ControlType]:
    return [kind for kind, _ in iterate_control_records(batch)] if header.is_control else []

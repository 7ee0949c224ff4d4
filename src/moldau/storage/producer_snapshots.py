"""Producer snapshots: `<offset>.snapshot` files in Kafka's format, with the producer state below their offset."""

import struct
from collections.abc import Sequence
from contextlib import suppress
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from moldau.model.ids import NO_OFFSET
from moldau.model.ports import Disk
from moldau.records.header import SEQUENCE_MODULUS
from moldau.storage.files import replace_cache
from moldau.storage.names import DELETED, SNAPSHOT, offset_in, path_of
from moldau.storage.producer_state import AppendedBatch, Producer, Producers

_VERSION: Final = 1
_HEAD: Final = Struct(">hI")  # version, and CRC32C of the rest
_COUNT: Final = Struct(">i")
_ENTRY: Final = Struct(">qhiqiqiq")


class CorruptSnapshot(ValueError):
    """A snapshot cannot be used; an older one and the log replace it."""


def encode(producers: Producers) -> bytes:
    entries = b"".join(_encode_entry(key, each) for key, each in producers.by_id.items())
    body = _COUNT.pack(len(producers.by_id)) + entries
    return _HEAD.pack(_VERSION, crc32c(body)) + body


def _encode_entry(producer_id: int, producer: Producer) -> bytes:
    last = producer.batches[-1] if producer.batches else AppendedBatch(-1, -1, NO_OFFSET, NO_OFFSET, -1)
    return _ENTRY.pack(
        producer_id,
        producer.epoch,
        last.last_sequence,
        last.last_offset,
        last.last_offset - last.base_offset,
        max(producer.last_timestamp, producer.last_seen_ms),  # determines its expiration
        producer.coordinator_epoch,
        producer.transaction_start,
    )


def decode(data: bytes) -> list[tuple[int, Producer]]:
    try:
        version, crc = _HEAD.unpack_from(data)
        (count,) = _COUNT.unpack_from(data, _HEAD.size)
    except struct.error:
        raise CorruptSnapshot("truncated snapshot") from None
    if version != _VERSION:
        raise CorruptSnapshot(f"the snapshot has version {version}")
    if crc != crc32c(data[_HEAD.size :]):
        raise CorruptSnapshot("snapshot checksum mismatch")
    start = _HEAD.size + _COUNT.size
    if len(data) != start + count * _ENTRY.size:
        raise CorruptSnapshot("snapshot length does not match its count")
    return [_decode_entry(fields) for fields in _ENTRY.iter_unpack(data[start:])]


def _decode_entry(fields: tuple[int, ...]) -> tuple[int, Producer]:
    producer_id, epoch, last_sequence, last_offset, delta, timestamp, coordinator_epoch, transaction_start = fields
    producer = Producer(
        epoch=epoch,
        last_timestamp=timestamp,
        last_seen_ms=timestamp,
        coordinator_epoch=coordinator_epoch,
        transaction_start=transaction_start,
    )
    if last_offset >= 0:
        first_sequence = (last_sequence - delta) % SEQUENCE_MODULUS if last_sequence >= 0 else last_sequence
        producer.batches.append(
            AppendedBatch(first_sequence, last_sequence, last_offset - delta, last_offset, timestamp)
        )
        producer.next_sequence = (last_sequence + 1) % SEQUENCE_MODULUS
    return producer_id, producer


class LoadedSnapshot(NamedTuple):
    offset: int
    producers: list[tuple[int, Producer]]


def newest_valid(disk: Disk, folder: str, offsets: Sequence[int]) -> LoadedSnapshot | None:
    """Return the newest valid one of these snapshots; corrupt and missing ones are skipped."""
    for offset in reversed(offsets):
        with suppress(CorruptSnapshot, FileNotFoundError):
            return LoadedSnapshot(offset, decode(disk.read(path_of(folder, offset, SNAPSHOT))))
    return None


class Snapshots:
    """The snapshot files of a partition."""

    __slots__ = ("_disk", "_folder", "offsets", "unsynced")

    def __init__(self, disk: Disk, folder: str, names: list[str]) -> None:
        self._disk = disk
        self._folder = folder
        found = (offset_in(name) for name in names if name.endswith(SNAPSHOT))
        self.offsets = sorted(offset for offset in found if offset is not None)
        self.unsynced: list[str] = []  # paths for the next flush

    def renamed_to(self, folder: str) -> None:
        self._folder = folder

    def take(self, producers: Producers) -> bool:
        """Write the state at its end offset, unless it exists or is empty; return whether it was written."""
        offset = producers.end_offset
        if offset in self.offsets or offset == 0:
            return False
        path = path_of(self._folder, offset, SNAPSHOT)
        replace_cache(self._disk, path, encode(producers))
        self.offsets.append(offset)
        self.offsets.sort()
        self.unsynced.append(path)
        return True

    def load_latest(self, producers: Producers, first_offset: int, at_most: int, now_ms: int) -> None:
        """Load the newest valid snapshot at or below an offset, or start empty at the log's first offset.

        Snapshots below the log start are useless: the batches after them are gone. Corrupt ones are removed.
        """
        usable = self.between(first_offset, at_most)
        found = newest_valid(self._disk, self._folder, usable)
        if found is None:
            producers.clear(first_offset)
        else:
            producers.load(found.producers, found.offset, now_ms)
        for offset in usable:
            if found is None or offset > found.offset:
                self._remove(offset)

    def between(self, first_offset: int, last_offset: int) -> list[int]:
        """Return the offsets of the snapshots from one offset to another, in order."""
        return [each for each in self.offsets if first_offset <= each <= last_offset]

    def remove_above(self, offset: int) -> None:
        for each in [each for each in self.offsets if each > offset]:
            self._remove(each)

    def remove_between(self, start: int, end: int, kept: set[int]) -> None:
        """Remove snapshots in [start, end), except at base offsets in `kept`."""
        for each in [each for each in self.offsets if start <= each < end and each not in kept]:
            self._remove(each)

    def mark_deleted(self, offset: int) -> list[str]:
        """Rename the snapshot at an offset; returns the path to unlink later."""
        if offset not in self.offsets:
            return []
        self.offsets.remove(offset)
        path = path_of(self._folder, offset, SNAPSHOT)
        try:
            self._disk.rename(path, path + DELETED)
        except FileNotFoundError:
            return []
        return [path + DELETED]

    def _remove(self, offset: int) -> None:
        self.offsets.remove(offset)
        with suppress(FileNotFoundError):
            self._disk.unlink(path_of(self._folder, offset, SNAPSHOT))

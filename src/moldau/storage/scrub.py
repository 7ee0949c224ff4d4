"""Verification of closed segments in the background, in slices, and of slices that consumers read.

`verify_slice` runs in a worker process. It verifies the batches of a part of a segment, and the entries of the offset
and time index that point into it; see batch_verifier.py for what is corrupt. Its reads leave the page cache as it is.
"""

import errno
from collections.abc import Sequence
from dataclasses import dataclass, replace
from struct import Struct
from typing import Final, NamedTuple

from moldau.model.ports import Disk
from moldau.model.units import MiB
from moldau.records.header import BatchHeader
from moldau.storage import time_index
from moldau.storage.batch_verifier import BatchVerifier
from moldau.storage.names import INDEX, LOG, TIME_INDEX, path_of
from moldau.storage.offset_index import OffsetIndex
from moldau.storage.time_index import TimeIndex

INDEX_INTERVAL_BYTES: Final = 4096
SLICE_BYTES: Final = 16 * MiB
WHOLE: Final = 1 << 40
SECTOR_BYTES: Final = 4096

_OFFSET_ENTRY: Final = Struct(">ii")
_TIME_ENTRY: Final = Struct(">qi")

Batches = list[tuple[int, BatchHeader]]


@dataclass(frozen=True, slots=True)
class ScrubJob:
    """A slice of a segment, from the verifier's position on; picklable."""

    folder: str
    verifier: BatchVerifier
    bytes_max: int = SLICE_BYTES


class ScrubResult(NamedTuple):
    """The verifier after the slice, and what was found in it."""

    verifier: BatchVerifier
    bytes_read: int
    has_invalid_index: bool


class SegmentIndexes(NamedTuple):
    """Indexes computed from a log file."""

    offsets: OffsetIndex
    times: TimeIndex


def verify_slice(disk: Disk, job: ScrubJob) -> ScrubResult:
    """Verify about `bytes_max` bytes; more while the end of a corrupt range is searched."""
    verifier = job.verifier
    start = verifier.position
    path = path_of(job.folder, verifier.base_offset, LOG)
    batches: Batches = []
    bytes_read = 0
    while not verifier.is_done and (bytes_read < job.bytes_max or verifier.is_searching):
        position = verifier.position
        wanted = min(verifier.wanted_bytes, verifier.size_bytes - position)
        data = read_sectors(disk, path, wanted, position)
        if len(data) < wanted:  # the file is shorter than its log
            verifier.size_bytes = position + len(data)
        batches += verifier.verify(data, position)
        bytes_read += len(data)
        if not data:
            break
    return ScrubResult(verifier, bytes_read, not _are_indexes_valid(disk, job, batches, start))


def read_sectors(disk: Disk, path: str, length: int, position: int) -> bytes:
    """Read, with zeros where the medium is unreadable: these bytes are then found to be corrupt."""
    try:
        return disk.read_uncached(path, length, position)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    if length <= SECTOR_BYTES:
        return bytes(length)
    half = length // 2 // SECTOR_BYTES * SECTOR_BYTES or SECTOR_BYTES
    return read_sectors(disk, path, half, position) + read_sectors(disk, path, length - half, position + half)


def _are_indexes_valid(disk: Disk, job: ScrubJob, batches: Batches, start: int) -> bool:
    """Whether the index entries that point into a slice agree with its batches."""
    verifier = job.verifier
    try:
        offsets = disk.read(path_of(job.folder, verifier.base_offset, INDEX))
        times = disk.read(path_of(job.folder, verifier.base_offset, TIME_INDEX))
    except FileNotFoundError:
        return False
    if OffsetIndex.load(offsets, verifier.size_bytes) is None or not _is_ordered(times, verifier):
        return False
    by_position = dict(batches)
    for relative_offset, position in _OFFSET_ENTRY.iter_unpack(offsets):
        if start <= position < verifier.position:
            header = by_position.get(position)
            offset = verifier.base_offset + relative_offset
            if header is None or not header.base_offset <= offset <= header.last_offset:
                return False
    return _are_times_valid(times, verifier.base_offset, [header for _, header in batches])


def _is_ordered(times: bytes, verifier: BatchVerifier) -> bool:
    if len(times) % time_index.ENTRY_BYTES:
        return False
    timestamp, relative_offset = -1, -1
    for entry in _TIME_ENTRY.iter_unpack(times):
        if entry[0] < timestamp or entry[1] < relative_offset:
            return False
        timestamp, relative_offset = entry
    return verifier.base_offset + relative_offset < verifier.bound


def _are_times_valid(times: bytes, base_offset: int, headers: Sequence[BatchHeader]) -> bool:
    """Whether each entry has the timestamp of the batch with its offset, as far as the batches go."""
    entries = iter(_TIME_ENTRY.iter_unpack(times))
    entry = next(entries, None)
    for header in headers:
        while entry is not None and base_offset + entry[1] < header.base_offset:
            entry = next(entries, None)
        while entry is not None and base_offset + entry[1] <= header.last_offset:
            if entry[0] != header.max_timestamp:
                return False
            entry = next(entries, None)
    return True


def compute_indexes(disk: Disk, job: ScrubJob) -> SegmentIndexes:
    """Return the indexes of a whole segment, in a worker process; corrupt batches have no entries."""
    verifier = replace(job.verifier, position=0, corrupt=[])
    indexes = SegmentIndexes(OffsetIndex(), TimeIndex())
    path = path_of(job.folder, verifier.base_offset, LOG)
    unindexed, newest = 0, (-1, 0)
    while not verifier.is_done:
        position = verifier.position
        data = read_sectors(disk, path, min(verifier.wanted_bytes, verifier.size_bytes - position), position)
        for at, header in verifier.verify(data, position):
            if header.max_timestamp > newest[0]:
                newest = header.max_timestamp, header.last_offset - verifier.base_offset
            if unindexed > INDEX_INTERVAL_BYTES:
                indexes.offsets.append(header.last_offset - verifier.base_offset, at)
                indexes.times.append(*newest)
                unindexed = 0
            unindexed += header.size_bytes
        if not data:
            break
    indexes.times.append(*newest)
    return indexes

"""Recovery of a log file after an unclean shutdown: verify every batch, rebuild derived state.

What recovery must decide is whether a broken batch is a torn tail or corruption. A torn tail (incomplete bytes after
the last valid batch, above the recovery point) was never acknowledged as synced and is truncated. Anything else is
corruption: below the recovery point, or followed by valid batches, the data was acknowledged, so the log is rejected
with `CorruptLog` and left untouched. After a power loss gaps above the recovery point are normal, because pages reach
the disk in any order; there the log is truncated at the first of them (see log_loader.py).

The scan rebuilds, in one pass, the indexes, leader epochs, producer state and aborted transactions of a segment.
`ProducerReplay` rebuilds producer state below an offset in slices, without blocking the event loop.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from struct import Struct
from typing import Final

from crc32c import crc32c

from moldau.model.errors import StorageFailed
from moldau.model.ids import NO_TIMESTAMP
from moldau.model.ports import File
from moldau.model.units import KiB, MiB
from moldau.records.header import (
    CHECKED_POSITION,
    CONTROL,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    checksum,
    read_header,
)
from moldau.storage.batch_scan import CorruptBatch, iterate_headers
from moldau.storage.leader_epochs import LeaderEpochs
from moldau.storage.offset_index import OffsetIndex
from moldau.storage.producer_snapshots import Snapshots
from moldau.storage.producer_state import AppendedBatch, Producers, read_marker
from moldau.storage.segment import RELATIVE_OFFSET_MAX, Segment
from moldau.storage.time_index import TimeIndex
from moldau.storage.transaction_index import AbortedTransaction

REPLAY_SLICE_BATCHES: Final = 500  # batches: a few milliseconds
RECENT_SCAN_BYTES: Final = 256 * KiB  # of the end of a log
_CHUNK_BYTES: Final = 4 * MiB
_SEARCH_BYTES: Final = 64 * MiB  # search window for a valid batch after a corrupt one
_SHORT_HEADER: Final = Struct(">qiibIhi8xqq")  # all but base timestamp, producer epoch, sequence and count

_PRODUCER: Final = Struct(">hi")  # producer epoch and base sequence
_PRODUCER_EPOCH_POSITION: Final = 51


_LENGTH_MIN: Final = HEADER_BYTES - LOG_OVERHEAD


class CorruptLog(StorageFailed):
    """The log is corrupt and left untouched for manual repair."""


@dataclass(slots=True)
class SegmentScan:
    """Scan of a log file from its start: limits and results so far."""

    base_offset: int
    offset_max: int
    size_bytes: int
    interval_bytes: int
    rejects_old_epochs: bool
    next_offset: int
    valid_bytes: int = 0
    broken: str = ""  # why the scan ended before the file did
    max_timestamp: int = NO_TIMESTAMP
    max_timestamp_offset: int = 0
    unindexed_bytes: int = 0
    has_gaps: bool = False  # offsets are missing between batches, as after compaction
    offsets: OffsetIndex = field(default_factory=OffsetIndex)
    times: TimeIndex = field(default_factory=TimeIndex)
    aborted: list[AbortedTransaction] = field(default_factory=list)

    def accept_epoch(self, epoch: int, base_offset: int, epochs: LeaderEpochs) -> bool:
        """Record a new leader epoch. An older one was truncated once and reappeared after a power loss."""
        if epoch > epochs.latest:
            epochs.assign(epoch, base_offset)
        return epoch < 0 or epoch == epochs.latest or not self.rejects_old_epochs


def scan_segment(
    segment: Segment,
    next_offset: int,
    bound: int,
    interval_bytes: int,
    epochs: LeaderEpochs,
    producers: Producers,
    *,
    has_lost_power: bool,
) -> SegmentScan:
    """Verify every batch of a log file, up to the base offset of the next segment."""
    scan = SegmentScan(
        base_offset=segment.base_offset,
        offset_max=min(segment.base_offset + RELATIVE_OFFSET_MAX, bound - 1),
        size_bytes=segment.size_bytes,
        interval_bytes=interval_bytes,
        rejects_old_epochs=has_lost_power,
        next_offset=next_offset,
    )
    file = segment.open_file()
    wanted = _CHUNK_BYTES
    while scan.valid_bytes < scan.size_bytes and not scan.broken:
        chunk = file.pread(min(wanted, scan.size_bytes - scan.valid_bytes), scan.valid_bytes)
        wanted = _scan_chunk(chunk, scan, epochs, producers)
    producers.end_offset = scan.next_offset
    return scan


def _scan_chunk(chunk: bytes, scan: SegmentScan, epochs: LeaderEpochs, producers: Producers) -> int:
    """Verify the batches of a chunk; return how much to read next. Flat, because it runs millions of times."""
    available, at, wanted = len(chunk), 0, _CHUNK_BYTES
    base_offset, next_offset, offset_max = scan.base_offset, scan.next_offset, scan.offset_max
    max_timestamp, max_timestamp_offset = scan.max_timestamp, scan.max_timestamp_offset
    unindexed, interval_bytes, latest_epoch = scan.unindexed_bytes, scan.interval_bytes, epochs.latest
    unpack, unpack_producer, length_min = _SHORT_HEADER.unpack_from, _PRODUCER.unpack_from, _LENGTH_MIN
    if available < HEADER_BYTES:
        scan.broken = "truncated batch header"
    with memoryview(chunk) as view:
        while at + HEADER_BYTES <= available:
            base, length, epoch, magic, crc, attributes, delta, timestamp, producer_id = unpack(chunk, at)
            last_offset = base + delta
            if magic != MAGIC or length < length_min or base < next_offset or delta < 0 or last_offset > offset_max:
                scan.broken = "invalid batch header"
                break
            end = at + LOG_OVERHEAD + length
            if end > available:
                wanted = max(_CHUNK_BYTES, end - at)
                if scan.valid_bytes + end > scan.size_bytes:
                    scan.broken = "truncated batch"
                break
            if crc32c(view[at + CHECKED_POSITION : end]) != crc:
                scan.broken = "checksum mismatch"
                break
            if epoch != latest_epoch:
                if not scan.accept_epoch(epoch, base, epochs):
                    scan.broken = "decreasing leader epoch"
                    break
                latest_epoch = epochs.latest
            if timestamp > max_timestamp:
                max_timestamp, max_timestamp_offset = timestamp, last_offset
            if unindexed > interval_bytes:
                scan.offsets.append(last_offset - base_offset, scan.valid_bytes + at)
                scan.times.append(max_timestamp, max_timestamp_offset - base_offset)
                unindexed = 0
            if producer_id >= 0:
                if attributes & CONTROL:
                    replay_marker(view[at:end], producers, scan.aborted)
                else:
                    producer_epoch, sequence = unpack_producer(chunk, at + _PRODUCER_EPOCH_POSITION)
                    producers.appended(producer_id, producer_epoch, sequence, base, last_offset, timestamp, attributes)
            if base != next_offset:
                scan.has_gaps = True
            unindexed += end - at
            next_offset = last_offset + 1
            at = end
    scan.valid_bytes += at
    scan.next_offset, scan.unindexed_bytes = next_offset, unindexed
    scan.max_timestamp, scan.max_timestamp_offset = max_timestamp, max_timestamp_offset
    return wanted


def replay_marker(batch: memoryview, producers: Producers, aborted: list[AbortedTransaction]) -> None:
    header = read_header(batch)
    marker = read_marker(batch)
    transaction = producers.ended(header, header.base_offset, marker) if marker is not None else None
    if transaction is not None:
        aborted.append(transaction)


def replay(segment: Segment, producers: Producers, end_offset: int) -> list[AbortedTransaction]:
    """Advance producer state to an offset; return the transactions aborted on the way."""
    aborted: list[AbortedTransaction] = []
    found = segment.find(producers.end_offset)
    if found is None:
        return aborted
    file = segment.open_file()
    for position, header in iterate_headers(file, found[0], segment.size_bytes):
        if header.base_offset >= end_offset:
            break
        if header.producer_id < 0 or header.base_offset < producers.end_offset:
            continue
        if header.is_control:
            replay_marker(memoryview(file.pread(header.size_bytes, position)), producers, aborted)
        else:
            producers.appended_batch(header, header.base_offset, header.max_timestamp)
    return aborted


class ProducerReplay:
    """Producer state below an offset, rebuilt in slices before a truncation, while the log is unchanged.

    The log since the last snapshot may be a gigabyte of small batches, too much for one step.
    """

    def __init__(self, snapshots: Snapshots, segments: Sequence[Segment], offset: int, known: Producers) -> None:
        self.producers = Producers(known.expiration_ms, known.now_ms)
        self._offset = offset
        snapshots.load_latest(self.producers, segments[0].base_offset, offset, now_ms=0)
        _restore_recent_batches(segments, self.producers)
        ends = [*(each.base_offset for each in segments[1:]), offset + 1]
        self._segments = [
            segment
            for segment, end_offset in zip(segments, ends, strict=True)
            if segment.base_offset < offset and end_offset > self.producers.end_offset
        ]
        self._remaining = list(self._segments)
        self._position: int | None = None  # in the first remaining segment

    def step(self) -> bool:
        """Run for a few milliseconds; return whether there is more. Raises `CorruptBatch` or `OSError`."""
        if self._remaining and self._replay_slice(self._remaining[0]):
            self._remaining.pop(0)
            self._position = None
        return bool(self._remaining)

    def _replay_slice(self, segment: Segment) -> bool:
        """Return whether the segment is read up to the offset."""
        if self._position is None:
            found = segment.find(self.producers.end_offset)
            self._position = found[0] if found is not None else segment.size_bytes
        file, first_offset = segment.open_file(), self.producers.end_offset
        for number, (position, header) in enumerate(iterate_headers(file, self._position, segment.size_bytes)):
            if header.last_offset >= self._offset:
                return True
            if number == REPLAY_SLICE_BATCHES:
                self._position = position
                return False
            if header.producer_id < 0 or header.base_offset < first_offset:
                continue
            if header.is_control:
                replay_marker(memoryview(file.pread(header.size_bytes, position)), self.producers, [])
            else:
                self.producers.appended_batch(header, header.base_offset, header.max_timestamp)
        return True

    def is_valid_for(self, segments: Sequence[Segment]) -> bool:
        """Whether it is complete and what it read is still part of the log."""
        return not self._remaining and all(each in segments for each in self._segments)


def replay_segments(segments: Sequence[Segment], producers: Producers, end_offset: int) -> None:
    """Advance producer state to an offset."""
    for number, segment in enumerate(segments):
        following = segments[number + 1].base_offset if number + 1 < len(segments) else end_offset
        if following > producers.end_offset and segment.base_offset < end_offset:
            replay(segment, producers, end_offset)
            producers.end_offset = min(following, end_offset)
    producers.end_offset = end_offset


def restore_producers(
    snapshots: Snapshots,
    segments: Sequence[Segment],
    producers: Producers,
    end_offset: int,
    now_ms: int,
    replay: ProducerReplay | None = None,
) -> None:
    """Restore producer state at an offset: the latest snapshot, what it lacks, then the batches after it."""
    if replay is not None and replay.is_valid_for(segments):
        producers.replace_with(replay.producers, end_offset)
        return
    first_offset = segments[0].base_offset if segments else end_offset
    snapshots.load_latest(producers, first_offset, end_offset, now_ms)
    _restore_recent_batches(segments, producers)
    if producers.end_offset < end_offset:
        replay_segments(segments, producers, end_offset)


def _restore_recent_batches(segments: Sequence[Segment], producers: Producers) -> None:
    """Restore the few batches before each producer's last one from the log: snapshots only have the last."""
    if not producers.by_id:
        return
    found: dict[int, list[AppendedBatch]] = {}
    before = [each for each in segments if each.base_offset < producers.end_offset]
    with suppress(CorruptBatch):  # a later read reports it
        for segment in before[-2:]:
            _collect_recent_batches(segment, producers, found)
    for producer_id, batches in found.items():
        producers.restore_recent(producer_id, batches)


def _collect_recent_batches(segment: Segment, producers: Producers, found: dict[int, list[AppendedBatch]]) -> None:
    """Collect the batches at the end of a segment, or before the state's end if that lies in it."""
    place = segment.find(producers.end_offset)
    end = segment.size_bytes if place is None else place[0]
    begin = segment.offset_lookup().boundary_before(max(end - RECENT_SCAN_BYTES, 0))
    for _, header in iterate_headers(segment.open_file(), begin, end):
        producer = producers.by_id.get(header.producer_id)
        if producer is None or header.is_control:
            continue
        if header.producer_epoch != producer.epoch:
            found.pop(header.producer_id, None)  # of a previous epoch
            continue
        found.setdefault(header.producer_id, []).append(
            AppendedBatch(
                header.base_sequence, header.last_sequence, header.base_offset, header.last_offset, header.max_timestamp
            )
        )


def find_valid_batch_after(file: File, position: int, size_bytes: int, next_offset: int) -> int | None:
    """Return the position of a valid batch after a corrupt one, within a bounded search: no torn tail then."""
    window = file.pread(min(_SEARCH_BYTES, size_bytes - position), position)
    offset_max = next_offset + len(window)  # a record takes more than a byte
    at = window.find(MAGIC, MAGIC_POSITION + 1)
    while at >= 0:
        start = at - MAGIC_POSITION
        if len(window) - start < HEADER_BYTES:
            return None
        header = read_header(window, start)
        is_valid_for = (
            next_offset <= header.base_offset <= offset_max and HEADER_BYTES <= header.size_bytes <= len(window) - start
        )
        if is_valid_for and checksum(window, start, header.size_bytes) == header.crc:
            return position + start
        at = window.find(MAGIC, at + 1)
    return None

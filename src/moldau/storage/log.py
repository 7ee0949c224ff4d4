"""One partition's log: an append-only sequence of batches, cut into segments, read by offset.

    start_offset                  recovery_point              end_offset
        |  segment  |  segment  |  segm|ent  |  active segment    |
        '-- closed: never changes, goes as a whole --'  '-- grows'

All of it runs on the event loop and none of it waits. What may wait is handed out: `begin_flush` gives a job for the
executor, `apply_retention` gives the paths to unlink, `compaction.py` gives a job for a worker process.
"""

from bisect import bisect_left, bisect_right
from contextlib import suppress
from typing import Final, NamedTuple

from moldau.model.errors import CorruptMessage, OffsetOutOfRange, RecordListTooLarge, StorageFailed
from moldau.model.ids import NO_TIMESTAMP
from moldau.model.ports import Disk, File, FileSlice
from moldau.model.units import DAY_MS
from moldau.records.header import CONTROL, BatchHeader, Buffer, checksum, stamp_log_append_time, write_offsets
from moldau.records.record import iterate_batches
from moldau.storage import timestamps
from moldau.storage.checkpoints import LEADER_EPOCHS
from moldau.storage.epochs import LeaderEpochs
from moldau.storage.flushing import EpochsFile, Flush
from moldau.storage.loading import Loading, replay_segments
from moldau.storage.producers import Producers, read_marker
from moldau.storage.recovery import replay
from moldau.storage.retention import expired_segments
from moldau.storage.scan import walk
from moldau.storage.segment import OpenSegments, Segment
from moldau.storage.settings import LogSettings
from moldau.storage.snapshots import Snapshots
from moldau.storage.transaction_index import AbortedTransaction, BrokenTransactionIndex, aborted_between

_TAIL_MAX: Final = 1024  # batches whose place is remembered exactly, so that reading them needs no search
_TAIL_DROPPED: Final = 512
_new_tuple = tuple.__new__


class Appended(NamedTuple):
    """Where a batch is in the log."""

    base_offset: int
    last_offset: int
    is_duplicate: bool
    log_append_time_ms: int


class Log:
    """See the module. Made by `Log.open`."""

    def __init__(self, loading: Loading) -> None:
        self._disk = loading.disk
        self.folder = loading.folder
        self._segments = loading.segments
        self._bases = [segment.base_offset for segment in loading.segments]
        self._active = loading.segments[-1]
        self._snapshots = loading.snapshots
        self._open_segments = loading.open_segments
        self.producers = loading.producers
        self.epochs = loading.epochs
        self.start_offset = loading.start_offset
        self.end_offset = loading.end_offset
        self.recovery_point = loading.recovery_point
        self.cut_bytes = loading.cut_bytes  # what recovery found torn
        self._failure: str | None = None
        self._last_flush_ms = loading.now_ms
        self._unsynced: list[File] = []  # snapshots that the next flush is to cover
        self._has_new_files = True
        self._truncations = 0
        self._tail_offsets: list[int] = []  # last offset of each remembered batch of the active segment
        self._tail_positions: list[int] = []
        self._tail_start = self.end_offset  # the first offset that the tail knows
        self.settings = loading.settings

    @classmethod
    def open(
        cls,
        disk: Disk,
        folder: str,
        settings: LogSettings,
        *,
        now_ms: int,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        is_clean: bool = False,
        accepts_loss: bool = False,
        open_segments: OpenSegments | None = None,
        producer_expiration_ms: int = DAY_MS,
    ) -> "Log":
        """The log in a folder, which is made if it is not there.

        `is_clean` says that the last owner closed it; otherwise what lies above the recovery point is checked.
        `CorruptLog` if damage is found where acknowledged records may be, unless `accepts_loss`.
        """
        disk.make_folder(folder)
        loading = Loading(
            disk=disk,
            folder=folder,
            settings=settings,
            now_ms=now_ms,
            recovery_point=recovery_point,
            start_offset=log_start_offset,
            is_clean=is_clean,
            accepts_loss=accepts_loss,
            open_segments=open_segments or OpenSegments(),
            producers=Producers(producer_expiration_ms),
            epochs=LeaderEpochs(disk, folder),
            snapshots=Snapshots(disk, folder, []),
            segments=[],
        )
        loading.run()
        return cls(loading)

    # ── Settings and facts ──

    @property
    def settings(self) -> LogSettings:
        return self._settings

    @settings.setter
    def settings(self, settings: LogSettings) -> None:
        self._settings = settings
        self._stamps_append_time = settings.has_log_append_time
        self._index_interval_bytes = settings.index_interval_bytes
        self._active.set_limits(settings)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._segments)

    @property
    def segment_base_offsets(self) -> list[int]:
        return list(self._bases)

    @property
    def first_unstable_offset(self) -> int | None:
        return self.producers.first_unstable_offset

    def last_stable_offset(self, high_watermark: int) -> int:
        return self.producers.last_stable_offset(high_watermark)

    # ── Appending ──

    def append(self, batch: memoryview, header: BatchHeader, leader_epoch: int, now_ms: int) -> Appended:
        """Append one validated batch as its leader: give it offsets, write it, note it. The batch is changed in place.

        A batch that repeats one of its producer's last five is not written again: the answer is the first one's.
        """
        _, _, _, _, _, attributes, delta, _, max_timestamp, producer_id, _, _, _ = header
        if self._failure is not None:
            raise StorageFailed(self._failure)
        if producer_id >= 0:
            if attributes & CONTROL:
                self.producers.check_marker(header)
            else:
                repeated = self.producers.check(header)
                if repeated is not None:
                    return Appended(repeated.base_offset, repeated.last_offset, True, NO_TIMESTAMP)
        log_append_time_ms = NO_TIMESTAMP
        if self._stamps_append_time:
            stamp_log_append_time(batch, now_ms)
            max_timestamp = log_append_time_ms = now_ms
        base_offset = self.end_offset
        last_offset = base_offset + delta
        write_offsets(batch, 0, base_offset, leader_epoch)

        size = len(batch)
        segment = self._active
        position = segment.size_bytes
        if (
            position + size > segment.bytes_limit
            or max_timestamp > segment.roll_timestamp
            or last_offset > segment.offset_limit
        ):
            segment = self._make_room(size, max_timestamp, base_offset, last_offset, now_ms)
            position = segment.size_bytes
        file = segment.file
        assert file is not None
        try:
            taken = file.pwrite(batch, position)
            if taken != size:
                self._write_rest(file, batch, position, taken)
        except OSError:
            self._take_back(file, position)
            raise

        segment.size_bytes = position + size
        self.end_offset = last_offset + 1
        if max_timestamp > segment.max_timestamp:
            segment.max_timestamp = max_timestamp
            segment.max_timestamp_offset = last_offset
        if not position:
            segment.begin_records(max_timestamp, self._settings)
        elif segment.unindexed_bytes > self._index_interval_bytes:
            segment.add_index_entry(last_offset, position, self._settings)
        segment.unindexed_bytes += size
        self._tail_offsets.append(last_offset)
        self._tail_positions.append(position)
        if len(self._tail_offsets) > _TAIL_MAX:
            self._forget_tail()
        if leader_epoch > self.epochs.latest:
            self.epochs.assign(leader_epoch, base_offset)
        if producer_id >= 0:
            self._note_producer(header, batch, base_offset, max_timestamp)
        return _new_tuple(Appended, (base_offset, last_offset, False, log_append_time_ms))

    def append_followed(self, batches: Buffer, now_ms: int) -> int:
        """Append batches that carry their offsets already, as a follower or a restore does. The new end offset."""
        if self._failure is not None:
            raise StorageFailed(self._failure)
        run: list[tuple[BatchHeader, memoryview]] = []
        run_bytes = 0
        next_offset = self.end_offset
        for header, batch in iterate_batches(batches):
            self._check_followed(header, batch, next_offset)
            if self._is_full_for(run_bytes, header):
                self._append_run(run)
                run, run_bytes = [], 0
                if self._is_full_for(0, header):
                    self._make_room(len(batch), header.max_timestamp, header.base_offset, header.last_offset, now_ms)
            run.append((header, batch))
            run_bytes += len(batch)
            next_offset = header.next_offset
        self._append_run(run)
        return self.end_offset

    def _check_followed(self, header: BatchHeader, batch: memoryview, next_offset: int) -> None:
        if header.base_offset < next_offset or header.last_offset_delta < 0:
            raise CorruptMessage(f"a batch at offset {header.base_offset} where {next_offset} is due")
        if checksum(batch, 0, len(batch)) != header.crc:
            raise CorruptMessage(f"the checksum of the batch at offset {header.base_offset} does not fit")

    def _is_full_for(self, run_bytes: int, header: BatchHeader) -> bool:
        segment = self._active
        return (
            segment.size_bytes + run_bytes + header.size_bytes > segment.bytes_limit
            or header.max_timestamp > segment.roll_timestamp
            or header.last_offset > segment.offset_limit
        )

    def _append_run(self, run: list[tuple[BatchHeader, memoryview]]) -> None:
        """Write batches that follow each other in one go, then note each of them."""
        if not run:
            return
        segment = self._active
        file = segment.file
        assert file is not None
        position = segment.size_bytes
        data = run[0][1] if len(run) == 1 else b"".join(batch for _, batch in run)
        try:
            self._write_rest(file, data, position, 0)
        except OSError:
            self._take_back(file, position)
            raise
        for header, batch in run:
            self._note_batch(segment, header, batch)

    def _note_batch(self, segment: Segment, header: BatchHeader, batch: memoryview) -> None:
        position, last_offset = segment.size_bytes, header.last_offset
        segment.size_bytes = position + len(batch)
        self.end_offset = last_offset + 1
        if header.max_timestamp > segment.max_timestamp:
            segment.max_timestamp, segment.max_timestamp_offset = header.max_timestamp, last_offset
        if not position:
            segment.begin_records(header.max_timestamp, self._settings)
        elif segment.unindexed_bytes > self._index_interval_bytes:
            segment.add_index_entry(last_offset, position, self._settings)
        segment.unindexed_bytes += len(batch)
        self._tail_offsets.append(last_offset)
        self._tail_positions.append(position)
        if len(self._tail_offsets) > _TAIL_MAX:
            self._forget_tail()
        if header.partition_leader_epoch > self.epochs.latest:
            self.epochs.assign(header.partition_leader_epoch, header.base_offset)
        if header.producer_id >= 0:
            self._note_producer(header, batch, header.base_offset, header.max_timestamp)

    def _note_producer(self, header: BatchHeader, batch: memoryview, base_offset: int, max_timestamp: int) -> None:
        if not header.attributes & CONTROL:
            self.producers.appended(header, base_offset, max_timestamp)
            return
        marker = read_marker(batch)
        aborted = self.producers.ended(header, base_offset, marker) if marker is not None else None
        if aborted is not None:
            self._active.add_aborted(aborted)

    def _forget_tail(self) -> None:
        self._tail_start = self._tail_offsets[_TAIL_DROPPED - 1] + 1
        del self._tail_offsets[:_TAIL_DROPPED]
        del self._tail_positions[:_TAIL_DROPPED]

    def _clear_tail(self) -> None:
        self._tail_offsets.clear()
        self._tail_positions.clear()
        self._tail_start = self.end_offset

    @staticmethod
    def _write_rest(file: File, data: Buffer, position: int, taken: int) -> None:
        """Write on after a short write."""
        view = memoryview(data)
        while taken < len(view):
            taken += file.pwrite(view[taken:], position + taken)

    def _take_back(self, file: File, position: int) -> None:
        """Remove what a failed write may have left. If that fails too, the next append writes over it."""
        with suppress(OSError):
            file.truncate(position)

    # ── Rolling ──

    def _make_room(self, size: int, timestamp: int, base_offset: int, last_offset: int, now_ms: int) -> Segment:
        """The segment that takes the next batch: a new one, unless the active one is empty and will do."""
        active = self._active
        if size > self._settings.segment_bytes_max:
            raise RecordListTooLarge(f"a batch of {size} bytes is larger than segment.bytes")
        if active.size_bytes or last_offset > active.offset_limit:
            self._roll(base_offset, now_ms)
        elif timestamp > active.roll_timestamp:
            active.set_limits(self._settings)
        return self._active

    def roll_if_due(self, now_ms: int) -> bool:
        """Begin a new segment if the active one is old by the clock. Whether it was."""
        active = self._active
        if not active.size_bytes:
            return False
        is_due = now_ms > active.roll_timestamp or active.has_waited_for_roll(self._settings, now_ms)
        if is_due:
            self._roll(self.end_offset, now_ms)
        return is_due

    def roll(self, now_ms: int) -> None:
        """Begin a new segment now, unless the active one is empty."""
        if self._active.size_bytes:
            self._roll(self.end_offset, now_ms)

    def _roll(self, base_offset: int, now_ms: int) -> None:
        """Close the active segment and begin another. If the disk refuses, nothing has changed."""
        old = self._active
        old.rest()
        self._take_snapshot()
        new = Segment(self._disk, self.folder, base_offset, 0, now_ms, self._open_segments)
        try:
            new.create(self._settings)
        except OSError:
            # An empty segment in the way of the old one's next batches would hide them after a restart.
            self._undo_creation(new)
            raise
        old.retire(self._settings)
        self._segments.append(new)
        self._bases.append(base_offset)
        self._active = new
        self._has_new_files = True
        self._clear_tail()

    def _undo_creation(self, segment: Segment) -> None:
        try:
            segment.remove()
        except OSError as error:
            self._failure = f"{self.folder}: a segment can neither be made nor removed: {error}"

    def _take_snapshot(self) -> None:
        self.producers.end_offset = self.end_offset
        file = self._snapshots.take(self.producers)
        if file is not None:
            self._unsynced.append(file)
            self._has_new_files = True

    # ── Reading ──

    def read(
        self, offset: int, max_bytes: int, *, until_offset: int | None = None, at_least_one: bool = True
    ) -> FileSlice | None:
        """Whole batches from the one that holds `offset` on, all of them below `until_offset`.

        None if there is nothing to read yet. With `at_least_one`, the first batch comes whatever its size.
        """
        end_offset = self.end_offset
        if not self.start_offset <= offset <= end_offset:
            raise OffsetOutOfRange(f"offset {offset} is outside of {self.start_offset} to {end_offset}")
        if until_offset is None or until_offset > end_offset:
            until_offset = end_offset
        if offset >= until_offset:
            return None
        if offset < self._tail_start:
            return self._read_by_index(offset, max_bytes, until_offset, at_least_one)

        offsets, positions = self._tail_offsets, self._tail_positions
        segment = self._active
        first = bisect_left(offsets, offset)
        position = positions[first]
        end = segment.size_bytes if until_offset == end_offset else positions[bisect_left(offsets, until_offset)]
        if end - position > max_bytes:
            after = bisect_right(positions, position + max_bytes) - 1
            if after > first:
                end = positions[after]
            elif not at_least_one:
                return None
            elif first + 1 < len(positions):
                end = positions[first + 1]
        if end <= position:
            return None
        assert segment.file is not None
        return FileSlice(segment.file, position, end - position)

    def _read_by_index(self, offset: int, max_bytes: int, until_offset: int, at_least_one: bool) -> FileSlice | None:
        number = bisect_right(self._bases, offset) - 1
        found = self._segments[number].find(offset)
        while found is None and number + 1 < len(self._segments):
            number += 1  # the end of a compacted segment is empty
            found = self._segments[number].find(offset)
        if found is None:
            return None
        position, first_size = found
        segment = self._segments[number]
        end = self._readable_end(number, position, until_offset)
        if end <= position or (first_size > max_bytes and not at_least_one):
            return None
        if end - position > max_bytes:
            end = max(segment.boundary_within(position, max_bytes), position + first_size)
        return FileSlice(segment.open_file(), position, end - position)

    def _readable_end(self, number: int, position: int, until_offset: int) -> int:
        segment = self._segments[number]
        following = self._bases[number + 1] if number + 1 < len(self._bases) else self.end_offset
        if until_offset >= following:
            return segment.size_bytes
        if segment is self._active and until_offset >= self._tail_start:
            return self._tail_positions[bisect_left(self._tail_offsets, until_offset)]
        beyond = segment.find(until_offset, start=position)
        return beyond[0] if beyond is not None else segment.size_bytes

    def read_bytes(
        self, offset: int, max_bytes: int, *, until_offset: int | None = None, at_least_one: bool = True
    ) -> bytes:
        """What `read` finds, as bytes; empty if there is nothing."""
        found = self.read(offset, max_bytes, until_offset=until_offset, at_least_one=at_least_one)
        return found.read() if found is not None else b""

    def offset_for_timestamp(self, timestamp: int) -> tuple[int, int] | None:
        """Timestamp and offset of the first record that is not older than `timestamp`."""
        return timestamps.first_at_or_after(self._segments, timestamp, self.start_offset)

    def max_timestamp(self) -> tuple[int, int] | None:
        """The largest timestamp and the offset of the first record that has it."""
        return timestamps.newest(self._segments)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch not above `epoch` that this log knows, and where it ended; (-1, -1) if none."""
        return self.epochs.end_offset_of(epoch, self.end_offset)

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions that have records in [start, end)."""
        found: list[AbortedTransaction] = []
        number = max(0, bisect_right(self._bases, start_offset) - 1)
        for segment in self._segments[number:]:
            entries, is_complete = aborted_between(self._transactions_of(segment), start_offset, end_offset)
            found += entries
            if is_complete:
                break
        return found

    def _transactions_of(self, segment: Segment) -> list[AbortedTransaction]:
        try:
            return segment.transactions
        except BrokenTransactionIndex:
            segment.replace_transactions(self._aborted_in(segment))
            return segment.transactions

    def _aborted_in(self, segment: Segment) -> list[AbortedTransaction]:
        """What the transaction index of a segment should hold, from the log itself."""
        producers = Producers(self.producers.expiration_ms)
        self._snapshots.load_latest(producers, segment.base_offset, self.start_offset, 0)
        number = self._segments.index(segment)
        replay_segments(self._segments[:number], producers, segment.base_offset)
        following = self._bases[number + 1] if number + 1 < len(self._bases) else self.end_offset
        return replay(segment, producers, following)

    # ── Cutting ──

    def truncate_to(self, offset: int) -> None:
        """Drop everything at `offset` and above. The recovery point must be checkpointed before the next append."""
        if offset >= self.end_offset:
            return
        if offset <= self._bases[0]:
            self.truncate_and_start_at(offset)
            return
        # From the end backwards: a crash on the way leaves a log without a gap.
        while self._bases[-1] >= offset:
            self._remove_last()
        self._reactivate_last()
        found = self._active.find(offset)
        position = found[0] if found is not None else self._active.size_bytes
        self.end_offset = self._end_before(position)
        self._active.truncate_to(position, self.end_offset, self._settings)
        self._after_truncation(self.end_offset)

    def _remove_last(self) -> None:
        segment = self._segments.pop()
        self._bases.pop()
        for path in segment.mark_deleted():
            self._disk.unlink(path)

    def _reactivate_last(self) -> None:
        last = self._segments[-1]
        if not last.is_active:
            offsets, times = last.indexes_from_log(self._index_interval_bytes)
            last.activate(self._settings, offsets, times)
        self._active = last

    def _end_before(self, position: int) -> int:
        """The offset behind the batch that ends at `position` of the active segment."""
        end_offset = self._active.base_offset
        begin = self._active.offset_lookup().boundary_before(max(position - 1, 0))
        for _, header in walk(self._active.open_file(), begin, position):
            end_offset = header.next_offset
        return end_offset

    def _after_truncation(self, offset: int) -> None:
        self._truncations += 1
        self.recovery_point = min(self.recovery_point, offset)
        self.start_offset = min(self.start_offset, offset)
        self._clear_tail()
        self.epochs.truncate_from_end(offset)
        self._snapshots.remove_above(offset)
        self._snapshots.load_latest(self.producers, offset, self.start_offset, 0)
        replay_segments(self._segments, self.producers, offset)

    def truncate_and_start_at(self, offset: int) -> None:
        """Drop everything and begin anew at `offset`."""
        while self._segments:
            self._remove_last()
        self._active = Segment(self._disk, self.folder, offset, 0, self._active.created_ms, self._open_segments)
        self._active.create(self._settings)
        self._segments.append(self._active)
        self._bases.append(offset)
        self.start_offset = self.end_offset = self.recovery_point = offset
        self._truncations += 1
        self._has_new_files = True
        self._clear_tail()
        self.epochs.clear()
        self._snapshots.remove_above(-1)
        self.producers.clear(offset)

    def advance_start(self, offset: int) -> None:
        """Records below `offset` are gone for readers; their segments go with the next retention."""
        if offset > self.end_offset:
            raise OffsetOutOfRange(f"offset {offset} is beyond the end {self.end_offset}")
        if offset > self.start_offset:
            self.start_offset = offset
            self.epochs.truncate_from_start(offset)

    def apply_retention(self, now_ms: int, *, committed_offset: int | None = None) -> list[str]:
        """Take expired segments out of the log. The paths to unlink, after `file.delete.delay.ms`."""
        committed = self.end_offset if committed_offset is None else committed_offset
        expired = expired_segments(
            self._segments,
            self._settings,
            start_offset=self.start_offset,
            committed_offset=committed,
            end_offset=self.end_offset,
            now_ms=now_ms,
        )
        if expired == len(self._segments):
            self._roll(self.end_offset, now_ms)
        paths: list[str] = []
        for _ in range(expired):
            paths += self._remove_first()
        if expired:
            self.advance_start(max(self.start_offset, self._bases[0]))
            self.recovery_point = max(self.recovery_point, self._bases[0])
        return paths

    def _remove_first(self) -> list[str]:
        segment = self._segments.pop(0)
        self._bases.pop(0)
        return segment.mark_deleted() + self._snapshots.mark_deleted(segment.base_offset)

    # ── Syncing and closing ──

    @property
    def unflushed_messages(self) -> int:
        return self.end_offset - self.recovery_point

    def flush_target(self, now_ms: int) -> int | None:
        """Up to which offset the log should be flushed now, or None if nothing is due."""
        unflushed = self.end_offset - self.recovery_point
        if not unflushed:
            return None
        is_overdue = now_ms - self._last_flush_ms >= self._settings.flush_ms
        if unflushed >= self._settings.flush_messages or is_overdue:
            return self.end_offset
        return self._active.base_offset if self._active.base_offset > self.recovery_point else None

    def begin_flush(self, now_ms: int, target: int | None = None) -> Flush:
        """Gather what must be synced so that everything below the target (or the end) is on disk."""
        if self._failure is not None:
            raise StorageFailed(self._failure)
        target = self.end_offset if target is None else min(target, self.end_offset)
        files: list[File] = []
        for segment in self._segments[max(0, bisect_right(self._bases, self.recovery_point) - 1) :]:
            if segment.base_offset >= target and segment is not self._segments[0]:
                break
            if segment.is_active:
                segment.write_behind()
            files += segment.files_to_sync()
        files += self._unsynced
        epochs = EpochsFile(f"{self.folder}/{LEADER_EPOCHS}", self.epochs.encode()) if self.epochs.is_dirty else None
        flush = Flush(target, self._disk, self.folder, files, epochs, self._has_new_files, self._truncations)
        self._unsynced = []
        self._has_new_files = self.epochs.is_dirty = False
        self._last_flush_ms = now_ms
        return flush

    def finish_flush(self, flush: Flush) -> None:
        """A flush has run: the recovery point moves, unless the log was truncated meanwhile."""
        if flush.truncations != self._truncations:
            return
        self.recovery_point = max(self.recovery_point, flush.end_offset)
        for number, segment in enumerate(self._segments[:-1]):
            if self._bases[number + 1] <= self.recovery_point:
                segment.synced()

    def fail(self, reason: str) -> None:
        """A sync has failed, so nobody knows what is on disk: take no more writes."""
        self._failure = reason

    def flush(self, now_ms: int) -> None:
        """Sync everything, waiting for it."""
        flush = self.begin_flush(now_ms)
        try:
            flush.run()
        except OSError as error:
            self.fail(f"{self.folder}: a sync has failed: {error}")
            raise
        self.finish_flush(flush)

    def close(self, now_ms: int) -> None:
        """Sync everything, so that the next `open` may be told `is_clean`, and let go of the files."""
        if self._failure is None:
            self._active.rest()
            self._take_snapshot()
            self.flush(now_ms)
        self.abandon()

    def abandon(self) -> None:
        """Let go of the files as they are."""
        for segment in self._segments:
            segment.close()
        for file in self._unsynced:
            file.close()
        self._unsynced = []
        self._failure = f"{self.folder}: the log is closed"

"""A partition's log: an append-only sequence of batches in segments, read by offset.

    start_offset                  recovery_point              end_offset
        |  segment  |  segment  |  segm|ent  |  active segment    |
        '-- closed: immutable, deleted as a whole --'  '-- grows'

Everything runs on the event loop and never blocks. Blocking work is handed out: `begin_flush` returns a job for the
executor, `apply_retention` the paths to unlink, `compaction.py` a job for a worker process.
"""

from typing import Final, NamedTuple

from moldau.model.errors import FencedLeaderEpoch, OffsetOutOfRange, RecordListTooLarge, StorageFailed
from moldau.model.ids import NO_TIMESTAMP
from moldau.model.ports import Disk
from moldau.model.units import DAY_MS, MiB
from moldau.records.header import CONTROL, LOG_OVERHEAD, PLACE_LAYOUT, BatchHeader, Buffer, stamp_log_append_time
from moldau.storage.append_buffer import AppendBuffer
from moldau.storage.batch_scan import ANY_EPOCH, validate_replicated
from moldau.storage.compaction import CompactionResult
from moldau.storage.files import SyncFailed, write_or_roll_back
from moldau.storage.flush import Flush, FlushState
from moldau.storage.log_loader import LogLoader
from moldau.storage.names import TRANSACTION_INDEX
from moldau.storage.open_segments import OpenSegments
from moldau.storage.producer_state import Producers, read_marker
from moldau.storage.readable_log import ReadableLog
from moldau.storage.recovery import ProducerReplay, restore_producers
from moldau.storage.renames import UndoFailed
from moldau.storage.retention import expired_segments
from moldau.storage.segment import Segment
from moldau.storage.segments import Segments
from moldau.storage.settings import LogSettings
from moldau.storage.tail_index import TAIL_BATCHES_MAX, TailIndex

EARLY_ROLL_BYTES_MIN: Final = MiB

_write_place = PLACE_LAYOUT.pack_into
_new_tuple = tuple.__new__


class AppendResult(NamedTuple):
    """Position of a batch in the log."""

    base_offset: int
    last_offset: int
    is_duplicate: bool
    log_append_time_ms: int


class Log(ReadableLog):
    """See the module. Created by `Log.open`."""

    def __init__(self, loader: LogLoader) -> None:
        self._disk = loader.disk
        self.folder = loader.folder
        self._segments = Segments(loader.disk, loader.folder, loader.open_segments, loader.segments)
        self._snapshots = loader.snapshots
        self.producers = loader.producers
        self.epochs = loader.epochs
        self.start_offset = loader.start_offset
        self.end_offset = loader.end_offset
        self.truncated_bytes = loader.truncated_bytes  # cut by recovery
        self._failure: str | None = None
        self.must_be_reopened = False
        self._flush_state = FlushState(loader.recovery_point, loader.now_ms, loader.changed_directories)
        self._tail_index = TailIndex(self.end_offset)
        self.append_buffer = AppendBuffer()
        self.adopt(loader.settings)
        self.restore_transactions(loader.disk, loader.unindexed)

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
        has_lost_power: bool = False,
        has_sync_failure: bool = False,
        cleaned_offset: int | None = None,
        allows_data_loss: bool = False,
        open_segments: OpenSegments | None = None,
        producer_expiration_ms: int = DAY_MS,
    ) -> "Log":
        """Open or create the log in a directory. Unless `is_clean` (the last owner closed it), everything above the
        recovery point is verified: after a power loss the log is truncated at the first gap not left by compaction
        (below `cleaned_offset`), after a failed sync it is written again. Raises `CorruptLog` if acknowledged
        records may be damaged, unless `allows_data_loss`."""
        loader = LogLoader(
            disk,
            folder,
            settings,
            now_ms=now_ms,
            recovery_point=recovery_point,
            start_offset=log_start_offset,
            is_clean=is_clean,
            has_lost_power=has_lost_power,
            has_sync_failure=has_sync_failure,
            cleaned_offset=cleaned_offset,
            allows_data_loss=allows_data_loss,
            open_segments=OpenSegments() if open_segments is None else open_segments,
            producers=Producers(producer_expiration_ms, now_ms),
        )
        loader.run()
        return cls(loader)

    # ── Settings and state ──

    def adopt(self, settings: LogSettings) -> None:
        """Apply new settings."""
        self.settings = settings
        self._stamps_append_time = settings.has_log_append_time
        self.stores_batches_unchanged = settings.stores_batches_unchanged
        self._index_interval_bytes = settings.index_interval_bytes
        self._segments.active.set_limits(settings)

    @property
    def recovery_point(self) -> int:
        """Everything below is on disk."""
        return self._flush_state.recovery_point

    # ── Append ──

    def append(
        self, batch: memoryview, header: BatchHeader, leader_epoch: int, now_ms: int, *, is_buffered: bool = False
    ) -> AppendResult:
        """Append a validated batch as leader: assign offsets, write, index. Changes the batch in place.

        A duplicate of one of the producer's last five batches is not written again and gets the first one's result.
        With `is_buffered` it is buffered until `write_buffered`, together with following ones.
        """
        _, _, _, _, _, attributes, delta, _, max_timestamp, producer_id, _, _, _ = header
        if self._failure is not None:
            raise StorageFailed(self._failure)
        if leader_epoch < self.epochs.latest:
            raise FencedLeaderEpoch(f"leader epoch {leader_epoch} is fenced, the log has epoch {self.epochs.latest}")
        if producer_id >= 0:
            if attributes & CONTROL:
                self.producers.check_marker(header)
            else:
                repeated = self.producers.check(header)
                if repeated is not None:
                    return AppendResult(repeated.base_offset, repeated.last_offset, True, NO_TIMESTAMP)
        log_append_time_ms = NO_TIMESTAMP
        if self._stamps_append_time:
            stamp_log_append_time(batch, now_ms)
            max_timestamp = log_append_time_ms = now_ms
        base_offset = self.end_offset
        last_offset = base_offset + delta
        size = len(batch)
        _write_place(batch, 0, base_offset, size - LOG_OVERHEAD, leader_epoch)
        segment = self._segments.active
        position = segment.size_bytes
        if (
            position + size > segment.bytes_limit
            or max_timestamp > segment.roll_timestamp
            or last_offset > segment.offset_limit
        ):
            if size > self.settings.segment_bytes_max:
                raise RecordListTooLarge(f"a batch of {size} bytes is larger than segment.bytes")
            segment = self._roll_or_reuse(max_timestamp, base_offset, last_offset, now_ms)
            position = segment.size_bytes
        if is_buffered:
            append_buffer = self.append_buffer
            if not append_buffer.batches:
                append_buffer.begin(position, base_offset)
            append_buffer.batches.append(batch)
        else:
            self.write_buffered()
            assert segment.file is not None
            write_or_roll_back(segment.file, batch, position)
        self._index_batch(segment, position, size, last_offset, max_timestamp)
        if leader_epoch > self.epochs.latest:
            self.epochs.assign(leader_epoch, base_offset)
        if producer_id >= 0:
            self.producers.now_ms = now_ms
            self._update_producer(header, batch, base_offset, max_timestamp)
        return _new_tuple(AppendResult, (base_offset, last_offset, False, log_append_time_ms))

    def write_buffered(self) -> None:
        """Write the buffered batches in one call. If the write fails, none of them is appended.

        `append_buffer.failure` then has the reason: their produce requests must fail.
        """
        if self.append_buffer:
            segment = self._segments.active
            assert segment.file is not None
            try:
                self.append_buffer.write(segment.file, segment.size_bytes)
            except OSError:
                self._discard_buffered(self.append_buffer.position, self.append_buffer.base_offset)
                raise

    def _discard_buffered(self, position: int, base_offset: int) -> None:
        """Nothing of it was synced or read, so this is no truncation; producer state is restored from the log."""
        try:
            self._segments.active.truncate_to(position, base_offset, self.settings, was_written=False)
            self.end_offset = base_offset
            self._tail_index.clear(base_offset)
            self.epochs.truncate_from_end(base_offset)
            restore_producers(self._snapshots, self._segments.all, self.producers, base_offset, now_ms=0)
        except OSError as error:
            self.fail(f"rollback of a failed write failed: {error}")

    def append_as_follower(self, batches: Buffer, now_ms: int, epoch_max: int = ANY_EPOCH) -> int:
        """Append batches with offsets, as a follower does; return the new end offset. `CorruptMessage` at one that is
        corrupt, out of order or of a later epoch, after appending those before it."""
        self._check_writable()
        self.write_buffered()
        self.producers.now_ms = now_ms
        view = memoryview(batches)
        headers, damage = validate_replicated(view, self.end_offset, epoch_max)
        segment = self._segments.active
        first = start = end = 0  # of one write: adjacent batches
        for number, header in enumerate(headers):
            size, timestamp, last_offset = LOG_OVERHEAD + header.batch_length, header.max_timestamp, header.last_offset
            if (
                segment.size_bytes + end - start + size > segment.bytes_limit
                or timestamp > segment.roll_timestamp
                or last_offset > segment.offset_limit
            ):
                self._append_contiguous(headers[first:number], view[start:end])
                first, start = number, end
                segment = self._roll_again(size, timestamp, header.base_offset, last_offset, now_ms)
            end += size
        self._append_contiguous(headers[first:], view[start:end])
        if damage is not None:
            raise damage
        return self.end_offset

    def _roll_again(self, size: int, timestamp: int, base_offset: int, last_offset: int, now_ms: int) -> Segment:
        """Roll for a batch that did not fit with others of its run: alone it may fit."""
        segment = self._segments.active
        is_full = segment.size_bytes + size > segment.bytes_limit
        if is_full or timestamp > segment.roll_timestamp or last_offset > segment.offset_limit:
            return self._roll_or_reuse(timestamp, base_offset, last_offset, now_ms)
        return segment

    def _append_contiguous(self, run: list[BatchHeader], batches: memoryview) -> None:
        """Write adjacent batches in one call, then index each."""
        if not run:
            return
        segment = self._segments.active
        assert segment.file is not None
        write_or_roll_back(segment.file, batches, segment.size_bytes)
        start = 0
        for header in run:
            base_offset, length, leader_epoch, _, _, _, delta, _, max_timestamp, producer_id, _, _, _ = header
            size = LOG_OVERHEAD + length
            self._index_batch(segment, segment.size_bytes, size, base_offset + delta, max_timestamp)
            if leader_epoch > self.epochs.latest:
                self.epochs.assign(leader_epoch, base_offset)
            if producer_id >= 0:
                self._update_producer(header, batches[start : start + size], base_offset, max_timestamp)
            start += size

    def _index_batch(self, segment: Segment, position: int, size: int, last_offset: int, max_timestamp: int) -> None:
        """A batch was written: advance the end, and index it if due."""
        segment.size_bytes = position + size
        self.end_offset = last_offset + 1
        if max_timestamp > segment.max_timestamp:
            segment.max_timestamp = max_timestamp
            segment.max_timestamp_offset = last_offset
        if not position:
            segment.note_first_batch(max_timestamp, self.settings)
        elif segment.unindexed_bytes > self._index_interval_bytes:
            segment.add_index_entry(last_offset, position, self.settings)
        segment.unindexed_bytes += size
        if segment.size_bytes > segment.reserved_bytes:
            segment.reserve()
        tail = self._tail_index
        tail.offsets.append(last_offset)
        tail.positions.append(position)
        if len(tail.offsets) > TAIL_BATCHES_MAX:
            tail.shorten()

    def _update_producer(self, header: BatchHeader, batch: memoryview, base_offset: int, max_timestamp: int) -> None:
        if not header.attributes & CONTROL:
            self.producers.appended_batch(header, base_offset, max_timestamp)
            return
        marker = read_marker(batch)
        aborted = self.producers.ended(header, base_offset, marker) if marker is not None else None
        if aborted is not None:
            self._segments.active.aborted.add(aborted)

    # ── Roll ──

    def _roll_or_reuse(self, timestamp: int, base_offset: int, last_offset: int, now_ms: int) -> Segment:
        """Return the segment for the next batch: a new one, unless the active one is empty and suitable.

        A batch that exceeds segment.bytes gets its own segment: its leader had a larger segment.bytes.
        """
        self.write_buffered()
        active = self._segments.active
        if active.size_bytes or last_offset > active.offset_limit:
            self._roll(base_offset, now_ms)
        elif timestamp > active.roll_timestamp:
            active.set_limits(self.settings)
        return self._segments.active

    def roll_if_due(self, now_ms: int) -> bool:
        """Roll if the active segment is too old or delays compaction; return whether it rolled."""
        is_due = self._segments.active.is_due_to_roll(self.settings, now_ms) or self._blocks_compaction()
        if is_due:
            self._roll(self.end_offset, now_ms)
        return is_due

    def _blocks_compaction(self) -> bool:
        """Whether the active segment is most of a small, busy log: it is never compacted while active."""
        return self.settings.is_compacted and self._segments.is_mostly_active(EARLY_ROLL_BYTES_MIN)

    def roll(self, now_ms: int) -> None:
        """Roll now, unless the active segment is empty."""
        if self._segments.active.size_bytes:
            self._roll(self.end_offset, now_ms)

    def _roll(self, base_offset: int, now_ms: int) -> None:
        """Close the active segment and start a new one. On failure nothing changes."""
        self.write_buffered()
        self._segments.active.seal(is_synced=self.recovery_point >= base_offset)
        self._take_snapshot()
        self._segments.begin(base_offset, self.settings, now_ms)
        self._flush_state.note_directory_change(self.folder)
        self._tail_index.clear(self.end_offset)

    def _take_snapshot(self) -> None:
        self.producers.end_offset = self.end_offset
        if self._snapshots.take(self.producers):
            self._flush_state.note_directory_change(self.folder)

    # ── Truncate ──

    def replay_producers_below(self, offset: int) -> ProducerReplay:
        """Start computing the producer state after a truncation, in advance and in slices."""
        self.write_buffered()
        return ProducerReplay(self._snapshots, self._segments.all, offset, self.producers)

    def truncate_to(self, offset: int, replay: ProducerReplay | None = None) -> None:
        """Truncate to `offset`. The recovery point must be checkpointed before the next append."""
        self.write_buffered()
        if offset >= self.end_offset:
            # An epoch that this node led without writing is not in the current leader's log.
            self.epochs.truncate_from_end(self.end_offset)
            return
        if offset <= self._segments.bases[0]:
            self.truncate_fully_and_start_at(offset)
            return
        self.end_offset = self._segments.truncate_to(offset, self.settings)
        self._after_truncation(self.end_offset, replay)

    def _after_truncation(self, offset: int, replay: ProducerReplay | None) -> None:
        self._flush_state.truncated(self._segments.active.base_offset)
        self._flush_state.note_directory_change(self.folder)
        self.start_offset = min(self.start_offset, offset)
        self._tail_index.clear(self.end_offset)
        self.epochs.truncate_from_end(offset)
        self._snapshots.remove_above(offset)
        restore_producers(self._snapshots, self._segments.all, self.producers, offset, now_ms=0, replay=replay)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Delete everything and restart at `offset`."""
        try:
            self._segments.restart_at(offset, self.settings)
        except UndoFailed as error:
            self._fail_until_reopened(f"restart of the log failed: {error}")
            raise
        self.start_offset = self.end_offset = offset
        self._flush_state.restarted(offset)
        self._flush_state.note_directory_change(self.folder)
        self._tail_index.clear(self.end_offset)
        self.epochs.clear()
        self._snapshots.remove_above(-1)
        self.producers.clear(offset)

    def advance_start_offset(self, offset: int) -> None:
        """Hide records below `offset`; their segments are deleted by the next retention run."""
        if offset > self.end_offset:
            raise OffsetOutOfRange(f"offset {offset} is beyond the log end {self.end_offset}")
        if offset > self.start_offset:
            self.start_offset = offset
            self.epochs.truncate_from_start(offset)

    def apply_retention(self, now_ms: int, *, committed_offset: int | None = None) -> list[str]:
        """Remove expired segments; returns the paths to unlink after `file.delete.delay.ms`."""
        committed = self.end_offset if committed_offset is None else committed_offset
        expired = expired_segments(self._segments, self.settings, self.start_offset, committed, self.end_offset, now_ms)
        if expired == len(self._segments):
            try:
                self._roll(self.end_offset, now_ms)
            except OSError:  # a full disk: free the closed segments first
                expired -= 1
                if not expired:
                    raise
        paths: list[str] = []
        for _ in range(expired):
            paths += self._snapshots.mark_deleted(self._segments.bases[0])
            paths += self._segments.remove_first()
            self.advance_start_offset(max(self.start_offset, self._segments.bases[0]))
        self._flush_state.recovery_point = max(self.recovery_point, self._segments.bases[0])
        return paths

    # ── Compact ──

    def replace_segments(self, result: CompactionResult) -> list[str]:
        """Swap in cleaned segments; returns the paths to unlink after `file.delete.delay.ms`."""
        try:
            paths = [
                path for each in result.replacements for path in self._segments.replace(each.size_bytes, each.replaced)
            ]
        except UndoFailed as error:
            self._fail_until_reopened(f"segment swap failed: {error}")
            raise
        finally:
            self._flush_state.note_directory_change(self.folder)
        self._snapshots.remove_between(0, self._segments.active.base_offset, set(self._segments.bases))
        return paths

    # ── Sync and close ──

    @property
    def unflushed_messages(self) -> int:
        return self.end_offset - self.recovery_point

    def flush_target(self, now_ms: int) -> int | None:
        """Return the offset to flush to now, or None."""
        return self._flush_state.target(self.end_offset, self._segments.active.base_offset, self.settings, now_ms)

    def begin_flush(self, now_ms: int, target: int | None = None) -> Flush:
        """Collect what must be synced so that everything below the target (or the end) is on disk."""
        self._check_writable()
        self.write_buffered()
        target = self.end_offset if target is None else min(target, self.end_offset)
        self._flush_state.last_flush_ms = now_ms
        return self._flush_state.begin(self._disk, self.folder, self._segments, self._snapshots, self.epochs, target)

    def finish_flush(self, flush: Flush) -> None:
        """A flush completed: advance the recovery point, unless the log was truncated meanwhile."""
        self._flush_state.finish(flush)

    def flush_failed(self, flush: Flush, error: Exception) -> None:
        """A flush failed. After a failed sync the state of the disk is unknown: the log rejects further writes."""
        if isinstance(error, SyncFailed):
            self.fail(str(error))
        else:
            self._flush_state.failed(flush, self.epochs)

    def fail(self, reason: str) -> None:
        """Reject further writes."""
        self._failure = f"{self.folder}: {reason}"

    def _fail_until_reopened(self, reason: str) -> None:
        """The files are not as this log knows them; the next `open` completes or removes what was begun."""
        self.must_be_reopened = True
        self.fail(reason)

    def _check_writable(self) -> None:
        if self._failure is not None:
            raise StorageFailed(self._failure)

    def flush(self, now_ms: int) -> None:
        """Sync everything, blocking. `SyncFailed` must stop the node."""
        self._run(self.begin_flush(now_ms))

    def _run(self, flush: Flush) -> None:
        try:
            flush.run()
        except (OSError, SyncFailed) as error:
            self.flush_failed(flush, error)
            raise
        self.finish_flush(flush)

    def close(self, now_ms: int) -> None:
        """Sync everything and close the files. The next `open` may pass `is_clean`, unless this raises."""
        try:
            self._run(self.begin_close(now_ms))
        finally:
            self.abandon()

    def begin_close(self, now_ms: int) -> Flush:
        """Return what must be synced before closing, for callers that sync elsewhere; call `abandon` afterwards."""
        self._check_writable()
        self.write_buffered()
        self._segments.active.seal()
        self._take_snapshot()
        return self.begin_flush(now_ms).including(self._segments.active.path(TRANSACTION_INDEX), self.folder)

    def abandon(self) -> None:
        """Close the files as they are. Unsent slices keep their own references."""
        for segment in self._segments:
            segment.close()
        self.fail("the log is closed")

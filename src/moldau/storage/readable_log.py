"""Read access to a log: bounds, batches by offset, records by time, leader epochs, aborted transactions."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

from moldau.model.errors import OffsetOutOfRange
from moldau.model.ids import NO_OFFSET
from moldau.model.ports import Disk, FileSlice
from moldau.storage import timestamps
from moldau.storage.aborted_transactions import find_aborted
from moldau.storage.append_buffer import AppendBuffer
from moldau.storage.batch_verifier import BatchVerifier
from moldau.storage.compaction import CompactionJob, plan_compaction
from moldau.storage.flush import FlushState
from moldau.storage.leader_epochs import LeaderEpochs
from moldau.storage.log_range import LogRange
from moldau.storage.producer_snapshots import Snapshots
from moldau.storage.producer_state import Producers
from moldau.storage.scrub import SegmentIndexes
from moldau.storage.segment import Segment
from moldau.storage.segments import Segments, SegmentSlice
from moldau.storage.settings import LogSettings
from moldau.storage.tail_index import TailIndex
from moldau.storage.transaction_index import AbortedTransaction
from moldau.storage.transaction_replay import TransactionReplay, replay_transactions
from moldau.storage.unreplicated_transactions import find_unreplicated


class ReadableLog:
    """The read-only half of `Log`; log.py has the other half and sets the state."""

    folder: str
    settings: LogSettings
    start_offset: int
    end_offset: int
    append_buffer: AppendBuffer
    producers: Producers
    epochs: LeaderEpochs
    _segments: Segments
    _snapshots: Snapshots
    _tail_index: TailIndex
    _flush_state: FlushState

    @property
    def size_bytes(self) -> int:
        return self._segments.size_bytes

    @property
    def segment_base_offsets(self) -> list[int]:
        return list(self._segments.bases)

    @property
    def has_unsynced_truncation(self) -> bool:
        """Whether a power loss could bring back truncated records."""
        return self._flush_state.is_truncated

    @property
    def first_unstable_offset(self) -> int | None:
        return self.producers.first_unstable_offset

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the last stable offset. A transaction whose records were deleted does not hold it back."""
        producers = self.producers
        if high_watermark < producers.known_from:
            ends = find_unreplicated(self._segments.all, self._snapshots, high_watermark, producers.known_from)
            producers.restore_unreplicated(ends, high_watermark)
        stable = producers.last_stable_offset(high_watermark)
        return stable if stable >= self.start_offset else min(self.start_offset, high_watermark)

    def read(
        self, offset: int, max_bytes: int, *, until_offset: int | None = None, at_least_one: bool = True
    ) -> FileSlice | None:
        """Read whole batches from the one with `offset` on, all below `until_offset`.

        None if there is nothing to read yet. With `at_least_one`, the first batch is returned regardless of its size.
        """
        end_offset = self.end_offset
        if not self.start_offset <= offset <= end_offset:
            raise OffsetOutOfRange(f"offset {offset} is out of range {self.start_offset} to {end_offset}")
        if until_offset is None or until_offset > end_offset:
            until_offset = end_offset
        if offset >= until_offset:
            return None
        if offset < self._tail_index.start_offset:
            return self._segments.read(offset, max_bytes, until_offset, end_offset, at_least_one=at_least_one)
        active = self._segments.active
        limit = until_offset if until_offset < end_offset else None
        position, end = self._tail_index.range(offset, limit, max_bytes, active.size_bytes, at_least_one)
        if end <= position:
            return None
        assert active.file is not None
        return FileSlice(active.file, position, end - position)

    def read_bytes(
        self, offset: int, max_bytes: int, *, until_offset: int | None = None, at_least_one: bool = True
    ) -> bytes:
        """Return what `read` finds as bytes; empty if there is nothing."""
        found = self.read(offset, max_bytes, until_offset=until_offset, at_least_one=at_least_one)
        return found.read() if found is not None else b""

    def compaction_job(self, cleaned_offset: int, high_watermark: int, now_ms: int) -> CompactionJob | None:
        """Return a compaction job, or None if the log is clean enough."""
        if not self.settings.is_compacted:
            return None
        stable = self.last_stable_offset(high_watermark)
        job = plan_compaction(
            self.folder, self._segments.all, self.settings, self.start_offset, cleaned_offset, stable, now_ms
        )
        if job is None:
            return None
        # Only part of the last segment may be cleaned, but its index is rewritten completely.
        bound = self._segments.bound_of(len(job.segments) - 1, self.end_offset)
        aborted = self.aborted_transactions(self._segments.bases[0], bound)
        return replace(job, last_of_producers=self.producers.last_offsets(), aborted=tuple(aborted))

    def renamed_to(self, folder: str) -> None:
        """The directory of this log has another name."""
        self.folder = folder
        self._segments.renamed_to(folder)
        self._snapshots.renamed_to(folder)
        self.epochs.renamed_to(folder)
        self._flush_state.renamed_to(folder)

    # ── Verification ──

    def verifier(self, segment: Segment) -> BatchVerifier | None:
        """Return a verifier of a segment from its start on; None if the segment is no longer part of the log. Of the
        active segment, it covers what an earlier process has written."""
        if segment not in self._segments.all:
            return None
        written_bytes = self._written_bytes(segment)
        verifier = BatchVerifier(
            segment.base_offset,
            self._segments.bound_of(self._segments.index_for(segment.base_offset), self.end_offset),
            min(written_bytes, segment.verification.trusted_from) if segment.is_active else written_bytes,
            frozenset(self.epochs.epochs),
        )
        verifier.next_offset = segment.base_offset
        return verifier

    def slice_verifier(self, read: SegmentSlice) -> BatchVerifier | None:
        """Return a verifier of the bytes of a read, and of a few before it: they show where it must begin."""
        verifier = self.verifier(read.segment)
        if verifier is not None:
            verifier.size_bytes = self._written_bytes(read.segment)
            verifier.position = read.segment.offset_lookup().boundary_before(max(0, read.position - 1))
            if verifier.position:
                verifier.next_offset = NO_OFFSET
        return verifier

    def _written_bytes(self, segment: Segment) -> int:
        """The size of a segment without the batches that are still buffered."""
        is_buffered = segment is self._segments.active and self.append_buffer
        return self.append_buffer.position if is_buffered else segment.size_bytes

    def segment_after(self, base_offset: int) -> Segment | None:
        """Return the first segment beyond a base offset."""
        number = bisect_right(self._segments.bases, base_offset)
        return self._segments.all[number] if number < len(self._segments) else None

    def segment_of(self, offset: int) -> Segment | None:
        """Return the segment that has an offset."""
        in_log = self.start_offset <= offset < self.end_offset
        return self._segments.all[self._segments.index_for(offset)] if in_log else None

    def closed_sizes(self) -> list[tuple[int, int]]:
        """Return base offset and size of each closed segment."""
        return [(segment.base_offset, segment.size_bytes) for segment in self._segments.all[:-1]]

    def restore_indexes(self, segment: Segment, indexes: SegmentIndexes) -> bool:
        """Replace the index files of a closed segment, unless it has left the log."""
        is_present = segment in self._segments.all and not segment.is_active
        if is_present:
            segment.write_closed_indexes(*indexes)
        return is_present

    @property
    def layout_version(self) -> tuple[int, int]:
        """Changes whenever records are removed or files replaced, but not on appends."""
        return self._segments.layout_changes, self.start_offset

    def log_range(self, offset: int, max_bytes: int) -> LogRange | None:
        """Return the byte ranges of batches from the one with `offset` on; None if there are none."""
        return self._segments.log_range(offset, max_bytes) if offset < self.end_offset else None

    def offset_for_timestamp(self, timestamp: int) -> tuple[int, int] | None:
        """Return timestamp and offset of the first record with at least this timestamp."""
        return timestamps.first_at_or_after(self._segments.all, timestamp, self.start_offset)

    def batch_for_timestamp(self, timestamp: int, from_offset: int) -> bytes | None:
        """Return the first batch from `from_offset` on whose max timestamp qualifies; the caller searches it."""
        return timestamps.batch_at_or_after(self._segments.all, timestamp, max(from_offset, self.start_offset))

    @property
    def newest_timestamp(self) -> int:
        return timestamps.newest_timestamp(self._segments.all)

    def max_timestamp(self) -> tuple[int, int] | None:
        """Return the largest timestamp and the offset of the first record with it."""
        return timestamps.newest(self._segments.all)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the largest known epoch not above `epoch` and its end offset; (-1, -1) if none."""
        return self.epochs.end_offset_of(epoch, self.end_offset)

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Return the aborted transactions with records in [start, end). Raises `UnverifiedTransactionIndex`."""
        return find_aborted(self._segments, start_offset, end_offset)

    def aborted_in(self, read: FileSlice, offset: int, until_offset: int) -> list[AbortedTransaction]:
        """Return those with records in what was read from `offset` on, and perhaps a few after it."""
        return self.aborted_transactions(offset, self._segments.end_of(read, offset, until_offset))

    def transaction_replay(self, segment: Segment) -> TransactionReplay | None:
        """Return how to verify the transaction index of a segment; None if the segment is no longer part of the log.
        Buffered batches must be written before."""
        if segment not in self._segments.all:
            return None
        segments = self._segments.all[: self._segments.index_for(segment.base_offset) + 1]
        bounds = [
            *(each.base_offset for each in segments[1:]),
            self._segments.bound_of(len(segments) - 1, self.end_offset),
        ]
        epochs = frozenset(self.epochs.epochs)
        return TransactionReplay(
            self.folder,
            self._snapshots.between(segments[0].base_offset, segment.base_offset),
            [
                BatchVerifier(each.base_offset, bound, each.size_bytes, epochs)
                for each, bound in zip(segments, bounds, strict=True)
            ],
            list(segment.aborted.entries),
        )

    def restore_transactions(self, disk: Disk, base_offsets: Sequence[int]) -> None:
        """Compute the lost transaction indexes of these segments, if the segments still exist."""
        for segment in [each for each in self._segments if each.base_offset in base_offsets]:
            replay = self.transaction_replay(segment)
            assert replay is not None
            segment.aborted.replace(replay_transactions(disk, replay))
            # Before the other indexes: their absence is what reveals the loss of this one
            segment.aborted.sync()

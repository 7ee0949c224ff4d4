"""Opening a partition's log: finish interrupted operations, then find the log end, leader epochs and producer state.

After a clean shutdown nothing is scanned. Otherwise every segment from the recovery point on is; see recovery.py. After
a failed sync, scanned data is written again: Linux marks the pages of a failed sync as clean, so they stay readable for
a while but no later sync would write them.
"""

import logging
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from moldau.model.ports import Disk
from moldau.storage import names as naming
from moldau.storage.batch_scan import CorruptBatch, find_batch, iterate_headers
from moldau.storage.checkpoints import CorruptCheckpoint
from moldau.storage.files import rewrite, sync, sync_directory
from moldau.storage.leader_epochs import LeaderEpochs
from moldau.storage.names import INDEX, LOG, SEGMENT_SUFFIXES, TIME_INDEX, TRANSACTION_INDEX, path_of
from moldau.storage.offset_index import OffsetIndex
from moldau.storage.open_segments import OpenSegments
from moldau.storage.producer_snapshots import Snapshots
from moldau.storage.producer_state import Producers
from moldau.storage.recovery import CorruptLog, SegmentScan, find_valid_batch_after, restore_producers, scan_segment
from moldau.storage.segment import NEVER, RELATIVE_OFFSET_MAX, Segment
from moldau.storage.segment_swap import finish_swaps
from moldau.storage.settings import LogSettings
from moldau.storage.time_index import TimeIndex

_log = logging.getLogger(__name__)

_LEFTOVERS: Final = (naming.DELETED, naming.CLEANED, naming.TEMPORARY)


@dataclass(slots=True)
class LogLoader:
    """A directory in the process of becoming a log."""

    disk: Disk
    folder: str
    settings: LogSettings
    now_ms: int
    recovery_point: int
    start_offset: int
    is_clean: bool
    has_lost_power: bool
    has_sync_failure: bool
    cleaned_offset: int | None
    allows_data_loss: bool
    open_segments: OpenSegments
    producers: Producers
    segments: list[Segment] = field(default_factory=list)
    epochs: LeaderEpochs = field(init=False)
    snapshots: Snapshots = field(init=False)
    end_offset: int = 0
    truncated_bytes: int = 0
    unindexed: list[int] = field(default_factory=list)  # base offsets of segments without index files
    changed_directories: list[str] = field(default_factory=list)  # with changed entries that are not synced yet

    def run(self) -> None:
        if not self.disk.exists(self.folder):
            self.disk.make_directory(self.folder)
            self.changed_directories.append(self.folder.rpartition("/")[0])
        self.epochs = LeaderEpochs(self.disk, self.folder)
        self._find_segments()
        self._load_epochs()
        if not self._load_clean():
            self._recover()
        self._apply_start_offset()
        self.epochs.truncate_from_end(self.end_offset)
        self.epochs.truncate_from_start(self.start_offset)
        kept = {segment.base_offset for segment in self.segments}
        self.snapshots.remove_between(0, self.segments[-1].base_offset, kept)
        self.recovery_point = min(self.recovery_point, self.end_offset)

    # ── Files ──

    def _find_segments(self) -> None:
        finish_swaps(self.disk, self.folder, self.disk.list(self.folder))
        names = self._remove_leftovers()
        bases = {naming.offset_in(name) for name in names if name.endswith(LOG)}
        for name in names:
            if name.endswith(SEGMENT_SUFFIXES) and naming.offset_in(name) not in bases:
                self.disk.unlink(f"{self.folder}/{name}")  # an index without a log
        self.snapshots = Snapshots(self.disk, self.folder, names)
        for base_offset in sorted(base for base in bases if base is not None):
            size = self.disk.size(path_of(self.folder, base_offset, LOG))
            self.segments.append(self._segment(base_offset, size))
        self._remove_shadowing_segments()
        self._find_unindexed(set(names))

    def _remove_shadowing_segments(self) -> None:
        """A failed roll may leave an empty segment that could not be removed. Later appends went to the segment before
        it, and would be hidden. After a power loss a truncated segment may reappear likewise."""
        if self.has_lost_power:
            return
        kept = self.segments[:1]
        for segment in self.segments[1:]:
            if not segment.size_bytes and _reaches(kept[-1], segment.base_offset):
                _log.warning("%s: removing an empty segment that shadows records", segment.path(LOG))
                self._remove(segment)
            else:
                kept.append(segment)
        self.segments = kept

    def _find_unindexed(self, names: set[str]) -> None:
        """Every segment has an offset index, but few a transaction index: the latter may be lost if the former is."""
        for segment in self.segments:
            paths = segment.path(INDEX), segment.path(TRANSACTION_INDEX)
            if segment.size_bytes and not any(path.rpartition("/")[2] in names for path in paths):
                self.unindexed.append(segment.base_offset)

    def _remove_leftovers(self) -> list[str]:
        """Delete temporary and deleted files; return the remaining names."""
        names = self.disk.list(self.folder)
        leftovers = [name for name in names if name.endswith(_LEFTOVERS) and naming.offset_in(name) is not None]
        for name in leftovers:
            self.disk.unlink(f"{self.folder}/{name}")
        return [name for name in names if name not in set(leftovers)]

    def _segment(self, base_offset: int, size_bytes: int) -> Segment:
        return Segment(self.disk, self.folder, base_offset, size_bytes, self.now_ms, self.open_segments)

    def _load_epochs(self) -> None:
        try:
            self.epochs.load()
        except CorruptCheckpoint as error:
            _log.warning("%s: rebuilding leader epochs, corrupt checkpoint: %s", self.folder, error)
            self.epochs.clear()
            self._epochs_from_log()

    def _epochs_from_log(self) -> None:
        for segment in self.segments:
            try:
                for _, header in iterate_headers(segment.open_file(), 0, segment.size_bytes):
                    if header.partition_leader_epoch > self.epochs.latest:
                        self.epochs.assign(header.partition_leader_epoch, header.base_offset)
            except CorruptBatch:
                return  # the following scan handles it
        self.epochs.is_dirty = True

    # ── After a clean shutdown ──

    def _load_clean(self) -> bool:
        """Load the log without a scan. Returns False if it is not as a clean shutdown leaves it."""
        if not self.segments:
            return True
        if not self.is_clean:
            return False
        active = self.segments[-1]
        try:
            offsets, times, is_saved = self._saved_indexes(active)
            self.end_offset, unindexed = self._end_of(active, offsets)
        except CorruptBatch as error:
            _log.warning("%s: scanning despite clean shutdown: %s", self.folder, error)
            return False
        last = times.last()
        if last is not None:
            active.max_timestamp, active.max_timestamp_offset = last[0], active.base_offset + last[1]
        active.activate(self.settings, offsets, times, is_saved=is_saved)
        active.unindexed_bytes = unindexed
        self.recovery_point = self.end_offset
        self._load_producers(self.end_offset)
        return True

    def _saved_indexes(self, active: Segment) -> tuple[OffsetIndex, TimeIndex, bool]:
        """Return the indexes of the active segment, and whether the files were valid."""
        with suppress(FileNotFoundError):
            offsets = OffsetIndex.load(self.disk.read(active.path(INDEX)), active.size_bytes)
            times = TimeIndex(self.disk.read(active.path(TIME_INDEX)))
            end_max = active.base_offset + RELATIVE_OFFSET_MAX
            if offsets is not None and times.is_sound(active.base_offset, end_max):
                return offsets, times, True
        _log.warning("%s: rebuilding indexes of segment %d", self.folder, active.base_offset)
        return *active.indexes_from_log(self.settings.index_interval_bytes), False

    def _end_of(self, active: Segment, offsets: OffsetIndex) -> tuple[int, int]:
        """Return the offset after the last batch, and the bytes after the last index entry."""
        begin = offsets.positions[-1] if offsets.positions else 0
        end_offset = active.base_offset
        for _, header in iterate_headers(active.open_file(), begin, active.size_bytes):
            if header.base_offset < end_offset:
                raise CorruptBatch(begin, "decreasing offsets")
            end_offset = header.next_offset
        return end_offset, active.size_bytes - begin

    # ── After an unclean shutdown ──

    def _recover(self) -> None:
        self.changed_directories.append(self.folder)
        first = self._first_unflushed()
        start = self.segments[first].base_offset
        self.epochs.truncate_from_end(start)
        self.snapshots.remove_above(start)
        self._load_producers(start, before=first)
        next_offset = start
        for number in range(first, len(self.segments)):
            segment = self.segments[number]
            if number > first:
                self.snapshots.take(self.producers)
            next_offset = max(next_offset, segment.base_offset)
            self.producers.end_offset = next_offset
            bound = self.segments[number + 1].base_offset if number + 1 < len(self.segments) else NEVER
            scan = scan_segment(
                segment,
                next_offset,
                bound,
                self.settings.index_interval_bytes,
                self.epochs,
                self.producers,
                has_lost_power=self.has_lost_power,
            )
            next_offset = scan.next_offset
            self._detect_lost_tail(scan, bound)
            if scan.broken and next_offset == bound:
                self._truncate_surplus(segment, scan)
            elif scan.broken:
                self._truncate_at(number, scan)
            if self.has_sync_failure:
                self._rewrite_unsynced(segment, scan)
            if number == len(self.segments) - 1:
                self._activate(segment, scan)
                break
            self._restore_indexes(segment, scan)
        self.end_offset = next_offset

    def _rewrite_unsynced(self, segment: Segment, scan: SegmentScan) -> None:
        """Write again what lies above the recovery point; below it a sync succeeded."""
        first = find_batch(segment.open_file(), 0, scan.valid_bytes, self.recovery_point)
        if first is not None:
            rewrite(self.disk, segment.path(LOG), first[0], scan.valid_bytes)

    def _truncate_surplus(self, segment: Segment, scan: SegmentScan) -> None:
        """Cut bytes after the last batch: the segment was truncated and closed, then lost power."""
        _log.warning("%s: truncated %d surplus bytes", segment.path(LOG), segment.size_bytes - scan.valid_bytes)
        segment.truncate_closed(scan.valid_bytes)

    def _detect_lost_tail(self, scan: SegmentScan, bound: int) -> None:
        """A power loss may keep the start of a segment and lose the end of the one before: a gap is a torn end.

        Only compaction leaves gaps, and then also within segments.
        """
        is_whole = scan.next_offset >= bound or bound == NEVER
        if not (is_whole or scan.broken or scan.has_gaps or self._may_be_compacted(scan.base_offset)):
            scan.broken = f"missing end, the next segment starts at {bound},"

    def _may_be_compacted(self, base_offset: int) -> bool:
        """Whether compaction may have removed the end of a segment, here or at the leader it was copied from.

        After a power loss only local compaction counts: a replica that is truncated unnecessarily is fetched again, but
        a lost gap would never be.
        """
        if self.cleaned_offset is None or not self.has_lost_power:
            return self.settings.is_compacted
        return self.settings.is_compacted and base_offset < self.cleaned_offset

    def _first_unflushed(self) -> int:
        number = len(self.segments) - 1
        while number > 0 and self.segments[number].base_offset > self.recovery_point:
            number -= 1
        return number

    def _truncate_at(self, number: int, scan: SegmentScan) -> None:
        """A batch is corrupt. If it is the torn end of the log, truncate there.

        A power loss may leave gaps in unsynced data. Without one, a valid batch after the corrupt one shows that this
        is no torn end but corruption, and later batches may have been acknowledged.
        """
        segment = self.segments[number]
        where = f"{segment.path(LOG)}: {scan.broken} at position {scan.valid_bytes}, offset {scan.next_offset}"
        if not self.allows_data_loss:
            if scan.next_offset < self.recovery_point:
                raise CorruptLog(f"{where}, below the recovery point {self.recovery_point}")
            whole = None
            if not self.has_lost_power:
                whole = find_valid_batch_after(
                    segment.open_file(), scan.valid_bytes, segment.size_bytes, scan.next_offset
                )
            if whole is not None:
                raise CorruptLog(f"{where}, but a valid batch follows at position {whole}")
            if not self.has_lost_power and any(later.size_bytes for later in self.segments[number + 1 :]):
                raise CorruptLog(f"{where}, but there are later segments")
        self.truncated_bytes = segment.size_bytes - scan.valid_bytes
        _log.warning("%s: truncated %d bytes", where, self.truncated_bytes)
        for later in reversed(self.segments[number + 1 :]):
            self.truncated_bytes += later.size_bytes
            self._remove(later)
        del self.segments[number + 1 :]
        sync_directory(self.disk, self.folder)

    def _remove(self, segment: Segment) -> None:
        for path in segment.mark_deleted():
            self.disk.unlink(path)

    def _activate(self, segment: Segment, scan: SegmentScan) -> None:
        truncate_size = scan.valid_bytes if scan.valid_bytes < segment.size_bytes else None
        segment.size_bytes = scan.valid_bytes
        segment.max_timestamp, segment.max_timestamp_offset = scan.max_timestamp, scan.max_timestamp_offset
        segment.activate(self.settings, scan.offsets, scan.times)
        segment.unindexed_bytes = scan.unindexed_bytes
        segment.aborted.replace(scan.aborted)
        segment.write_behind()
        segment.verification.add(0, scan.valid_bytes)
        if truncate_size is not None:
            segment.open_file().truncate(truncate_size)
            # Nothing below the recovery point is scanned again, so truncated data must not return with a power loss.
            sync(segment.open_file())

    def _restore_indexes(self, segment: Segment, scan: SegmentScan) -> None:
        """Restore the indexes of a scanned segment that is not active."""
        scan.times.append(scan.max_timestamp, scan.max_timestamp_offset - scan.base_offset)
        segment.write_closed_indexes(scan.offsets, scan.times)
        segment.aborted.replace(scan.aborted)
        segment.verification.add(0, scan.valid_bytes)

    # ── Common ──

    def _load_producers(self, end_offset: int, before: int | None = None) -> None:
        """Restore the producer state at an offset: the latest snapshot, then the batches after it."""
        restore_producers(self.snapshots, self.segments[:before], self.producers, end_offset, self.now_ms)

    def _apply_start_offset(self) -> None:
        """Create the first segment of an empty log, or restart a log that ends before its start offset."""
        if self.segments and self.end_offset < self.start_offset:
            _log.warning(
                "%s: log end %d is below its start %d, restarting it empty",
                self.folder,
                self.end_offset,
                self.start_offset,
            )
            for segment in reversed(self.segments):
                self._remove(segment)
            self.segments.clear()
            self.snapshots.remove_above(-1)
            self.epochs.clear()
        if not self.segments:
            self.end_offset = self.start_offset
            self.producers.clear(self.start_offset)
            segment = self._segment(self.start_offset, 0)
            segment.create(self.settings)
            self.segments.append(segment)
            self.changed_directories.append(self.folder)
        self.start_offset = max(self.start_offset, self.segments[0].base_offset)


def _reaches(segment: Segment, offset: int) -> bool:
    """Whether a segment has batches from an offset on. If it is corrupt, a later read reports it."""
    with suppress(CorruptBatch):
        return segment.find(offset) is not None
    return False

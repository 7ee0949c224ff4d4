"""A segment: a log file and its indexes, named by base offset.

    00000000000000368769.log         batches
    00000000000000368769.index       offset   → position   (sparse)
    00000000000000368769.timeindex   timestamp → offset    (sparse)
    00000000000000368769.txnindex    aborted transactions, if any

The last segment of a log is active: it grows, and its indexes are in memory and written behind. All others are closed:
their files are opened on demand, and a bounded number of them stays open.
"""

from contextlib import suppress
from typing import Final
from zlib import crc32

from moldau.model.ids import NO_TIMESTAMP
from moldau.model.ports import Disk, File
from moldau.model.units import MiB
from moldau.records.header import HEADER_BYTES, MAGIC, read_header
from moldau.storage import offset_index, time_index
from moldau.storage.batch_scan import find_batch, iterate_headers
from moldau.storage.files import replace_cache, sync
from moldau.storage.names import DELETED, INDEX, LOG, SEGMENT_SUFFIXES, TIME_INDEX, path_of
from moldau.storage.offset_index import MappedOffsetIndex, OffsetIndex
from moldau.storage.open_segments import OpenSegments
from moldau.storage.segment_transactions import SegmentTransactions, write_end
from moldau.storage.segment_verification import SegmentVerification
from moldau.storage.settings import LogSettings
from moldau.storage.time_index import TimeEntry, TimeIndex

RESERVE_BYTES_MIN: Final = 4 * MiB  # smaller segments are not preallocated: there may be thousands
RESERVE_AHEAD_BYTES: Final = 16 * MiB
RELATIVE_OFFSET_MAX: Final = (1 << 31) - 1
NEVER: Final = 1 << 62
_INDEX_ENTRIES_UNWRITTEN_MAX: Final = 512  # index entries are batched in memory


class Segment:
    """The files of a range of offsets."""

    __slots__ = (
        "_disk",
        "_first_timestamp",
        "_folder",
        "_index_entries_soft_max",
        "_is_index_written",
        "_open_segments",
        "aborted",
        "base_offset",
        "bytes_limit",
        "created_ms",
        "file",
        "is_active",
        "max_timestamp",
        "max_timestamp_offset",
        "offset_limit",
        "offsets",
        "reserved_bytes",
        "roll_timestamp",
        "size_bytes",
        "times",
        "unindexed_bytes",
        "verification",
    )

    def __init__(
        self, disk: Disk, folder: str, base_offset: int, size_bytes: int, now_ms: int, open_segments: OpenSegments
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._open_segments = open_segments
        self.base_offset = base_offset
        self.size_bytes = size_bytes
        self.created_ms = now_ms
        self.is_active = False
        self.file: File | None = None
        self.offsets: OffsetIndex | MappedOffsetIndex | None = None
        self.times: TimeIndex | None = None
        self.aborted = SegmentTransactions(disk, folder, base_offset)
        self.verification = SegmentVerification(trusted_from=size_bytes)
        self._is_index_written = False
        self._first_timestamp: int | None = None
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        self.unindexed_bytes = 0
        self.reserved_bytes = RESERVE_BYTES_MIN  # beyond this size, space is preallocated ahead of writes
        # Limits of the active segment, precomputed so that an append only compares.
        self.bytes_limit = 0
        self._index_entries_soft_max = 0
        self.offset_limit = base_offset + RELATIVE_OFFSET_MAX
        self.roll_timestamp = NEVER

    def renamed_to(self, folder: str) -> None:
        self._folder = folder
        self.aborted.renamed_to(folder)

    def path(self, suffix: str) -> str:
        return path_of(self._folder, self.base_offset, suffix)

    # ── Active segment ──

    def create(self, settings: LogSettings) -> None:
        """Create the files of a new active segment."""
        self.file = self._disk.open(self.path(LOG), create=True)
        self.file.truncate(0)
        self.size_bytes = 0
        self._begin_activity(OffsetIndex(), TimeIndex(), settings)
        self.aborted.begin()
        self._write_indexes()
        if settings.preallocate:
            self.file.allocate(settings.segment_bytes_max)

    def activate(
        self, settings: LogSettings, offsets: OffsetIndex, times: TimeIndex, *, is_saved: bool = False
    ) -> None:
        """Become the active segment with these indexes; `is_saved` if the files match them."""
        self.release()
        self._open_segments.forget(self)
        self.file = self._disk.open(self.path(LOG))
        self._begin_activity(offsets, times, settings)
        self._is_index_written = is_saved

    def _begin_activity(self, offsets: OffsetIndex, times: TimeIndex, settings: LogSettings) -> None:
        self.offsets, self.times = offsets, times
        self.is_active = True
        self.set_limits(settings)

    def set_limits(self, settings: LogSettings) -> None:
        """Compute when this segment is full, from its settings and first record."""
        self.bytes_limit = min(settings.segment_bytes_max, RELATIVE_OFFSET_MAX)
        # Below it both indexes have room: a time entry needs an offset entry, except one when a segment is closed.
        self._index_entries_soft_max = settings.segment_index_bytes // time_index.ENTRY_BYTES - 1
        if self._is_index_full(settings):
            self.bytes_limit = 0
        first = self.first_timestamp if self.size_bytes else None
        self.roll_timestamp = NEVER if first is None or first < 0 else first + self._age_limit_ms(settings)

    def _age_limit_ms(self, settings: LogSettings) -> int:
        # Spreads rolls over time like a random number, but is the same in every replay.
        jitter = crc32(self.path(LOG).encode()) % settings.segment_jitter_ms if settings.segment_jitter_ms else 0
        return settings.segment_ms_max - min(jitter, settings.segment_ms_max)

    def _is_index_full(self, settings: LogSettings) -> bool:
        assert self.offsets is not None
        assert self.times is not None
        return (
            len(self.offsets) >= settings.segment_index_bytes // offset_index.ENTRY_BYTES
            or len(self.times) >= settings.segment_index_bytes // time_index.ENTRY_BYTES
        )

    def is_due_to_roll(self, settings: LogSettings, now_ms: int) -> bool:
        """Whether the segment is old enough: both its first record and the segment itself.

        Otherwise records with old timestamps would roll a segment at every check.
        """
        first = self.first_timestamp
        return first is not None and now_ms - max(first, self.created_ms) > self._age_limit_ms(settings)

    def note_first_batch(self, timestamp: int, settings: LogSettings) -> None:
        """The first batch determines when the segment rolls."""
        self._first_timestamp = timestamp
        self.set_limits(settings)

    def add_index_entry(self, last_offset: int, position: int, settings: LogSettings) -> None:
        offsets, times = self.offsets, self.times
        assert isinstance(offsets, OffsetIndex)
        assert times is not None
        base_offset = self.base_offset
        offsets.offsets.append(last_offset - base_offset)
        offsets.positions.append(position)
        if self.max_timestamp > times.last_timestamp:
            times.append(self.max_timestamp, self.max_timestamp_offset - base_offset)
        self.unindexed_bytes = 0
        self._is_index_written = False
        count = len(offsets.offsets)
        if count % _INDEX_ENTRIES_UNWRITTEN_MAX == 0:
            # The batch is already in the log, so a full disk must not fail this append: retry later.
            with suppress(OSError):
                self._write_indexes()
        if count >= self._index_entries_soft_max and self._is_index_full(settings):
            self.bytes_limit = 0  # the next append rolls

    def write_behind(self) -> None:
        """Write pending index entries."""
        self._write_indexes()
        self.aborted.write()

    def _write_indexes(self) -> None:
        assert isinstance(self.offsets, OffsetIndex)
        assert self.times is not None
        if self._is_index_written:
            return
        write_end(self._disk, self.path(INDEX), *self.offsets.unwritten())
        self.offsets.mark_written()
        write_end(self._disk, self.path(TIME_INDEX), *self.times.unwritten())
        self.times.mark_written()
        self._is_index_written = True

    def seal(self, *, is_synced: bool = False) -> None:
        """Bring the indexes of the active segment to the state of a closed one.

        If the log is synced already, no flush will cover the transaction index, and no scan after a power loss would
        notice its absence; the other indexes are verified before use.
        """
        assert self.times is not None
        if self.times.append(self.max_timestamp, self.max_timestamp_offset - self.base_offset):
            self._is_index_written = False
        self.write_behind()
        if is_synced:
            self.aborted.sync()
        if self.reserved_bytes > RESERVE_BYTES_MIN and self.file is not None:
            self.reserved_bytes = RESERVE_BYTES_MIN
            with suppress(OSError):
                self.file.truncate(self.size_bytes)  # releases preallocated space

    def retire(self, settings: LogSettings) -> None:
        """Stop growing, after `seal`."""
        if settings.preallocate and self.file is not None:
            with suppress(OSError):
                self.file.truncate(self.size_bytes)
        self.is_active = False
        self.offsets = self.times = None
        self._open_segments.use(self)

    def reserve(self) -> None:
        """Preallocate blocks ahead of writes, which saves a quarter of their cost.

        The file size does not change. Unused blocks are released when the segment is closed.
        """
        self.reserved_bytes = self.size_bytes + RESERVE_AHEAD_BYTES
        if self.file is not None and self.reserved_bytes <= self.bytes_limit:
            with suppress(OSError):  # the writes will report a full disk
                self.file.allocate(self.reserved_bytes)

    def truncate_to(self, position: int, end_offset: int, settings: LogSettings, *, was_written: bool = True) -> None:
        """Truncate the active segment's log and indexes to a batch boundary. Data that was never written needs no disk
        space to discard: its index is written with what follows."""
        assert isinstance(self.offsets, OffsetIndex)
        assert self.times is not None
        assert self.file is not None
        self._is_index_written = False
        self.offsets.truncate(position)
        self.times.truncate(end_offset - self.base_offset)
        self.aborted.truncate(end_offset)
        self.verification.truncate(position)
        if was_written:
            self._write_indexes()
            self.file.truncate(position)
        self.size_bytes = position
        self.unindexed_bytes = 0
        self._restore_max_timestamp()
        if position == 0:
            self._first_timestamp = None
        self.set_limits(settings)

    def _restore_max_timestamp(self) -> None:
        """Restore the largest timestamp, from the last index entry on."""
        assert self.times is not None
        assert self.offsets is not None
        last = self.times.last()
        self.max_timestamp, relative = last if last is not None else (NO_TIMESTAMP, 0)
        self.max_timestamp_offset = self.base_offset + relative
        for _, header in iterate_headers(self.open_file(), self.offsets.position_before(relative), self.size_bytes):
            if header.max_timestamp > self.max_timestamp:
                self.max_timestamp, self.max_timestamp_offset = header.max_timestamp, header.last_offset

    # ── Reads ──

    def open_file(self) -> File:
        file = self.file
        if file is None:
            file = self.file = self._disk.open(self.path(LOG), read_only=True)
        if not self.is_active:
            self._open_segments.use(self)
        return file

    def offset_from(self, position: int) -> int | None:
        """Return an offset not before a position, as close as the index allows; None at the end."""
        found = self.offset_lookup().offset_from(position)
        return None if found is None else self.base_offset + found

    def find(self, offset: int, *, start: int = 0) -> tuple[int, int] | None:
        """Return position and size of the first batch that ends at `offset` or later."""
        file = self.open_file()
        begin = self.offset_lookup().position_before(offset - self.base_offset)
        if self.verification.corrupt:
            return self.verification.find(file, max(begin, start), self.size_bytes, offset)
        if begin > start:
            start = begin
            if not self._is_valid_lookup(offset, begin):
                self.rebuild_indexes()
                start = 0
        return find_batch(file, start, self.size_bytes, offset)

    def _is_valid_lookup(self, offset: int, position: int) -> bool:
        """Whether the index entry is valid: a batch starts here, not past the offset."""
        head = self.open_file().pread(HEADER_BYTES, position) if position < self.size_bytes else b""
        if len(head) < HEADER_BYTES:
            return False
        header = read_header(head)
        return header.magic == MAGIC and self.base_offset <= header.base_offset <= offset

    def boundary_within(self, position: int, max_bytes: int) -> int:
        """Return the last batch end within `max_bytes` after `position`, a batch start."""
        limit = position + max_bytes
        boundary = max(self.offset_lookup().boundary_before(limit), position)
        if boundary - position >= max_bytes // 2:
            return boundary  # close enough: a search would gain a few KiB at most
        for start, header in iterate_headers(self.open_file(), boundary, self.size_bytes):
            if start + header.size_bytes > limit:
                return start
        return self.size_bytes

    def offset_lookup(self) -> OffsetIndex | MappedOffsetIndex:
        if self.offsets is None:
            self._map_indexes()
        assert self.offsets is not None
        return self.offsets

    def time_lookup(self) -> TimeIndex:
        if self.times is None:
            self._map_indexes()
        assert self.times is not None
        return self.times

    def _map_indexes(self) -> None:
        """Map the index files of a closed segment, or rebuild invalid ones."""
        self._open_segments.use(self)
        try:
            offsets = MappedOffsetIndex(self._disk.map(self.path(INDEX)))
            times = TimeIndex(self._disk.map(self.path(TIME_INDEX)))
        except FileNotFoundError:
            self.rebuild_indexes()
            return
        last_possible = self.base_offset + RELATIVE_OFFSET_MAX + 1
        if offsets.is_plausible(self.size_bytes) and times.is_sound(self.base_offset, last_possible):
            self.offsets, self.times = offsets, times
        else:
            offsets.release()
            times.release()
            self.rebuild_indexes()

    def rebuild_indexes(self, interval_bytes: int = 4096) -> None:
        """Rebuild the offset and time index from all batch headers."""
        offsets, times = self.indexes_from_log(interval_bytes)
        if self.is_active:
            self.offsets, self.times = offsets, times
            self._is_index_written = False
            self._write_indexes()
            return
        self.write_closed_indexes(offsets, times)
        self.offsets = MappedOffsetIndex(self._disk.map(self.path(INDEX)))
        self.times = TimeIndex(self._disk.map(self.path(TIME_INDEX)))

    def write_closed_indexes(self, offsets: OffsetIndex, times: TimeIndex) -> None:
        self._drop_maps()
        for suffix, data in ((INDEX, offsets.to_bytes()), (TIME_INDEX, times.to_bytes())):
            replace_cache(self._disk, self.path(suffix), data)

    def indexes_from_log(self, interval_bytes: int) -> tuple[OffsetIndex, TimeIndex]:
        """Return the indexes that Kafka would have written for these batches."""
        offsets, times = OffsetIndex(), TimeIndex()
        unindexed = 0
        self.max_timestamp, self.max_timestamp_offset = NO_TIMESTAMP, self.base_offset
        for position, header in iterate_headers(self.open_file(), 0, self.size_bytes):
            if header.max_timestamp > self.max_timestamp:
                self.max_timestamp, self.max_timestamp_offset = header.max_timestamp, header.last_offset
            if unindexed > interval_bytes:
                offsets.append(header.last_offset - self.base_offset, position)
                times.append(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
                unindexed = 0
            unindexed += header.size_bytes
        times.append(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
        return offsets, times

    @property
    def first_timestamp(self) -> int | None:
        """Return the max timestamp of the first batch (-1 if it has none), or None without batches."""
        if self._first_timestamp is None and self.size_bytes >= HEADER_BYTES:
            self._first_timestamp = read_header(self.open_file().pread(HEADER_BYTES, 0)).max_timestamp
        return self._first_timestamp

    def newest_timestamp(self) -> tuple[int, int]:
        """Return the largest timestamp and the last offset of its batch; (-1, base offset) if none."""
        if self.max_timestamp < 0 and not self.is_active and self.size_bytes:
            last = self.time_lookup().last()
            # Retention deletes by this time, so verify the index against the log.
            is_true = self.first_timestamp == NO_TIMESTAMP if last is None else self._matches_log(last)
            if not is_true:
                self.rebuild_indexes()
                last = self.time_lookup().last()
            if last is not None:
                self.max_timestamp, self.max_timestamp_offset = last[0], self.base_offset + last[1]
        return self.max_timestamp, self.max_timestamp_offset

    def _matches_log(self, entry: TimeEntry) -> bool:
        """Whether the batch of a time index entry has that timestamp."""
        found = self.find(self.base_offset + entry.relative_offset)
        if found is None:
            return False
        return read_header(self.open_file().pread(HEADER_BYTES, found[0])).max_timestamp == entry.timestamp

    def offset_older_than(self, timestamp: int) -> int:
        """Return an offset such that all batches before its own are older than `timestamp`."""
        entry = self.time_lookup().entry_before(timestamp)
        if entry is not None and not self._matches_log(entry):
            self.rebuild_indexes()
            entry = self.time_lookup().entry_before(timestamp)
        return self.base_offset + (entry.relative_offset if entry is not None else 0)

    # ── Removal ──

    def truncate_closed(self, size_bytes: int) -> None:
        """Cut bytes at the end of a closed segment, before any read."""
        self.release()
        file = self._disk.open(self.path(LOG))
        try:
            file.truncate(size_bytes)
            sync(file)
        finally:
            file.close()
        self.size_bytes = size_bytes

    def mark_deleted(self) -> list[str]:
        """Rename the files out of the log. Open slices stay readable; the returned paths are unlinked later."""
        paths = []
        for suffix in SEGMENT_SUFFIXES:
            path = self.path(suffix)
            if self._disk.exists(path):
                self._disk.rename(path, path + DELETED)
                paths.append(path + DELETED)
        self.close()  # last: on failure the segment stays usable
        return paths

    def remove(self) -> None:
        """Unlink the existing files."""
        self.release()
        for suffix in SEGMENT_SUFFIXES:
            if self._disk.exists(self.path(suffix)):
                self._disk.unlink(self.path(suffix))

    def release(self) -> None:
        """Close the files. A slice keeps its own reference."""
        self._drop_maps()
        self.file = None
        self.aborted.release()

    def _drop_maps(self) -> None:
        if isinstance(self.offsets, MappedOffsetIndex):
            self.offsets.release()
        if self.times is not None:
            self.times.release()
        self.offsets = self.times = None

    def close(self) -> None:
        """Close for good, with the log."""
        self._open_segments.forget(self)
        self.release()

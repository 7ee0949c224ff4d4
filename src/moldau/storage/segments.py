"""The segments of a log in offset order. The last one is active, all others are closed."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from moldau.model.ports import Disk, File, FileSlice
from moldau.storage.batch_scan import iterate_headers
from moldau.storage.log_range import FileRange, LogRange
from moldau.storage.names import SEGMENT_SUFFIXES
from moldau.storage.open_segments import OpenSegments
from moldau.storage.renames import Renames
from moldau.storage.segment import Segment
from moldau.storage.segment_swap import cleaned_paths, swap_in
from moldau.storage.settings import LogSettings


@dataclass(frozen=True, slots=True)
class SegmentSlice(FileSlice):
    """Batches found by the index of a segment: they may be old, and must be verified unless they are known to be valid.
    Batches at the end of the log are found without it."""

    segment: Segment

    @property
    def end(self) -> int:
        return self.position + self.length

    @property
    def is_verified(self) -> bool:
        """Whether the bytes are known to be valid, as long as they are cached."""
        return self.segment.verification.covers(self.position, self.end)


class Segments:
    """A non-empty list, and operations on several segments."""

    __slots__ = ("_disk", "_folder", "_open_segments", "active", "all", "bases", "layout_changes")

    def __init__(self, disk: Disk, folder: str, open_segments: OpenSegments, segments: list[Segment]) -> None:
        self._disk = disk
        self._folder = folder
        self._open_segments = open_segments
        self.all = segments
        self.bases = [segment.base_offset for segment in segments]
        self.active = segments[-1]
        self.layout_changes = 0  # number of replaced, truncated or removed files

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.all)

    def __len__(self) -> int:
        return len(self.all)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.all)

    def index_for(self, offset: int) -> int:
        """Return which segment would have an offset."""
        return max(0, bisect_right(self.bases, offset) - 1)

    def bound_of(self, number: int, end_offset: int) -> int:
        """Return the first offset beyond a segment."""
        return self.bases[number + 1] if number + 1 < len(self.bases) else end_offset

    # ── Reads ──

    def renamed_to(self, folder: str) -> None:
        self._folder = folder
        for each in self.all:
            each.renamed_to(folder)

    def read(
        self, offset: int, max_bytes: int, until_offset: int, end_offset: int, *, at_least_one: bool
    ) -> SegmentSlice | None:
        """Read whole batches from one segment, found by its index."""
        found = self._find(offset)
        if found is None:
            return None
        number, position, first_size = found
        segment = self.all[number]
        end = self._readable_end(number, position, until_offset, end_offset)
        if end <= position or (first_size > max_bytes and not at_least_one):
            return None
        if end - position > max_bytes:
            end = max(segment.boundary_within(position, max_bytes), position + first_size)
        return SegmentSlice(segment.open_file(), position, end - position, segment)

    def _find(self, offset: int) -> tuple[int, int, int] | None:
        """Return the segment, position and size of the first batch that ends at `offset` or later."""
        for number in range(self.index_for(offset), len(self.all)):
            found = self.all[number].find(offset)
            if found is not None:
                return number, *found
        return None  # the end of a compacted log may be empty

    def log_range(self, offset: int, max_bytes: int) -> LogRange | None:
        """Return the byte ranges of batches from the one with `offset` on, up to `max_bytes` but at least one batch."""
        found = self._find(offset)
        if found is None:
            return None
        number, position, first_size = found
        pieces: list[FileRange] = []
        for segment in self.all[number:]:
            length = segment.size_bytes - position
            if length > max_bytes:
                length = segment.boundary_within(position, max_bytes) - position
                length = length or (0 if pieces else first_size)
            if length:
                pieces.append(FileRange(segment.base_offset, position, length))
            max_bytes -= length
            if position + length < segment.size_bytes:
                break
            position = 0
        return LogRange(self._folder, tuple(pieces))

    def _readable_end(self, number: int, position: int, until_offset: int, end_offset: int) -> int:
        segment = self.all[number]
        if until_offset >= self.bound_of(number, end_offset):
            return segment.size_bytes
        beyond = segment.find(until_offset, start=position)
        return beyond[0] if beyond is not None else segment.size_bytes

    def end_of(self, read: FileSlice, offset: int, until_offset: int) -> int:
        """Return an offset after all batches of what was read from `offset` on, and close to them."""
        for number in range(self.index_for(offset), len(self.all)):
            segment = self.all[number]
            if segment.file is read.file:
                end_offset = segment.offset_from(read.position + read.length)
                return min(until_offset, self.bound_of(number, until_offset) if end_offset is None else end_offset)
        return until_offset

    # ── Growth ──

    def begin(self, base_offset: int, settings: LogSettings, now_ms: int) -> Segment:
        """Create a new active segment. On failure raises `OSError` and leaves nothing behind."""
        new = Segment(self._disk, self._folder, base_offset, 0, now_ms, self._open_segments)
        try:
            new.create(settings)
        except OSError:
            # An empty segment would hide later batches of the previous one after a restart.
            new.remove()
            raise
        if self.all and self.active.is_active:
            self.active.retire(settings)
        self.all.append(new)
        self.bases.append(base_offset)
        self.active = new
        return new

    def is_mostly_active(self, bytes_min: int) -> bool:
        """Whether the active segment is more than half of the log, and not small."""
        active_bytes = self.active.size_bytes
        return active_bytes >= bytes_min and active_bytes * 2 > self.size_bytes

    # ── Removal ──

    def remove_first(self) -> list[str]:
        """Remove the oldest segment; returns the paths to unlink. On failure it stays."""
        paths = self.all[0].mark_deleted()
        self.layout_changes += 1
        del self.bases[0], self.all[0]
        return paths

    def remove_last(self) -> None:
        paths = self.all[-1].mark_deleted()
        self.layout_changes += 1
        del self.bases[-1], self.all[-1]
        self._unlink(paths)

    def _unlink(self, paths: Sequence[str]) -> None:
        for path in paths:
            with suppress(OSError):  # it has left the log, and the next start retries
                self._disk.unlink(path)

    def restart_at(self, base_offset: int, settings: LogSettings) -> None:
        """Replace all segments by a new one."""
        created_ms = self.active.created_ms
        if not self.bases or base_offset <= self.bases[-1]:
            self._start_over(base_offset, settings, created_ms)
            return
        # The new one first: on failure the log still exists. A crash before the others are removed deletes it again,
        # because it is empty and does not follow them.
        self.begin(base_offset, settings, created_ms)
        with suppress(OSError):  # remaining files lie below the log start and are deleted by the next retention run
            while len(self.all) > 1:
                self._unlink(self.remove_first())

    def _start_over(self, base_offset: int, settings: LogSettings, created_ms: int) -> None:
        """The new segment may have the name of an old one. On failure nothing changes, unless it is `UndoFailed`."""
        old, bases, renames = self.all, self.bases, Renames(self._disk)
        self.layout_changes += 1
        try:
            paths = [path for segment in reversed(old) for path in renames.mark_deleted(segment)]
            self.all, self.bases = [], []
            self.begin(base_offset, settings, created_ms)
        except OSError as error:
            self.all, self.bases = old, bases
            raise renames.undo(error) from error
        for segment in old:
            segment.close()
        self._unlink(paths)

    def truncate_to(self, offset: int, settings: LogSettings) -> int:
        """Truncate every batch that ends at `offset` or later; return the new end offset."""
        self.layout_changes += 1
        # From the end backwards: a crash in between leaves a log without a gap.
        while self.bases[-1] >= offset:
            self.remove_last()
        self.active = active = self.all[-1]
        if not active.is_active:
            active.activate(settings, *active.indexes_from_log(settings.index_interval_bytes))
        found = active.find(offset)
        position = found[0] if found is not None else active.size_bytes
        end_offset = self._end_before(position)
        active.truncate_to(position, end_offset, settings)
        return end_offset

    def _end_before(self, position: int) -> int:
        """Return the offset after the batch that ends at `position` of the active segment."""
        end_offset = self.active.base_offset
        begin = self.active.offset_lookup().boundary_before(max(position - 1, 0))
        for _, header in iterate_headers(self.active.open_file(), begin, position):
            end_offset = header.next_offset
        return end_offset

    def replace(self, size_bytes: int, replaced: Sequence[tuple[int, int]]) -> list[str]:
        """Replace neighbours, given by base offset and size, by a cleaned segment; returns the paths to unlink.

        If they were removed or changed since the cleaning began, the cleaned segment is deleted instead.
        """
        base_offset = replaced[0][0]
        first = bisect_left(self.bases, base_offset)
        old = self.all[first : first + len(replaced)]
        if [(segment.base_offset, segment.size_bytes) for segment in old] != list(replaced) or self.active in old:
            return cleaned_paths(self._disk, self._folder, base_offset)
        self.layout_changes += 1
        paths = swap_in(self._disk, self._folder, base_offset, old)
        new = Segment(self._disk, self._folder, base_offset, size_bytes, old[-1].created_ms, self._open_segments)
        self.all[first : first + len(old)] = [new]
        self.bases[first : first + len(old)] = [base_offset]
        return paths

    # ── Sync ──

    def unsynced(self, start_offset: int, end_offset: int) -> tuple[list[File], list[str]]:
        """Return what holds offsets in [start, end): the active segment's open file and the paths of closed ones.

        The indexes of a closed segment are included; recovery rebuilds those of the active one.
        """
        if start_offset >= end_offset:
            return [], []
        last = self.index_for(end_offset - 1)
        chosen = self.all[self.index_for(start_offset) : last + 1]
        files = [self.active.open_file()] if self.active in chosen else []
        paths = [segment.path(suffix) for segment in chosen if not segment.is_active for suffix in SEGMENT_SUFFIXES]
        return files, paths

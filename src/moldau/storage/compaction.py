"""Log compaction: closed segments are copied without superseded records.

It runs in three steps. On the event loop, `plan_compaction` decides whether it is worthwhile. In a worker process,
`compact` reads the newest offset of each key in the dirty part, then writes new segments beside the old ones. Back on
the event loop, `Log.replace_segments` swaps them in.

    |----- clean -----|------ dirty ------|-- too young, or active --|
    start      first_dirty_offset     end_offset
"""

import errno
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

from moldau.model.ports import Disk
from moldau.records.header import BatchHeader, checksum
from moldau.storage import offset_index, time_index
from moldau.storage.batch_filter import BatchFilter, CleanedTransactions, read_ordered_records
from moldau.storage.batch_scan import CorruptBatch, iterate_headers
from moldau.storage.cleaned_segment import CleanedSegment
from moldau.storage.files import sync_directory
from moldau.storage.names import LOG
from moldau.storage.offset_map import KEYS_MAX, OffsetMap
from moldau.storage.open_segments import OpenSegments
from moldau.storage.segment import RELATIVE_OFFSET_MAX, Segment
from moldau.storage.segment_swap import remove_cleaned
from moldau.storage.settings import LogSettings
from moldau.storage.transaction_index import AbortedTransaction

FREE_SPACE_FACTOR: Final = 2  # required free space, as a multiple of the bytes to write


class ClosedSegment(NamedTuple):
    """A segment as referenced by a job."""

    base_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CompactionJob:
    """Input of `compact`; picklable."""

    folder: str
    segments: tuple[ClosedSegment, ...]
    first_dirty_offset: int
    end_offset: int
    settings: LogSettings
    now_ms: int
    dirty_ratio: float
    # Last data offset and epoch by producer id
    last_of_producers: dict[int, tuple[int, int]] = field(default_factory=dict)
    aborted: tuple[AbortedTransaction, ...] = ()
    keys_max: int = KEYS_MAX


class Replacement(NamedTuple):
    """A cleaned segment and the segments it replaces."""

    replaced: tuple[ClosedSegment, ...]
    size_bytes: int

    @property
    def base_offset(self) -> int:
        return self.replaced[0].base_offset


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """Result of a round. `cleaned_offset` is checkpointed once the replacements are swapped in."""

    replacements: tuple[Replacement, ...]
    cleaned_offset: int
    bytes_before: int
    bytes_after: int
    is_complete: bool = True  # enough disk space for all of it


# ── On the event loop ──


def plan_compaction(
    folder: str,
    segments: Sequence[Segment],
    settings: LogSettings,
    start_offset: int,
    cleaned_offset: int,
    last_stable_offset: int,
    now_ms: int,
) -> CompactionJob | None:
    """Return the job that would clean this log now, or None if it is clean enough. The last segment is active.

    The caller adds producers and transactions, only if there is something to do.
    """
    if not start_offset <= cleaned_offset <= segments[-1].base_offset:
        cleaned_offset = start_offset  # the checkpoint does not match this log: start over
    until = _first_uncleanable(segments, settings, cleaned_offset, last_stable_offset, now_ms)
    chosen = [segment for segment in segments[:-1] if segment.base_offset < until]
    dirty_bytes = sum(
        segment.size_bytes
        for segment, following in zip(chosen, segments[1:], strict=False)
        if following.base_offset > cleaned_offset
    )
    total_bytes = sum(segment.size_bytes for segment in chosen)
    if not dirty_bytes or until <= cleaned_offset:
        return None
    ratio = dirty_bytes / total_bytes
    if ratio <= settings.min_cleanable_dirty_ratio and not _is_overdue(chosen, settings, cleaned_offset, now_ms):
        return None
    return CompactionJob(
        folder=folder,
        segments=tuple(ClosedSegment(segment.base_offset, segment.size_bytes) for segment in chosen),
        first_dirty_offset=cleaned_offset,
        end_offset=until,
        settings=settings,
        now_ms=now_ms,
        dirty_ratio=ratio,
    )


def _first_uncleanable(
    segments: Sequence[Segment], settings: LogSettings, cleaned_offset: int, last_stable_offset: int, now_ms: int
) -> int:
    """Exclude the active segment, open transactions, and records younger than the compaction lag."""
    until = min(last_stable_offset, segments[-1].base_offset)
    if settings.min_compaction_lag_ms > 0:
        for segment, following in pairwise(segments):
            is_dirty = following.base_offset > cleaned_offset
            if is_dirty and segment.newest_timestamp()[0] > now_ms - settings.min_compaction_lag_ms:
                return min(until, segment.base_offset)
    return until


def _is_overdue(segments: Sequence[Segment], settings: LogSettings, cleaned_offset: int, now_ms: int) -> bool:
    firsts = (segment.first_timestamp for segment in segments if segment.base_offset >= cleaned_offset)
    oldest = min((first for first in firsts if first is not None and first > 0), default=now_ms)
    return oldest < now_ms - settings.max_compaction_lag_ms


# ── In the worker process ──


def compact(disk: Disk, job: CompactionJob) -> CompactionResult:
    """Write the cleaned segments of a round, synced, beside those they replace.

    If disk space is short, cleans as many from the start as possible; they free space for the rest in a later round.
    """
    remove_cleaned(disk, job.folder)
    try:
        return _compact(disk, job)
    except BaseException:
        remove_cleaned(disk, job.folder)
        raise


def _compact(disk: Disk, job: CompactionJob) -> CompactionResult:
    open_segments = OpenSegments()
    segments = [
        Segment(disk, job.folder, base_offset, size_bytes, job.now_ms, open_segments)
        for base_offset, size_bytes in job.segments
    ]
    try:
        newest = _newest_offsets(segments, job)
        batch_filter = BatchFilter(
            newest=newest,
            transactions=CleanedTransactions(job.aborted),
            last_of_producers=job.last_of_producers,
            end_offset=job.end_offset,
            now_ms=job.now_ms,
            delete_retention_ms=job.settings.delete_retention_ms,
        )
        chosen = [segment for segment in segments if segment.base_offset < newest.end_offset]
        replacements: list[Replacement] = []
        groups = group_segments(chosen, job.settings, job.end_offset)
        for group in groups:
            if not _has_space(disk, job.folder, group, is_first=not replacements):
                break
            replacements.append(_clean_group(disk, job, group, batch_filter))
        sync_directory(disk, job.folder)
    finally:
        for segment in segments:
            segment.close()
    is_complete = len(replacements) == len(groups)
    return CompactionResult(
        replacements=tuple(replacements),
        cleaned_offset=newest.end_offset if is_complete else job.first_dirty_offset,
        bytes_before=sum(size_bytes for each in replacements for _, size_bytes in each.replaced),
        bytes_after=sum(each.size_bytes for each in replacements),
        is_complete=is_complete,
    )


def _has_space(disk: Disk, folder: str, group: Sequence[Segment], *, is_first: bool) -> bool:
    """Check the free space, so that compaction does not fill the disk. Fails if there is none for the first group."""
    needed_bytes = sum(segment.size_bytes for segment in group)
    if disk.free_bytes(folder) >= FREE_SPACE_FACTOR * needed_bytes:
        return True
    if is_first:
        raise OSError(errno.ENOSPC, f"not enough free space for {needed_bytes} bytes of cleaned segments")
    return False


def _newest_offsets(segments: Sequence[Segment], job: CompactionJob) -> OffsetMap:
    """Read the dirty part up to its end, or until the offset map is full."""
    newest = OffsetMap(job.first_dirty_offset, job.keys_max)
    transactions = CleanedTransactions(each for each in job.aborted if each.last_offset >= job.first_dirty_offset)
    for number, segment in enumerate(segments):
        bound = segments[number + 1].base_offset if number + 1 < len(segments) else job.end_offset
        if bound <= job.first_dirty_offset:
            continue
        for header, batch in _batches(segment):
            if header.last_offset < job.first_dirty_offset:
                continue
            if header.base_offset >= job.end_offset or newest.is_full:
                return newest
            _note_keys(newest, transactions, header, batch, job.first_dirty_offset)
            newest.end_offset = header.next_offset
        newest.end_offset = max(newest.end_offset, bound)  # across a gap left by an earlier round
    return newest


def _note_keys(
    newest: OffsetMap, transactions: CleanedTransactions, header: BatchHeader, batch: memoryview, start_offset: int
) -> None:
    if header.is_control:
        transactions.is_removable(header, batch)
    elif not transactions.is_aborted(header):
        for record in read_ordered_records(header, batch):
            if record.key is not None and record.offset >= start_offset:
                newest.put(record.key, record.offset)


def group_segments(segments: Sequence[Segment], settings: LogSettings, end_offset: int) -> list[list[Segment]]:
    """Group neighbours that fit into one segment together, so that segments do not become tiny."""
    groups: list[list[Segment]] = []
    log_bytes = index_bytes = time_index_bytes = 0
    for number, segment in enumerate(segments):
        bound = segments[number + 1].base_offset if number + 1 < len(segments) else end_offset
        index = len(segment.offset_lookup()) * offset_index.ENTRY_BYTES
        times = len(segment.time_lookup()) * time_index.ENTRY_BYTES
        fits = (
            bool(groups)
            and log_bytes + segment.size_bytes <= settings.segment_bytes_max
            and index_bytes + index <= settings.segment_index_bytes
            and time_index_bytes + times <= settings.segment_index_bytes
            and bound - 1 - groups[-1][0].base_offset <= RELATIVE_OFFSET_MAX
        )
        if not fits:
            groups.append([])
            log_bytes = index_bytes = time_index_bytes = 0
        groups[-1].append(segment)
        log_bytes += segment.size_bytes
        index_bytes += index
        time_index_bytes += times
    return groups


def _batches(segment: Segment) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield verified batches: rewriting computes a new checksum, which must not hide corruption."""
    file, next_offset = segment.open_file(), segment.base_offset
    try:
        for position, header in iterate_headers(file, 0, segment.size_bytes):
            batch = memoryview(file.pread(header.size_bytes, position))
            if checksum(batch, 0, header.size_bytes) != header.crc:
                raise CorruptBatch(position, f"checksum mismatch in {segment.path(LOG)}")
            yield header, batch
            next_offset = header.next_offset
    except CorruptBatch as error:
        error.offset = next_offset
        raise


def _clean_group(disk: Disk, job: CompactionJob, group: list[Segment], batch_filter: BatchFilter) -> Replacement:
    cleaned = CleanedSegment(disk, job.folder, group[0].base_offset, job.settings.index_interval_bytes)
    batch_filter.transactions.kept = []
    for segment in group:
        for header, batch in _batches(segment):
            kept = batch_filter.retain(header, batch)
            if kept is not None:
                cleaned.append(kept)
    cleaned.finish(batch_filter.transactions.kept)
    return Replacement(
        tuple(ClosedSegment(segment.base_offset, segment.size_bytes) for segment in group), cleaned.size_bytes
    )

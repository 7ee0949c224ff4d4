"""Lookup of a log by time."""

from collections.abc import Sequence

from moldau.records.header import read_header
from moldau.records.record import iterate_records
from moldau.storage.batch_scan import iterate_headers
from moldau.storage.segment import Segment


def first_at_or_after(segments: Sequence[Segment], timestamp: int, start_offset: int) -> tuple[int, int] | None:
    """Return timestamp and offset of the first record, in log order, with at least this timestamp."""
    while (batch := batch_at_or_after(segments, timestamp, start_offset)) is not None:
        for record in iterate_records(batch):
            if record.timestamp >= timestamp and record.offset >= start_offset:
                return record.timestamp, record.offset
        start_offset = read_header(batch).next_offset
    return None


def batch_at_or_after(segments: Sequence[Segment], timestamp: int, start_offset: int) -> bytes | None:
    """Return the first batch from `start_offset` on with a record of at least this timestamp, by its header."""
    for segment in segments:
        if segment.newest_timestamp()[0] >= timestamp:
            found = _search(segment, timestamp, start_offset)
            if found is not None:
                return found
    return None


def _search(segment: Segment, timestamp: int, start_offset: int) -> bytes | None:
    begin = segment.find(max(segment.offset_older_than(timestamp), start_offset))
    if begin is None:
        return None
    file = segment.open_file()
    for position, header in iterate_headers(file, begin[0], segment.size_bytes):
        if header.max_timestamp >= timestamp and header.last_offset >= start_offset:
            return file.pread(header.size_bytes, position)
    return None


def newest_timestamp(segments: Sequence[Segment]) -> int:
    """Return the largest timestamp of the log, or -1."""
    return max(segment.newest_timestamp()[0] for segment in segments)


def newest(segments: Sequence[Segment]) -> tuple[int, int] | None:
    """Return timestamp and offset of the first record with the log's largest timestamp."""
    timestamp = newest_timestamp(segments)
    return first_at_or_after(segments, timestamp, 0) if timestamp >= 0 else None

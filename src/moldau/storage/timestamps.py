"""Looking a log up by time."""

from collections.abc import Sequence

from moldau.records.record import iterate_records
from moldau.storage.scan import walk
from moldau.storage.segment import Segment


def first_at_or_after(segments: Sequence[Segment], timestamp: int, start_offset: int) -> tuple[int, int] | None:
    """Timestamp and offset of the first record, in log order, that is not older than `timestamp`."""
    for segment in segments:
        if segment.newest_timestamp()[0] < timestamp:
            continue
        found = _search(segment, timestamp, start_offset)
        if found is not None:
            return found
    return None


def _search(segment: Segment, timestamp: int, start_offset: int) -> tuple[int, int] | None:
    begin = segment.find(max(segment.offset_older_than(timestamp), start_offset))
    if begin is None:
        return None
    file = segment.open_file()
    for position, header in walk(file, begin[0], segment.size_bytes):
        if header.max_timestamp < timestamp or header.last_offset < start_offset:
            continue
        for record in iterate_records(file.pread(header.size_bytes, position)):
            if record.timestamp >= timestamp and record.offset >= start_offset:
                return record.timestamp, record.offset
    return None


def newest(segments: Sequence[Segment]) -> tuple[int, int] | None:
    """Timestamp and offset of the first record that has the log's largest timestamp."""
    timestamp, segment = max(
        ((segment.newest_timestamp()[0], segment) for segment in segments), key=lambda pair: pair[0]
    )
    return _search(segment, timestamp, 0) if timestamp >= 0 else None

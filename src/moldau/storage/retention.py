"""Retention: which of the oldest segments to delete, by age, size or log start offset."""

from moldau.storage.segment import Segment
from moldau.storage.segments import Segments
from moldau.storage.settings import LogSettings


def expired_segments(
    segments: Segments, settings: LogSettings, start_offset: int, committed_offset: int, end_offset: int, now_ms: int
) -> int:
    """Return how many of the oldest segments to delete. Only committed records may be deleted."""
    excess_bytes = _excess_bytes(segments, settings)
    expired = 0
    for number, segment in enumerate(segments):
        is_last = number + 1 == len(segments)
        following = segments.bound_of(number, end_offset)
        if following > committed_offset or (is_last and segment.size_bytes == 0):
            break
        is_passed = following <= start_offset and not is_last
        is_too_much = segment.size_bytes <= excess_bytes
        if not (is_passed or is_too_much or _is_too_old(segment, settings, now_ms)):
            break
        excess_bytes -= segment.size_bytes
        expired += 1
    return expired


def _excess_bytes(segments: Segments, settings: LogSettings) -> int:
    if not settings.is_deleted or settings.retention_bytes < 0:
        return -1
    return segments.size_bytes - settings.retention_bytes


def _is_too_old(segment: Segment, settings: LogSettings, now_ms: int) -> bool:
    if not settings.is_deleted or settings.retention_ms < 0:
        return False
    newest, _ = segment.newest_timestamp()
    # Records without timestamp count from the segment's creation, or its discovery at startup.
    return now_ms - (newest if newest >= 0 else segment.created_ms) > settings.retention_ms

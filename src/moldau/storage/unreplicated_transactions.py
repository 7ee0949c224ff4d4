"""Transactions whose marker is in the log but not committed: missing in producer snapshots.

After a restart the high watermark may be older than the snapshot. A transaction that ended between the two has ended
for the snapshot, but read_committed consumers must still wait for its marker to be committed.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from moldau.model.units import MiB
from moldau.storage.batch_scan import CorruptBatch, iterate_headers
from moldau.storage.producer_snapshots import Snapshots
from moldau.storage.producer_state import Producers
from moldau.storage.recovery import replay_segments
from moldau.storage.segment import Segment

SCAN_BYTES_MAX: Final = 64 * MiB  # high watermarks are checkpointed every few seconds


def find_unreplicated(
    segments: Sequence[Segment], snapshots: Snapshots, high_watermark: int, known_from: int
) -> list[tuple[int, int]]:
    """Return first and marker offset of each transaction that ended between the two offsets."""
    after = [*(each.base_offset for each in segments[1:]), known_from]
    between = [each for each, end in zip(segments, after, strict=True) if end > high_watermark]
    if sum(each.size_bytes for each in between[:-1]) > SCAN_BYTES_MAX:
        return []
    with suppress(CorruptBatch):  # a later read reports it
        if any(_has_marker(each, high_watermark, known_from) for each in between):
            producers = Producers()
            snapshots.load_latest(producers, segments[0].base_offset, high_watermark, now_ms=0)
            replay_segments(segments, producers, known_from)
            return producers.unreplicated_from(high_watermark)
    return []


def _has_marker(segment: Segment, start: int, end: int) -> bool:
    found = segment.find(start)
    if found is not None:
        for _, header in iterate_headers(segment.open_file(), found[0], segment.size_bytes):
            if header.base_offset >= end:
                break
            if header.is_control and header.producer_id >= 0 and header.base_offset >= start:
                return True
    return False

"""Retention deletes whole old segments without disturbing readers."""

import errno
from typing import Any

import pytest
from storage_bench import FOLDER, NOW_MS, Bench

from moldau.model.errors import OffsetOutOfRange
from moldau.model.units import HOUR_MS, KiB


def spread(segments: int = 6, **settings: Any) -> Bench:
    """Return segments of two batches, each segment an hour younger than the one before."""
    bench = Bench(**{"segment_bytes": 1 * KiB, "cleanup_policy": ("delete",), **settings})
    for number in range(segments * 2):
        bench.append(b"%d" % (number % 10) * 350, timestamp=NOW_MS + number // 2 * HOUR_MS)
    assert bench.log.segment_base_offsets == list(range(0, segments * 2, 2))
    return bench


@pytest.mark.proves("S4")
def test_segments_are_deleted_by_the_age_of_their_newest_record() -> None:
    bench = spread(retention_ms=3 * HOUR_MS)
    assert bench.log.apply_retention(NOW_MS + 3 * HOUR_MS) == []
    paths = bench.log.apply_retention(NOW_MS + 4 * HOUR_MS + 1)
    assert bench.log.start_offset == 4
    assert bench.log.segment_base_offsets == [4, 6, 8, 10]
    assert {path.rpartition("/")[2] for path in paths} >= {
        "00000000000000000000.log.deleted",
        "00000000000000000000.index.deleted",
        "00000000000000000000.timeindex.deleted",
        "00000000000000000002.snapshot.deleted",
    }
    assert all(bench.mounted.exists(path) for path in paths)
    with pytest.raises(OffsetOutOfRange):
        bench.log.read(3, 100)
    assert [record.offset for record in bench.records()] == list(range(4, 12))


@pytest.mark.proves("S4")
def test_oldest_segments_are_deleted_while_the_log_is_too_large() -> None:
    bench = spread(retention_bytes=2 * KiB, retention_ms=-1)
    bench.log.apply_retention(NOW_MS)
    assert bench.log.size_bytes - 2 * KiB < 1 * KiB
    assert bench.log.size_bytes >= 2 * KiB
    assert bench.log.end_offset == 12


@pytest.mark.proves("S4")
def test_expired_active_segment_is_rolled_and_deleted() -> None:
    bench = spread(retention_ms=HOUR_MS)
    bench.log.apply_retention(NOW_MS + 100 * HOUR_MS)
    assert (bench.log.start_offset, bench.log.end_offset) == (12, 12)
    assert bench.log.size_bytes == 0
    assert bench.append(b"new").base_offset == 12
    bench.restart(log_start_offset=12)
    assert [record.offset for record in bench.records()] == [12]


@pytest.mark.proves("S4")
def test_uncommitted_records_are_not_deleted() -> None:
    bench = spread(retention_ms=HOUR_MS)
    bench.log.apply_retention(NOW_MS + 100 * HOUR_MS, committed_offset=5)
    assert bench.log.segment_base_offsets == [4, 6, 8, 10]


@pytest.mark.proves("S4")
def test_deleted_records_are_hidden_at_once_and_removed_by_retention() -> None:
    bench = spread(retention_ms=-1)
    bench.log.advance_start_offset(5)
    with pytest.raises(OffsetOutOfRange):
        bench.log.read(4, 100)
    assert bench.records()[0].offset == 5
    bench.log.apply_retention(NOW_MS)
    assert bench.log.segment_base_offsets[0] == 4
    assert bench.log.start_offset == 5
    bench.restart(log_start_offset=5)
    assert bench.log.start_offset == 5
    with pytest.raises(OffsetOutOfRange):
        bench.log.advance_start_offset(13)


@pytest.mark.proves("S4")
def test_reads_stay_valid_after_their_files_are_deleted() -> None:
    bench = spread(retention_ms=HOUR_MS)
    piece = bench.log.read(0, 10_000)
    assert piece is not None
    before = piece.read()
    for path in bench.log.apply_retention(NOW_MS + 100 * HOUR_MS):
        bench.mounted.unlink(path)
    assert not [name for name in bench.names() if name.startswith("00000000000000000000")]
    assert piece.read() == before


@pytest.mark.proves("S4")
def test_compacted_log_is_not_deleted_by_age_or_size() -> None:
    bench = spread(cleanup_policy=("compact",), retention_ms=1, retention_bytes=1)
    assert bench.log.apply_retention(NOW_MS + 1000 * HOUR_MS) == []
    bench.log.advance_start_offset(4)
    bench.log.apply_retention(NOW_MS)
    assert bench.log.segment_base_offsets[0] == 4


def test_wrong_time_index_does_not_delete_recent_records() -> None:
    bench = spread(retention_ms=3 * HOUR_MS)
    bench.log.close(NOW_MS)
    for name in bench.names():
        if name.endswith(".timeindex"):
            file = bench.mounted.open(f"{FOLDER}/{name}")
            file.pwrite((1000).to_bytes(8, "big"), 0)
            file.close()
    bench.open(is_clean=True)
    assert bench.log.apply_retention(NOW_MS + 2 * HOUR_MS) == []
    assert [record.offset for record in bench.records()] == list(range(12))


@pytest.mark.proves("S4", part="by age")
def test_segment_whose_removal_fails_stays_whole_and_is_removed_later() -> None:
    bench = spread(retention_ms=3 * HOUR_MS)
    bench.disk.fail("rename", errno.EIO, path=".log")
    with pytest.raises(OSError, match="Input/output error"):
        bench.log.apply_retention(NOW_MS + 4 * HOUR_MS + 1)
    assert [record.offset for record in bench.records()] == list(range(12))
    bench.log.apply_retention(NOW_MS + 4 * HOUR_MS + 1)
    assert [record.offset for record in bench.records()] == list(range(4, 12))

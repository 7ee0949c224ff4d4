"""Old segments go as a whole, and nobody who reads is disturbed."""

import errno
from typing import Any

import pytest
from storage_bench import FOLDER, NOW_MS, Bench

from moldau.model.errors import OffsetOutOfRange
from moldau.model.units import HOUR_MS, KiB


def spread(segments: int = 6, **settings: Any) -> Bench:
    """Segments of two batches, each segment an hour younger than the one before."""
    bench = Bench(**{"segment_bytes": 1 * KiB, "cleanup_policy": ("delete",), **settings})
    for number in range(segments * 2):
        bench.append(b"%d" % (number % 10) * 350, timestamp=NOW_MS + number // 2 * HOUR_MS)
    assert bench.log.segment_base_offsets == list(range(0, segments * 2, 2))
    return bench


@pytest.mark.proves("S4")
def test_segments_whose_newest_record_is_too_old_go() -> None:
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
def test_the_oldest_segments_go_while_there_are_too_many_bytes() -> None:
    bench = spread(retention_bytes=2 * KiB, retention_ms=-1)
    bench.log.apply_retention(NOW_MS)
    assert bench.log.size_bytes - 2 * KiB < 1 * KiB
    assert bench.log.size_bytes >= 2 * KiB
    assert bench.log.end_offset == 12


@pytest.mark.proves("S4")
def test_an_active_segment_that_is_too_old_is_rolled_and_goes_too() -> None:
    bench = spread(retention_ms=HOUR_MS)
    bench.log.apply_retention(NOW_MS + 100 * HOUR_MS)
    assert (bench.log.start_offset, bench.log.end_offset) == (12, 12)
    assert bench.log.size_bytes == 0
    assert bench.append(b"new").base_offset == 12
    bench.restart(log_start_offset=12)
    assert [record.offset for record in bench.records()] == [12]


@pytest.mark.proves("S4")
def test_what_is_not_committed_stays() -> None:
    bench = spread(retention_ms=HOUR_MS)
    bench.log.apply_retention(NOW_MS + 100 * HOUR_MS, committed_offset=5)
    assert bench.log.segment_base_offsets == [4, 6, 8, 10]


@pytest.mark.proves("S4")
def test_deleted_records_are_gone_at_once_and_their_segments_with_the_next_retention() -> None:
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
def test_readers_keep_what_they_were_given_even_after_the_files_are_gone() -> None:
    bench = spread(retention_ms=HOUR_MS)
    piece = bench.log.read(0, 10_000)
    assert piece is not None
    before = piece.read()
    for path in bench.log.apply_retention(NOW_MS + 100 * HOUR_MS):
        bench.mounted.unlink(path)
    assert not [name for name in bench.names() if name.startswith("00000000000000000000")]
    assert piece.read() == before


@pytest.mark.proves("S4")
def test_a_compacted_log_is_not_deleted_by_age_or_size() -> None:
    bench = spread(cleanup_policy=("compact",), retention_ms=1, retention_bytes=1)
    assert bench.log.apply_retention(NOW_MS + 1000 * HOUR_MS) == []
    bench.log.advance_start_offset(4)
    bench.log.apply_retention(NOW_MS)
    assert bench.log.segment_base_offsets[0] == 4


def test_a_wrong_time_index_does_not_delete_young_records() -> None:
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
def test_segment_that_the_disk_cannot_remove_stays_whole_and_goes_later() -> None:
    bench = spread(retention_ms=3 * HOUR_MS)
    bench.disk.fail("rename", errno.EIO, path=".log")
    with pytest.raises(OSError, match="Input/output error"):
        bench.log.apply_retention(NOW_MS + 4 * HOUR_MS + 1)
    assert [record.offset for record in bench.records()] == list(range(12))
    bench.log.apply_retention(NOW_MS + 4 * HOUR_MS + 1)
    assert [record.offset for record in bench.records()] == list(range(4, 12))

"""Record lookup by offset and timestamp with sparse indexes."""

import random

import pytest
from storage_bench import NOW_MS, Bench

from moldau.model.units import KiB
from moldau.records.builder import build_batch
from moldau.records.compression import Compression
from moldau.storage.batch_scan import iterate_headers
from moldau.storage.log import Log
from moldau.storage.offset_index import MappedOffsetIndex, OffsetIndex
from moldau.storage.open_segments import OpenSegments
from moldau.storage.time_index import TimeIndex


@pytest.mark.proves("S3")
def test_there_is_one_index_entry_per_interval() -> None:
    bench = Bench(segment_bytes=1 << 20, index_interval_bytes=4 * KiB)
    for _ in range(500):
        bench.append(b"x" * 400)
    bench.log.close(NOW_MS)
    entries = len(bench.file("00000000000000000000.index")) / 8
    assert bench.log.size_bytes / (4 * KiB) * 0.8 < entries <= bench.log.size_bytes / (4 * KiB)


@pytest.mark.proves("S3")
def test_every_index_entry_points_to_the_start_of_a_batch() -> None:
    bench = Bench(segment_bytes=8 * KiB, index_interval_bytes=300)
    chance = random.Random(1)
    for _ in range(300):
        bench.append(*(chance.randbytes(chance.randrange(100)) for _ in range(chance.randrange(1, 5))))
    for base in bench.log.segment_base_offsets:
        segment = next(each for each in bench.log._segments if each.base_offset == base)
        starts = {position for position, _ in walk_all(bench, base)}
        index = segment.offset_lookup()
        assert all(index.boundary_before(position) in starts | {0} for position in range(0, segment.size_bytes, 50))


def walk_all(bench: Bench, base: int) -> list[tuple[int, int]]:
    path = f"{bench.log.folder}/{base:020d}.log"
    file = bench.mounted.open(path)
    return [(position, header.base_offset) for position, header in iterate_headers(file, 0, file.size())]


@pytest.mark.proves("S3")
def test_both_forms_of_the_offset_index_find_the_same() -> None:
    chance = random.Random(2)
    index = OffsetIndex()
    offset = position = 0
    for _ in range(200):
        offset += chance.randrange(1, 50)
        position += chance.randrange(1, 5000)
        index.append(offset, position)
    mapped = MappedOffsetIndex(memoryview(index.to_bytes()))
    for target in range(0, offset + 10, 3):
        assert mapped.position_before(target) == index.position_before(target)
    for target in range(0, position + 10, 501):
        assert mapped.boundary_before(target) == index.boundary_before(target)


@pytest.mark.proves("S3")
@pytest.mark.parametrize("is_reopened", [False, True])
def test_first_record_at_or_after_a_timestamp_is_found(is_reopened: bool) -> None:
    chance = random.Random(3)
    bench = Bench(segment_bytes=4 * KiB, index_interval_bytes=200)
    stamps: list[int] = []
    for _ in range(150):
        batch = [NOW_MS + chance.randrange(5000) for _ in range(chance.randrange(1, 4))]
        stamps += batch
        bench.append_batch(
            build_batch([(stamp, None, b"x" * 40, ()) for stamp in batch], compression=chance.choice(list(Compression)))
        )
    if is_reopened:
        bench.restart()
    for target in range(NOW_MS - 5, NOW_MS + 5005, 37):
        expected = next(((stamp, offset) for offset, stamp in enumerate(stamps) if stamp >= target), None)
        assert bench.log.offset_for_timestamp(target) == expected
    assert bench.log.max_timestamp() == (max(stamps), stamps.index(max(stamps)))


def test_deleted_records_are_not_found_by_timestamp() -> None:
    bench = Bench()
    for number in range(10):
        bench.append(b"x", timestamp=NOW_MS + number)
    bench.log.advance_start_offset(4)
    assert bench.log.offset_for_timestamp(NOW_MS) == (NOW_MS + 4, 4)


def test_empty_log_has_no_newest_record() -> None:
    bench = Bench()
    assert bench.log.max_timestamp() is None
    assert bench.log.offset_for_timestamp(0) is None


def test_time_index_only_grows() -> None:
    index = TimeIndex()
    assert index.append(100, 5)
    assert not index.append(100, 9)
    assert not index.append(90, 9)
    assert index.append(101, 9)
    assert [index.entry(0), index.entry(1)] == [(100, 5), (101, 9)]
    assert index.entry_before(100) is None
    assert index.entry_before(101) == (100, 5)


@pytest.mark.proves("S3")
def test_files_of_closed_segments_are_opened_on_demand_and_bounded() -> None:
    bench = Bench(segment_bytes=1 * KiB)
    for _ in range(100):
        bench.append(b"x" * 300)
    bench.log.close(NOW_MS)
    open_segments = OpenSegments(capacity=4)
    log = Log.open(
        bench.mounted, bench.log.folder, bench.settings, now_ms=NOW_MS, is_clean=True, open_segments=open_segments
    )
    assert len(log.segment_base_offsets) == 50
    assert len(open_segments) == 0
    pieces = [log.read(offset, 100) for offset in range(100)]
    assert len(open_segments) == 4
    # Files that were closed since can still be sent.
    assert all(piece is not None and len(piece.read()) == piece.length for piece in pieces)
    log.abandon()

"""Flush conditions, and the durable end offset."""

import pytest
from storage_bench import FOLDER, NOW_MS, Bench

from moldau.model.units import KiB
from moldau.testing.disk import SimulatedDisk


@pytest.mark.proves("S6")
def test_flush_is_due_after_flush_messages() -> None:
    bench = Bench(flush_messages=3)
    bench.append(b"a", b"b")
    assert bench.log.flush_target(NOW_MS) is None
    bench.append(b"c")
    assert bench.log.unflushed_messages == 3
    assert bench.log.flush_target(NOW_MS) == 3
    bench.log.flush(NOW_MS)
    assert (bench.log.flush_target(NOW_MS), bench.log.recovery_point) == (None, 3)


@pytest.mark.proves("S6")
def test_flush_is_due_after_flush_ms() -> None:
    bench = Bench(flush_ms=1000)
    assert bench.log.flush_target(NOW_MS + 5000) is None
    bench.append(b"a")
    assert bench.log.flush_target(NOW_MS + 999) is None
    assert bench.log.flush_target(NOW_MS + 1000) == 1


@pytest.mark.proves("S6", part="flush.ms")
def test_clock_set_back_does_not_delay_a_flush() -> None:
    bench = Bench(flush_ms=1000)
    bench.append(b"a")
    an_hour_ago_ms = NOW_MS - 3_600_000
    assert bench.log.flush_target(an_hour_ago_ms) == 1
    bench.log.flush(an_hour_ago_ms)
    bench.append(b"b")
    assert bench.log.flush_target(an_hour_ago_ms + 999) is None
    assert bench.log.flush_target(an_hour_ago_ms + 1000) == 2


@pytest.mark.proves("S6")
def test_closed_segments_are_always_due_for_a_flush() -> None:
    bench = Bench(segment_bytes=1 * KiB)
    for _ in range(5):
        bench.append(b"x" * 400)
    assert bench.log.flush_target(NOW_MS) == 4
    flush = bench.log.begin_flush(NOW_MS, target=4)
    bench.append(b"meanwhile")
    flush.run()
    bench.log.finish_flush(flush)
    assert bench.log.recovery_point == 4
    assert bench.log.flush_target(NOW_MS) is None


@pytest.mark.proves("S6")
def test_flushed_records_survive_a_power_loss() -> None:
    for seed in range(30):
        disk = SimulatedDisk(seed=seed)
        disk.prepare_folder("/data")
        bench = Bench(disk, segment_bytes=1 * KiB)
        for number in range(20):
            bench.append(b"%d" % number * 100)
        bench.log.flush(NOW_MS)
        for number in range(20, 30):
            bench.append(b"%d" % number * 100)
        disk.power_loss()
        bench.open(recovery_point=20, has_lost_power=True)
        assert [record.offset for record in bench.records()][:20] == list(range(20))


def test_closing_an_unwritten_log_writes_nothing() -> None:
    bench = Bench()
    bench.append(b"a")
    bench.restart()
    points = bench.disk.points
    bench.log.close(NOW_MS)
    assert bench.disk.points == points


def test_preallocated_segment_reserves_space_and_releases_it() -> None:
    bench = Bench(preallocate=True, segment_bytes=64 * KiB)
    assert bench.disk.used_bytes >= 64 * KiB
    bench.append(b"a")
    bench.log.roll(NOW_MS)
    assert bench.disk.used_bytes < 64 * KiB + 1 * KiB
    assert bench.mounted.size(f"{FOLDER}/00000000000000000000.log") < 200

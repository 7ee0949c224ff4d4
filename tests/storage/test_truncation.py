"""Truncation of a log, as by a follower whose leader has other records."""

import errno
from contextlib import suppress
from typing import Any

import pytest
from storage_bench import FOLDER, NOW_MS, Bench

from moldau.model.units import KiB
from moldau.records.control import build_transaction_marker
from moldau.storage import recovery
from moldau.storage.log import Log
from moldau.testing.disk import Crashed, SimulatedDisk


def filled(**settings: Any) -> Bench:
    bench = Bench(**{"segment_bytes": 2 * KiB, "index_interval_bytes": 200, **settings})
    for number in range(60):
        bench.append(
            b"%02d" % number * 50,
            epoch=number // 20,
            timestamp=NOW_MS + number,
            producer_id=5,
            producer_epoch=0,
            base_sequence=number,
        )
    return bench


@pytest.mark.parametrize("offset", [1, 7, 20, 33, 45, 59])
@pytest.mark.parametrize("is_killed", [False, True])
def test_records_from_the_offset_on_are_removed_and_the_rest_kept(offset: int, is_killed: bool) -> None:
    bench = filled()
    bench.log.truncate_to(offset)
    if is_killed:
        bench.kill()
    log = bench.log
    assert log.end_offset == offset
    assert [record.offset for record in bench.records()] == list(range(offset))
    assert all(start < offset for start in log.epochs.start_offsets)
    assert log.epochs.latest == (offset - 1) // 20
    assert log.producers.by_id[5].next_sequence == offset
    assert log.max_timestamp() == (NOW_MS + offset - 1, offset - 1)
    for wanted in range(offset):
        assert log.offset_for_timestamp(NOW_MS + wanted) == (NOW_MS + wanted, wanted)
    assert log.offset_for_timestamp(NOW_MS + offset) is None
    again = bench.append(b"new", producer_id=5, producer_epoch=0, base_sequence=offset, epoch=9)
    assert again.base_offset == offset
    bench.restart()
    assert [record.offset for record in bench.records()] == list(range(offset + 1))


def by_three_producers() -> Bench:
    bench = Bench(segment_bytes=2 * KiB, index_interval_bytes=200)
    for number in range(60):
        bench.append(
            b"." * 100, producer_id=5 + number % 3, producer_epoch=number // 30, base_sequence=number // 3 % 10
        )
    return bench


def producers_of(log: Log) -> dict[int, tuple[object, ...]]:
    return {
        key: (each.epoch, each.next_sequence, each.transaction_start, each.last_seen_ms, tuple(each.batches))
        for key, each in log.producers.by_id.items()
    }


@pytest.mark.proves("P2", part="a retry is stored once")
@pytest.mark.parametrize("at_once", [1, 7, 500])
@pytest.mark.parametrize("offset", [1, 7, 20, 33, 34, 45, 59])
def test_producer_replay_in_slices_equals_that_of_the_truncation(
    offset: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "REPLAY_SLICE_BATCHES", at_once)
    one, another = by_three_producers(), by_three_producers()
    replay = another.log.replay_producers_below(offset)
    steps = 1
    while replay.step():
        steps += 1
    another.log.truncate_to(offset, replay)
    one.log.truncate_to(offset)
    assert producers_of(another.log) == producers_of(one.log)
    assert another.log.producers.end_offset == one.log.producers.end_offset == offset
    assert steps > 1 or at_once > 1 or offset == 1


@pytest.mark.proves("P2", part="a retry is stored once")
def test_producer_replay_is_repeated_when_its_segments_are_gone() -> None:
    bench = filled()
    replay = bench.log.replay_producers_below(45)
    while replay.step():
        pass
    bench.log.truncate_fully_and_start_at(45)
    bench.append(b"new", producer_id=9, producer_epoch=0, base_sequence=0)
    bench.append(b"newer", producer_id=9, producer_epoch=0, base_sequence=1)
    bench.log.truncate_to(46, replay)
    assert list(bench.log.producers.by_id) == [9]


def test_truncation_to_the_end_or_beyond_changes_nothing() -> None:
    bench = filled()
    before = bench.disk.contents()
    bench.log.truncate_to(60)
    bench.log.truncate_to(100)
    assert bench.disk.contents() == before


@pytest.mark.proves("H5")
def test_truncation_to_the_end_drops_an_epoch_without_records() -> None:
    bench = filled()
    bench.log.epochs.assign(7, bench.log.end_offset)
    bench.log.truncate_to(60)
    assert bench.log.epochs.epochs == [0, 1, 2]
    assert bench.log.end_offset == 60


def test_truncation_inside_of_a_batch_drops_the_whole_batch() -> None:
    bench = Bench()
    bench.append(b"a", b"b", b"c")
    bench.append(b"d", b"e", b"f")
    bench.log.truncate_to(4)
    assert bench.log.end_offset == 3


def test_truncation_below_the_first_segment_empties_the_log() -> None:
    bench = filled()
    bench.log.truncate_to(0)
    assert (bench.log.start_offset, bench.log.end_offset, bench.log.size_bytes) == (0, 0, 0)
    assert bench.append(b"x").base_offset == 0


def test_log_may_restart_at_any_offset() -> None:
    bench = filled()
    bench.log.truncate_fully_and_start_at(1000)
    assert (bench.log.start_offset, bench.log.end_offset, bench.log.recovery_point) == (1000, 1000, 1000)
    assert bench.log.epochs.epochs == []
    assert bench.log.producers.by_id == {}
    assert bench.append(b"x").base_offset == 1000
    bench.kill(recovery_point=1000)
    assert [record.offset for record in bench.records()] == [1000]


def test_recovery_point_moves_back_to_a_synced_segment() -> None:
    bench = filled()
    bench.log.flush(NOW_MS)
    assert bench.log.recovery_point == 60
    bench.log.truncate_to(30)
    assert bench.log.recovery_point == bench.log.segment_base_offsets[-1] < 30
    bench.log.flush(NOW_MS)
    assert bench.log.recovery_point == 30


def test_truncation_undone_by_a_power_loss_does_not_hide_later_records() -> None:
    for seed in range(40):
        disk = SimulatedDisk(seed=seed)
        disk.prepare_folder("/data")
        bench = Bench(disk)
        for number in range(10):
            bench.append(b"old %d" % number)
        bench.log.flush(NOW_MS)
        bench.log.truncate_to(5)
        recovery_point = bench.log.recovery_point
        bench.log.roll(NOW_MS)
        for number in range(5, 10):
            bench.append(b"new %d" % number)
        disk.power_loss()
        bench.open(recovery_point=recovery_point, has_lost_power=True)
        values = bench.values()
        assert values[:5] == [b"old %d" % number for number in range(5)]
        kinds = [(value or b"")[:3] for value in values[5:]]
        assert kinds in ([b"old"] * 5, [b"new"] * len(kinds))


@pytest.mark.parametrize(("offset", "end"), [(10, 10), (11, 10), (14, 14)])
def test_flushed_truncation_survives_a_power_loss(offset: int, end: int) -> None:
    """Five batches, two per segment: at a segment's start, inside its first batch (which empties it), and later."""
    for seed in range(30):
        disk = SimulatedDisk(seed=seed)
        disk.prepare_folder("/data")
        bench = Bench(disk, segment_bytes=1 * KiB)
        for number in range(15):
            bench.append(b"%d" % (number % 10) * 60, b"y" * 50)
        assert bench.log.segment_base_offsets == [0, 10, 20]
        bench.log.flush(NOW_MS)
        bench.log.truncate_to(offset)
        assert bench.log.flush_target(NOW_MS) == end
        bench.log.flush(NOW_MS)
        disk.power_loss()
        bench.open(recovery_point=end, has_lost_power=True)
        assert bench.log.end_offset == end


def test_aborted_transaction_above_the_truncation_is_dropped() -> None:
    bench = Bench()
    bench.append(b"a", producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
    marker = build_transaction_marker(
        is_commit=False, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp_ms=NOW_MS
    )
    bench.append_batch(marker)
    assert len(bench.aborted_transactions(0, 10)) == 1
    bench.log.truncate_to(1)
    assert bench.aborted_transactions(0, 10) == []
    assert bench.log.last_stable_offset(1) == 0
    assert bench.mounted.size(f"{FOLDER}/00000000000000000000.txnindex") == 0


@pytest.mark.proves("H5", part="truncation")
def test_failed_truncation_leaves_the_log_and_can_be_retried() -> None:
    bench = filled()
    bench.disk.fail("rename", errno.ENOSPC)
    with pytest.raises(OSError, match="No space left"):
        bench.log.truncate_to(20)
    assert [record.offset for record in bench.records()] == list(range(60))
    assert bench.append(b"new", epoch=9).base_offset == 60
    bench.log.truncate_to(20)
    assert [record.offset for record in bench.records()] == list(range(20))
    assert bench.append(b"new", epoch=9).base_offset == 20


@pytest.mark.proves("H5", part="truncation")
def test_failed_restart_leaves_the_log_and_can_be_retried() -> None:
    bench = filled()
    bench.disk.fail("create", errno.ENOSPC)
    with pytest.raises(OSError, match="No space left"):
        bench.log.truncate_fully_and_start_at(100)
    assert [record.offset for record in bench.records()] == list(range(60))
    assert bench.append(b"new", epoch=9).base_offset == 60
    bench.log.truncate_fully_and_start_at(100)
    assert bench.log.segment_base_offsets == [100]
    assert bench.append(b"new", epoch=9).base_offset == 100
    bench.kill(log_start_offset=100, recovery_point=100)
    assert [record.offset for record in bench.records()] == [100]


@pytest.mark.proves("H5", part="truncation")
@pytest.mark.parametrize("offset", [0, 100])
@pytest.mark.parametrize("operation", ["unlink", "rename"])
def test_log_restarts_even_if_old_files_cannot_be_removed(operation: str, offset: int) -> None:
    bench = filled()
    bench.disk.fail(operation, errno.EIO)
    with suppress(OSError):
        bench.log.truncate_fully_and_start_at(offset)
    if bench.log.end_offset != offset:
        assert (operation, bench.log.end_offset) == ("rename", 60)  # unchanged
        bench.log.truncate_fully_and_start_at(offset)
    assert bench.append(b"new", epoch=9).base_offset == offset
    assert [record.offset for record in bench.records()] == [offset]
    bench.log.apply_retention(bench.now_ms)
    assert bench.log.segment_base_offsets == [offset]


def test_crash_during_a_log_restart_leaves_the_old_or_the_new_log() -> None:
    points = filled().disk.points
    for number in range(points + 1, points + 60):
        bench = filled()
        bench.disk.crash_at(number)
        try:
            bench.log.truncate_fully_and_start_at(100)
        except Crashed:
            bench.kill()
            offsets = [record.offset for record in bench.records()]
            assert offsets == list(range(bench.log.start_offset, 60 if offsets else bench.log.start_offset))
            assert bench.append(b"new", epoch=9).base_offset == bench.log.end_offset - 1
            continue
        assert number > points + 3 * len(filled().log.segment_base_offsets)
        return
    pytest.fail("it does not end")

"""Idempotent producers: duplicates are acknowledged, gaps and old epochs rejected."""

from typing import Any

import pytest
from storage_bench import NOW_MS, Bench

from moldau.model.errors import InvalidProducerEpoch, InvalidTxnState, OutOfOrderSequence
from moldau.model.units import DAY_MS
from moldau.records.control import build_transaction_marker
from moldau.storage import producer_state as producers_module
from moldau.storage.log import AppendResult

LAST = (1 << 31) - 1


def send(
    bench: Bench, sequence: int, *values: bytes, epoch: int = 0, producer_id: int = 5, **batch: Any
) -> AppendResult:
    return bench.append(
        *(values or (b"x",)), producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, **batch
    )


def mark(bench: Bench, *, is_commit: bool, epoch: int = 0, producer_id: int = 5) -> AppendResult:
    return bench.append_batch(
        build_transaction_marker(
            is_commit=is_commit,
            producer_id=producer_id,
            producer_epoch=epoch,
            coordinator_epoch=0,
            timestamp_ms=bench.now_ms,
        )
    )


def test_last_five_batches_are_detected_as_duplicates() -> None:
    bench = Bench()
    for sequence in range(0, 14, 2):
        send(bench, sequence, b"a", b"b")
    size = bench.log.size_bytes
    for sequence in (4, 6, 8, 10, 12):
        assert send(bench, sequence, b"a", b"b") == (sequence, sequence + 1, True, -1)
    assert bench.log.size_bytes == size
    with pytest.raises(OutOfOrderSequence):
        send(bench, 2, b"a", b"b")
    with pytest.raises(OutOfOrderSequence):
        send(bench, 12, b"a")  # not the same batch


@pytest.mark.proves("P2")
@pytest.mark.parametrize("stop", ["restart", "kill"])
def test_last_five_batches_are_known_after_a_restart(stop: str) -> None:
    bench = Bench()
    for sequence in range(9):
        send(bench, sequence)
        send(bench, sequence % 7, producer_id=6, epoch=sequence // 7)  # in its second epoch since the last two
    for _ in range(2):
        getattr(bench, stop)()
        assert all(send(bench, sequence).is_duplicate for sequence in range(4, 9))
        assert all(send(bench, sequence, producer_id=6, epoch=1).is_duplicate for sequence in range(2))
        with pytest.raises(OutOfOrderSequence):
            send(bench, 3)
        with pytest.raises(OutOfOrderSequence):
            send(bench, 6, producer_id=6, epoch=1)
    assert not send(bench, 9).is_duplicate


@pytest.mark.proves("P2")
@pytest.mark.parametrize("how", ["clean stop", "crash", "cut"])
def test_last_five_batches_are_known_across_a_segment_roll(how: str) -> None:
    bench = Bench()
    for sequence in range(7):
        send(bench, sequence)
    bench.log.roll(bench.now_ms)
    send(bench, 7)
    bench.log.flush(bench.now_ms)
    send(bench, 8)
    if how == "clean stop":
        bench.restart()
    elif how == "crash":
        bench.kill(recovery_point=8)
    else:
        bench.append(b"of no producer", b"and truncated")
        bench.log.truncate_to(9)
    assert all(send(bench, sequence).is_duplicate for sequence in range(4, 9))
    with pytest.raises(OutOfOrderSequence):
        send(bench, 3)
    assert not send(bench, 9).is_duplicate


def test_gap_in_the_sequence_is_rejected() -> None:
    bench = Bench()
    send(bench, 0)
    with pytest.raises(OutOfOrderSequence):
        send(bench, 2)
    assert send(bench, 1).base_offset == 1


def test_unknown_producer_may_start_with_any_sequence() -> None:
    bench = Bench()
    assert send(bench, 77).base_offset == 0
    assert send(bench, 78).base_offset == 1


def test_sequences_wrap_around() -> None:
    bench = Bench()
    send(bench, LAST - 1, b"a", b"b", b"c")
    assert send(bench, LAST - 1, b"a", b"b", b"c").is_duplicate
    assert send(bench, 1).base_offset == 3
    bench.restart()
    assert send(bench, 2).base_offset == 4


def test_new_epoch_starts_at_zero_and_fences_the_old_one() -> None:
    bench = Bench()
    send(bench, 0)
    with pytest.raises(OutOfOrderSequence):
        send(bench, 1, epoch=1)
    send(bench, 0, epoch=1)
    with pytest.raises(InvalidProducerEpoch):
        send(bench, 1, epoch=0)
    with pytest.raises(InvalidProducerEpoch):
        send(bench, 0, epoch=0)
    assert send(bench, 1, epoch=1).base_offset == 2


def test_rejected_batch_changes_nothing() -> None:
    bench = Bench()
    send(bench, 0)
    bench.disk.fail("pwrite", path=".log")
    with pytest.raises(OSError, match=r".*"):
        send(bench, 1)
    assert send(bench, 1).base_offset == 1


def test_silent_producers_expire_but_not_in_a_transaction() -> None:
    bench = Bench()
    send(bench, 0, producer_id=1)
    send(bench, 0, producer_id=2, is_transactional=True)
    bench.now_ms += DAY_MS
    send(bench, 0, producer_id=3, timestamp=5)  # old records, but an active producer
    bench.log.producers.expire(bench.now_ms)
    assert set(bench.log.producers.by_id) == {2, 3}
    bench.restart()
    assert set(bench.log.producers.by_id) == {2, 3}
    bench.kill()
    assert 3 in bench.log.producers.by_id


def test_number_of_producers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers_module, "PRODUCERS_MAX", 32)
    monkeypatch.setattr(producers_module, "_EVICTION_COUNT", 4)
    bench = Bench()
    send(bench, 0, producer_id=1000, timestamp=1, is_transactional=True)
    for producer_id in range(100):
        send(bench, 0, producer_id=producer_id, timestamp=NOW_MS + producer_id)
        assert len(bench.log.producers.by_id) <= 32
    assert 1000 in bench.log.producers.by_id
    assert 99 in bench.log.producers.by_id
    assert 0 not in bench.log.producers.by_id


@pytest.mark.proves("C7")
def test_open_transaction_holds_the_last_stable_offset() -> None:
    bench = Bench()
    bench.append(b"before")
    send(bench, 0, is_transactional=True)
    bench.append(b"after")
    assert bench.log.first_unstable_offset == 1
    assert bench.log.last_stable_offset(3) == 1
    assert bench.log.last_stable_offset(0) == 0
    marker = mark(bench, is_commit=True)
    # The end of the transaction counts only once its marker is committed.
    assert bench.log.last_stable_offset(marker.base_offset) == 1
    assert bench.log.last_stable_offset(marker.base_offset + 1) == 4
    assert bench.log.first_unstable_offset is None


def test_overlapping_transactions_end_individually() -> None:
    bench = Bench()
    send(bench, 0, producer_id=1, is_transactional=True)
    send(bench, 0, producer_id=2, is_transactional=True)
    mark(bench, is_commit=True, producer_id=1)
    assert bench.log.last_stable_offset(3) == 1
    mark(bench, is_commit=False, producer_id=2)
    assert bench.log.last_stable_offset(4) == 4
    (aborted,) = bench.aborted_transactions(0, 4)
    assert aborted == (2, 1, 3, 4)
    assert bench.aborted_transactions(0, 1) == []


def test_non_transactional_batch_in_open_transaction_is_rejected() -> None:
    bench = Bench()
    send(bench, 0, is_transactional=True)
    with pytest.raises(InvalidTxnState):
        send(bench, 1)


def test_marker_of_an_old_epoch_is_rejected_and_of_a_new_one_starts_it() -> None:
    bench = Bench()
    send(bench, 0, epoch=3, is_transactional=True)
    with pytest.raises(InvalidProducerEpoch):
        mark(bench, is_commit=False, epoch=2)
    mark(bench, is_commit=False, epoch=4)
    with pytest.raises(InvalidProducerEpoch):
        send(bench, 1, epoch=3, is_transactional=True)
    send(bench, 0, epoch=4, is_transactional=True)

"""Transactions in a log: verification, markers, and aborted transactions, also after lost index files."""

from typing import Any

import pytest
from storage_bench import FOLDER, Bench

from moldau.model.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    OutOfOrderSequence,
    TransactionCoordinatorFenced,
)
from moldau.model.units import DAY_MS, MiB
from moldau.records.builder import build_batch
from moldau.records.control import build_transaction_marker
from moldau.records.header import BatchHeader, read_header
from moldau.records.record import iterate_batches
from moldau.storage import transaction_verification as verification_module
from moldau.storage.log import AppendResult
from moldau.storage.producer_state import Producers
from moldau.storage.transaction_verification import VerificationEntries
from moldau.testing.disk import SimulatedDisk

P = 5


def send(bench: Bench, sequence: int, *, epoch: int = 0, producer_id: int = P, **fields: Any) -> AppendResult:
    return bench.append(
        b"x",
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=True,
        **fields,
    )


def mark(
    bench: Bench, *, is_commit: bool, epoch: int = 0, producer_id: int = P, coordinator_epoch: int = 0
) -> AppendResult:
    return bench.append_batch(
        build_transaction_marker(
            is_commit=is_commit,
            producer_id=producer_id,
            producer_epoch=epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp_ms=bench.now_ms,
        )
    )


def header(sequence: int, *, epoch: int = 0) -> BatchHeader:
    records = [(0, None, b"x", ())]
    return read_header(
        build_batch(records, producer_id=P, producer_epoch=epoch, base_sequence=sequence, is_transactional=True)
    )


def admit(producers: Producers, sequence: int = 0, *, epoch: int = 0) -> None:
    assert producers.verifications.complete(P, producers.verifications.seek(P, epoch, sequence, now_ms=0))


class TestVerification:
    def test_transaction_needs_verification_by_the_coordinator(self) -> None:
        producers = Producers()
        with pytest.raises(InvalidTxnState):
            producers.check_verified(header(0))
        verification = producers.verifications.seek(P, 0, 0, now_ms=0)
        with pytest.raises(InvalidTxnState):
            producers.check_verified(header(0))
        assert producers.verifications.complete(P, verification)
        producers.check_verified(header(0))
        with pytest.raises(InvalidTxnState):
            producers.check_verified(header(0, epoch=1))

    @pytest.mark.proves("P3")
    def test_marker_during_verification_invalidates_it(self) -> None:
        bench = Bench()
        producers = bench.log.producers
        requested = producers.verifications.seek(P, 0, 0, now_ms=0)
        mark(bench, is_commit=False)
        assert not producers.verifications.complete(P, requested)
        another = producers.verifications.seek(P, 0, 0, now_ms=0)
        assert not producers.verifications.complete(P, requested), "it was requested for another transaction"
        with pytest.raises(InvalidTxnState):
            producers.check_verified(header(0))
        assert producers.verifications.complete(P, another)
        producers.check_verified(header(0))

    def test_open_transaction_needs_no_verification_and_leaves_no_entry(self) -> None:
        bench = Bench()
        producers = bench.log.producers
        admit(producers)
        send(bench, 0)
        assert len(producers.verifications) == 0
        producers.check_verified(header(1))
        mark(bench, is_commit=True)
        with pytest.raises(InvalidTxnState):
            producers.check_verified(header(1))
        producers.check_verified(header(0))  # it is in the log: a duplicate gets its offset

    @pytest.mark.proves("P2")
    def test_first_verified_batch_must_come_first(self) -> None:
        producers = Producers()
        producers.verifications.seek(P, 0, 3, now_ms=0)
        admit(producers, 4)
        with pytest.raises(OutOfOrderSequence):
            producers.check_verified(header(4))
        producers.check_verified(header(3))

    def test_rejected_verification_is_discarded_but_not_a_newer_one(self) -> None:
        producers = Producers()
        rejected = producers.verifications.seek(P, 0, 3, now_ms=0)
        producers.verifications.reject(P, rejected)
        admit(producers, 4)
        producers.verifications.reject(P, rejected)
        producers.check_verified(header(4))

    @pytest.mark.proves("P3")
    def test_zombie_does_not_replace_its_successors_verification(self) -> None:
        producers = Producers()
        successor = producers.verifications.seek(P, 1, 0, now_ms=0)
        zombie = producers.verifications.seek(P, 0, 0, now_ms=0)
        assert not producers.verifications.complete(P, zombie)
        assert producers.verifications.complete(P, successor)
        assert producers.verifications.seek(P, 2, 0, now_ms=0) is not successor

    def test_old_epoch_gets_fenced_error(self) -> None:
        bench = Bench()
        send(bench, 0, epoch=2)
        with pytest.raises(InvalidProducerEpoch):
            bench.log.producers.check_in_transaction(P, 1)

    def test_unused_verifications_expire_and_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(verification_module, "VERIFICATIONS_MAX", 3)
        verifications = VerificationEntries()
        for producer_id in range(5):
            verifications.seek(producer_id, 0, 0, now_ms=producer_id)
        assert len(verifications) == 3
        verifications.expire(3)
        assert len(verifications) == 1
        producers = Producers(DAY_MS)
        producers.verifications.seek(P, 0, 0, now_ms=0)
        producers.expire(DAY_MS)
        assert len(producers.verifications) == 0


class TestMarkers:
    def test_marker_without_a_bumped_epoch_may_be_repeated(self) -> None:
        bench = Bench()
        send(bench, 0)
        mark(bench, is_commit=True)
        assert bench.log.producers.check_end(P, 0, 0, 1)

    @pytest.mark.proves("P3")
    def test_marker_with_a_bumped_epoch_does_not_end_the_next_transaction(self) -> None:
        bench = Bench()
        producers = bench.log.producers
        send(bench, 0)
        assert producers.check_end(P, 1, 0, 2)
        mark(bench, is_commit=True, epoch=1)
        assert not producers.check_end(P, 1, 0, 2), "it is there"
        send(bench, 0, epoch=1)
        with pytest.raises(InvalidProducerEpoch):
            producers.check_end(P, 1, 0, 2)
        assert producers.check_end(P, 2, 0, 2)

    @pytest.mark.parametrize("stop", ["restart", "kill"])
    def test_marker_of_former_coordinator_is_rejected_also_after_restart(self, stop: str) -> None:
        bench = Bench()
        send(bench, 0)
        mark(bench, is_commit=True, coordinator_epoch=3)
        getattr(bench, stop)()
        with pytest.raises(TransactionCoordinatorFenced):
            bench.log.producers.check_end(P, 0, 2, 1)
        assert bench.log.producers.check_end(P, 0, 3, 1)


@pytest.mark.proves("C7")
def test_deleted_transaction_does_not_hold_the_last_stable_offset() -> None:
    bench = Bench()
    send(bench, 0)
    bench.append(b"after")
    bench.log.advance_start_offset(1)
    assert bench.log.last_stable_offset(2) == 1
    assert bench.log.last_stable_offset(0) == 0


@pytest.mark.proves("C7")
@pytest.mark.parametrize("lost", [(".txnindex", ".index"), (".txnindex", ".index", ".timeindex", ".snapshot")])
def test_aborted_transactions_are_rebuilt_when_index_files_are_lost(
    lost: tuple[str, ...],
) -> None:
    bench = Bench()
    for round_ in range(3):
        for producer_id in (1, 2):
            send(bench, round_, producer_id=producer_id)
        mark(bench, is_commit=False, producer_id=1)
        if round_ == 1:
            bench.log.roll(bench.now_ms)
        mark(bench, is_commit=False, producer_id=2)
    end_offset = bench.log.end_offset
    known = bench.aborted_transactions(0, end_offset)
    assert len(known) == 6
    bench.log.close(bench.now_ms)
    for name in bench.names():
        if name.endswith(lost):
            bench.mounted.unlink(f"{FOLDER}/{name}")
    bench.open(is_clean=True)
    assert bench.aborted_transactions(0, end_offset) == known
    bench.restart()
    assert bench.aborted_transactions(0, end_offset) == known
    assert bench.log.last_stable_offset(end_offset) == end_offset


@pytest.mark.proves("C7")
@pytest.mark.parametrize("segment_bytes", [1 << 20, 4096])
def test_fetch_returns_aborted_transactions_of_its_range(segment_bytes: int) -> None:
    bench = Bench(segment_bytes=segment_bytes, index_interval_bytes=512)
    for number in range(200):
        send(bench, number // 2, producer_id=number % 2)
        mark(bench, is_commit=number % 2 == 0, producer_id=number % 2)
    send(bench, 0, producer_id=7)
    for number in range(100, 150):
        send(bench, number)
        mark(bench, is_commit=True)
    mark(bench, is_commit=False, producer_id=7)  # long after it began, and in another segment with smaller ones
    log, offset, returned_most = bench.log, 0, 0
    every = log.aborted_transactions(0, log.end_offset)
    while (read := log.read(offset, 1024)) is not None:
        headers = [header for header, _ in iterate_batches(read.read())]
        end_offset = headers[-1].next_offset
        returned = log.aborted_in(read, offset, log.end_offset)
        needed = [each for each in every if each.last_offset >= offset and each.first_offset < end_offset]
        assert set(needed) <= set(returned)
        returned_most = max(returned_most, len(returned))
        offset = end_offset
    assert offset == log.end_offset
    assert returned_most < 20


@pytest.mark.proves("C7")
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("is_closed", [True, False], ids=["stopped cleanly", "rolled"])
def test_aborted_transactions_survive_a_power_loss_once_synced(is_closed: bool, seed: int) -> None:
    disk = SimulatedDisk(seed=seed)
    disk.prepare_folder(FOLDER)
    bench = Bench(disk)
    send(bench, 0)
    mark(bench, is_commit=False)
    bench.log.flush(bench.now_ms)
    if is_closed:
        bench.log.close(bench.now_ms)
    else:
        bench.log.roll(bench.now_ms)
        bench.append(b"more")
        bench.log.flush(bench.now_ms)
    disk.power_loss()
    bench.open(recovery_point=2 if is_closed else 3, is_clean=is_closed, has_lost_power=not is_closed)
    assert [each.last_offset for each in bench.aborted_transactions(0, 2)] == [1]


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.proves("C7")
def test_uncommitted_marker_holds_the_last_stable_offset_after_a_restart(is_clean: bool) -> None:
    """Though the producer snapshot is newer than the known high watermark."""
    bench = Bench(segment_bytes=MiB)
    other = P + 1
    send(bench, 0)  # 0
    send(bench, 0, producer_id=other)  # 1
    mark(bench, is_commit=True, producer_id=other)  # 2: ended below
    send(bench, 1)  # 3
    mark(bench, is_commit=True)  # 4
    send(bench, 2, producer_id=P, epoch=0)  # 5: another transaction, begun above
    mark(bench, is_commit=False)  # 6
    bench.log._roll(bench.log.end_offset, bench.now_ms)  # takes a snapshot
    send(bench, 1, producer_id=other)  # 7
    if is_clean:
        bench.log.close(bench.now_ms)
        bench.open(is_clean=True, recovery_point=8)
    else:
        bench.kill()
    log = bench.log
    assert log.end_offset == 8
    assert [log.last_stable_offset(each) for each in (1, 3, 4, 5, 6, 7, 8)] == [0, 0, 0, 5, 5, 7, 7]

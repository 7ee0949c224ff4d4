"""Transactions in a simulated cluster: under faults, each number has its results exactly once."""

import pytest

from moldau_dev.simulation.cluster.disk_log import Batch, LogOnDisk
from moldau_dev.simulation.cluster.stable_probe import OpenTransactions
from moldau_dev.simulation.cluster.targeted_faults import TRANSACTION_TRIGGERS
from moldau_dev.simulation.cluster.transaction_world import transaction_world
from moldau_dev.simulation.cluster.transformers import TransformLedger
from moldau_dev.simulation.simulation import Simulation
from moldau_dev.simulation.workload import Violation


@pytest.mark.proves("P3", "C6", "C7", part="simulated")
@pytest.mark.parametrize("seed", [4])
def test_broker_crashes_keep_transactions_atomic(seed: int) -> None:
    outcome = Simulation(seed).run(transaction_world())
    outcome.check()
    assert outcome.tally["transactions"] >= 30
    assert outcome.tally["aborted on purpose"] >= 1
    assert all(outcome.faults.get(each.value) for each in TRANSACTION_TRIGGERS), "every trigger fires"


class FakeLog(LogOnDisk):
    """A log with given batches."""

    def __init__(self, *batches: Batch) -> None:
        self.batches = list(batches)

    def refresh(self) -> bool:
        return False


def batch(offset: int, producer: int, *, is_marker: bool = False) -> Batch:
    return Batch(offset, offset, 0, 0, producer, is_transactional=True, is_control=is_marker)


def test_last_stable_offset_is_the_start_of_the_first_open_transaction() -> None:
    log = FakeLog(batch(0, 1), batch(1, 2), batch(2, 1, is_marker=True), batch(3, 3))
    assert OpenTransactions(log).stable_offset(high_watermark=4) == 1
    log.batches.append(batch(4, 2, is_marker=True))
    assert OpenTransactions(log).stable_offset(high_watermark=5) == 3


def test_transaction_ends_once_its_marker_is_committed() -> None:
    seen = OpenTransactions(FakeLog(batch(0, 1), batch(1, 1, is_marker=True)))
    assert seen.stable_offset(high_watermark=1) == 0
    assert seen.stable_offset(high_watermark=2) == 2
    assert seen.stable_offset(high_watermark=1) == 0  # the high watermark of a new leader may lag behind


@pytest.mark.parametrize("number", [1, 3])
def test_repeated_and_missing_results_are_found(number: int) -> None:
    ledger = TransformLedger()
    ledger.check_result(0, 0, 0)
    ledger.check_result(0, 0, 1)
    with pytest.raises(Violation):
        ledger.check_result(0, 0, number)


@pytest.mark.parametrize("offset", [5, 7])
def test_decreased_or_uncommitted_progress_is_found(offset: int) -> None:
    ledger = TransformLedger()
    ledger.attempt(0, 6)
    ledger.commit(0, 6)
    ledger.resume(0, 6, 6)
    with pytest.raises(Violation):
        ledger.resume(0, offset, 6)

"""Transactions in a simulated cluster: whatever befalls it, each number has its results exactly once."""

import pytest

from moldau_dev.simulation.cluster.ambush import OF_TRANSACTIONS
from moldau_dev.simulation.cluster.disk_log import Batch, LogOnDisk
from moldau_dev.simulation.cluster.stable_probe import OpenTransactions
from moldau_dev.simulation.cluster.transaction_world import transaction_world
from moldau_dev.simulation.cluster.transformers import TransformLedger
from moldau_dev.simulation.simulation import Simulation
from moldau_dev.simulation.workload import Violation


@pytest.mark.proves("P3", "C6", "C7", part="simulated")
@pytest.mark.parametrize("seed", [4])
def test_brokers_that_die_leave_every_transaction_whole(seed: int) -> None:
    outcome = Simulation(seed).run(transaction_world())
    outcome.check()
    assert outcome.tally["transactions"] >= 30
    assert outcome.tally["aborted on purpose"] >= 1
    assert all(outcome.faults.get(each.value) for each in OF_TRANSACTIONS), "coordinators die at the worst moments too"


class FakeLog(LogOnDisk):
    """Batches that are said, not read."""

    def __init__(self, *batches: Batch) -> None:
        self.batches = list(batches)

    def refresh(self) -> bool:
        return False


def batch(offset: int, producer: int, *, is_marker: bool = False) -> Batch:
    return Batch(offset, offset, 0, 0, producer, is_transactional=True, is_control=is_marker)


def test_what_is_stable_ends_where_the_first_open_transaction_begins() -> None:
    log = FakeLog(batch(0, 1), batch(1, 2), batch(2, 1, is_marker=True), batch(3, 3))
    assert OpenTransactions(log).stable_offset(high_watermark=4) == 1
    log.batches.append(batch(4, 2, is_marker=True))
    assert OpenTransactions(log).stable_offset(high_watermark=5) == 3


def test_an_end_counts_once_its_marker_is_committed() -> None:
    seen = OpenTransactions(FakeLog(batch(0, 1), batch(1, 1, is_marker=True)))
    assert seen.stable_offset(high_watermark=1) == 0
    assert seen.stable_offset(high_watermark=2) == 2
    assert seen.stable_offset(high_watermark=1) == 0  # a new leader may not know yet how far its predecessor had come


@pytest.mark.parametrize("number", [1, 3])
def test_a_result_that_comes_twice_and_one_that_is_missing_are_found(number: int) -> None:
    ledger = TransformLedger()
    ledger.see(0, 0, 0)
    ledger.see(0, 0, 1)
    with pytest.raises(Violation):
        ledger.see(0, 0, number)


@pytest.mark.parametrize("offset", [5, 7])
def test_progress_that_goes_back_or_was_never_committed_is_found(offset: int) -> None:
    ledger = TransformLedger()
    ledger.attempt(0, 6)
    ledger.commit(0, 6)
    ledger.resume(0, 6, 6)
    with pytest.raises(Violation):
        ledger.resume(0, offset, 6)

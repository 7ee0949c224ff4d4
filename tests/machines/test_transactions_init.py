"""InitProducerId: producer identities and fencing."""

import pytest
from transactions_scene import NAME, ONE, TIMEOUT_MS, V1, V2, Scene

from moldau.machines.transactions import ProducerIdentity, Transaction, TransactionState
from moldau.machines.transactions.state import EPOCH_EXHAUSTED, EPOCH_MAX
from moldau.model.errors import (
    ConcurrentTransactions,
    InvalidRequest,
    InvalidTransactionTimeout,
    ProducerFenced,
)
from moldau.model.ids import ProducerId

pytestmark = pytest.mark.proves("P3")

SEVEN = ProducerId(7)
VERSIONS = pytest.mark.parametrize("version", [V1, V2])


@pytest.fixture
def scene() -> Scene:
    return Scene()


def settled(epoch: int, state: TransactionState = TransactionState.COMPLETE_COMMIT) -> Transaction:
    return Transaction(SEVEN, epoch, TIMEOUT_MS, state, start_ms=1, last_update_ms=2, client_version=V2)


def test_first_producer_gets_a_new_producer_id_and_epoch_0(scene: Scene) -> None:
    assert scene.init() == (1, 0)
    assert scene.state() is TransactionState.EMPTY


def test_second_producer_gets_the_same_id_and_the_next_epoch(scene: Scene) -> None:
    scene.init()
    assert scene.init() == (1, 1)


def test_transactional_ids_never_share_a_producer_id(scene: Scene) -> None:
    assert scene.init(name="a").producer_id != scene.init(name="b").producer_id


def test_timeout_is_that_of_the_last_request(scene: Scene) -> None:
    scene.init(timeout_ms=1)
    scene.init(timeout_ms=2)
    assert scene.transaction().timeout_ms == 2


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_transaction_timeout_out_of_range_is_rejected(scene: Scene, timeout_ms: int) -> None:
    with pytest.raises(InvalidTransactionTimeout):
        scene.init(timeout_ms=timeout_ms)


def test_empty_transactional_id_is_rejected(scene: Scene) -> None:
    with pytest.raises(InvalidRequest):
        scene.init(name="")


@pytest.mark.parametrize("is_commit", [True, False])
@VERSIONS
def test_new_producer_waits_until_the_previous_end_is_complete(scene: Scene, version: int, is_commit: bool) -> None:
    first = scene.init()
    scene.add(first, ONE, version=version)
    after = scene.end(first, is_commit=is_commit, version=version)
    with pytest.raises(ConcurrentTransactions):
        scene.init()
    scene.write_markers()
    assert scene.init() == (after.producer_id, after.epoch + 1)


# An open transaction


@VERSIONS
def test_open_transaction_is_aborted_before_a_new_producer_starts(scene: Scene, version: int) -> None:
    first = scene.init()
    scene.add(first, ONE, version=version)
    with pytest.raises(ConcurrentTransactions):
        scene.init()
    assert scene.state() is TransactionState.PREPARE_ABORT
    (markers,) = scene.markers
    assert not markers.is_commit
    assert markers.partitions == (ONE,)
    assert markers.epoch > first.epoch
    scene.write_markers()
    second = scene.init()
    assert second.producer_id == first.producer_id
    assert second.epoch > markers.epoch, "the fencing epoch belongs to no producer"


@VERSIONS
def test_replaced_producer_is_rejected_everywhere(scene: Scene, version: int) -> None:
    zombie = scene.init()
    scene.add(zombie, ONE, version=version)
    with pytest.raises(ConcurrentTransactions):
        scene.init()
    for _ in ("while it is aborted", "and after"):
        for is_commit in (True, False):
            with pytest.raises(ProducerFenced):
                scene.end(zombie, is_commit=is_commit, version=version)
        with pytest.raises(ProducerFenced):
            scene.add(zombie, ONE, version=version)
        scene.write_markers()
    with pytest.raises(ProducerFenced):
        scene.init(zombie)


def test_waiting_for_the_abort_does_not_bump_the_epoch_again(scene: Scene) -> None:
    scene.add(scene.init(), ONE)
    for _ in range(3):
        with pytest.raises(ConcurrentTransactions):
            scene.init()
    assert scene.transaction().epoch == 2
    assert len(scene.markers) == 1


# Recovery after an error (KIP-360)


def test_producer_that_continues_gets_the_next_epoch(scene: Scene) -> None:
    first = scene.init()
    assert scene.init(first) == (1, 1)


def test_repeated_request_gets_the_same_epoch(scene: Scene) -> None:
    first = scene.init()
    second = scene.init(first)
    assert scene.init(first) == second


def test_replaced_producer_is_fenced(scene: Scene) -> None:
    first = scene.init()
    scene.init()
    with pytest.raises(ProducerFenced):
        scene.init(first)


def test_producer_with_foreign_producer_id_is_fenced(scene: Scene) -> None:
    scene.init()
    with pytest.raises(ProducerFenced):
        scene.init(ProducerIdentity(ProducerId(99), 0))


def test_producer_whose_id_was_forgotten_restarts(scene: Scene) -> None:
    assert scene.init(ProducerIdentity(ProducerId(99), 5)) == (1, 0)


def test_producer_with_an_open_transaction_continues_once_it_is_aborted(scene: Scene) -> None:
    first = scene.init()
    scene.add(first, ONE)
    with pytest.raises(ConcurrentTransactions):
        scene.init(first)
    scene.write_markers()
    assert scene.init(first) == (1, 1)


def test_late_duplicate_init_does_not_abort_a_newer_transaction(scene: Scene) -> None:
    first = scene.init()
    second = scene.init(first)
    scene.add(second, ONE)
    with pytest.raises(ProducerFenced):
        scene.init(first)
    assert scene.state() is TransactionState.ONGOING


def test_producer_of_version_2_continues_after_a_failover_too(scene: Scene) -> None:
    first = scene.init()
    scene.add(first, ONE)
    with pytest.raises(ConcurrentTransactions):
        scene.init(first)
    scene.fail_over()
    scene.write_markers()
    scene.fail_over()
    assert scene.init(first) == (1, 1)


def test_replaced_producer_is_fenced_after_failover(scene: Scene) -> None:
    first = scene.init()
    scene.add(first, ONE)
    with pytest.raises(ConcurrentTransactions):
        scene.init()
    scene.write_markers()
    scene.fail_over()
    with pytest.raises(ProducerFenced):
        scene.init(first)


# Exhausted epochs


def test_producer_gets_the_last_epoch_but_one(scene: Scene) -> None:
    scene.put(settled(EPOCH_EXHAUSTED - 1))
    assert scene.init() == (7, EPOCH_EXHAUSTED)


@pytest.mark.parametrize("epoch", [EPOCH_EXHAUSTED, EPOCH_MAX])
def test_new_producer_id_follows_the_last_epoch(scene: Scene, epoch: int) -> None:
    scene.put(settled(epoch))
    assert scene.init() == (1, 0)
    assert scene.transaction().previous_producer_id == SEVEN


def test_producer_that_continues_after_the_last_epoch_is_known_by_its_old_id(scene: Scene) -> None:
    last = scene.put(settled(EPOCH_EXHAUSTED))
    assert scene.init(last) == (1, 0)
    assert scene.init(last) == (1, 0), "a retry because the response was lost"
    with pytest.raises(ProducerFenced):
        scene.init(ProducerIdentity(SEVEN, EPOCH_EXHAUSTED - 1))


def test_producer_whose_last_epoch_ended_continues_after_a_failover_too(scene: Scene) -> None:
    last = scene.put(settled(EPOCH_EXHAUSTED))
    scene.done(producer=last)
    scene.fail_over()
    assert scene.init(last) == (1, 0)


def test_transaction_with_the_last_epoch_can_be_fenced(scene: Scene) -> None:
    scene.put(settled(EPOCH_EXHAUSTED))
    zombie = scene.transaction().identity
    scene.add(zombie, ONE)
    with pytest.raises(ConcurrentTransactions):
        scene.init()
    assert scene.markers[0].epoch == EPOCH_MAX
    scene.write_markers()
    assert scene.init() == (1, 0)
    with pytest.raises(ProducerFenced):
        scene.init(zombie)


def test_last_epoch_used_by_a_timeout_is_never_assigned(scene: Scene) -> None:
    last = scene.put(settled(EPOCH_EXHAUSTED))
    scene.add(last, ONE)
    scene.pass_time(2 * TIMEOUT_MS)
    scene.write_markers()
    assert scene.transaction().epoch == EPOCH_MAX
    assert scene.abort(last) == (1, 0)
    assert scene.abort(last) == (1, 0)
    scene.fail_over()
    assert scene.abort(last) == (1, 0)


def test_producer_gets_a_new_id_after_a_timeout_took_the_last_epoch(scene: Scene) -> None:
    last = scene.put(settled(EPOCH_EXHAUSTED))
    scene.add(last, ONE)
    scene.pass_time(2 * TIMEOUT_MS)
    scene.write_markers()
    assert scene.init(last) == (1, 0)
    assert scene.init(last) == (1, 0)


def test_fenced_producer_stays_fenced_after_a_failover(scene: Scene) -> None:
    first = scene.init()
    scene.init()
    scene.fail_over()
    with pytest.raises(ProducerFenced):
        scene.add(first, ONE)
    assert scene.init() == (1, 2)
    assert NAME in scene.machine.state.transactions

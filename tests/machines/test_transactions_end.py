"""AddPartitionsToTxn and EndTxn in every state, with both transaction versions."""

from collections.abc import Callable

import pytest
from transactions_scene import NAME, ONE, OTHER, TIMEOUT_MS, TWO, V1, V2, Scene

from moldau.machines.transactions import ProducerIdentity, Transaction, TransactionState
from moldau.machines.transactions.state import EPOCH_EXHAUSTED, EPOCH_MAX
from moldau.model.errors import (
    ConcurrentTransactions,
    ErrorCode,
    InvalidProducerIdMapping,
    InvalidRequest,
    InvalidTxnState,
    ProducerFenced,
)
from moldau.model.ids import ProducerId

pytestmark = pytest.mark.proves("P3")

SEVEN = ProducerId(7)
VERSIONS = pytest.mark.parametrize("version", [V1, V2])
OUTCOMES = pytest.mark.parametrize("is_commit", [True, False])


@pytest.fixture
def scene() -> Scene:
    return Scene()


def exhausted(scene: Scene) -> ProducerIdentity:
    return scene.put(Transaction(SEVEN, EPOCH_EXHAUSTED, TIMEOUT_MS, client_version=V2))


# AddPartitionsToTxn


@VERSIONS
def test_transaction_starts_with_its_first_partition(scene: Scene, version: int) -> None:
    scene.add(scene.init(), ONE, version=version)
    transaction = scene.transaction()
    assert transaction.state is TransactionState.ONGOING
    assert list(transaction.partitions) == [ONE]
    assert transaction.start_ms == scene.now.wall_ms
    assert transaction.client_version == version


def test_added_partitions_keep_the_start_time(scene: Scene) -> None:
    producer = scene.init()
    scene.add(producer, ONE)
    began_ms = scene.now.wall_ms
    scene.pass_time(1_000)
    scene.add(producer, OTHER, TWO)
    assert set(scene.transaction().partitions) == {ONE, TWO, OTHER}
    assert scene.transaction().start_ms == began_ms


def test_partition_already_in_the_transaction_is_not_written_again(scene: Scene) -> None:
    producer = scene.init()
    scene.add(producer, ONE, TWO)
    count = len(scene.log)
    scene.add(producer, TWO)
    assert len(scene.log) == count


def test_empty_partition_list_starts_no_transaction(scene: Scene) -> None:
    scene.add(scene.init())
    assert scene.state() is TransactionState.EMPTY


@VERSIONS
@OUTCOMES
def test_no_partition_is_added_while_the_previous_end_is_pending(scene: Scene, version: int, is_commit: bool) -> None:
    producer = scene.init()
    scene.add(producer, ONE, version=version)
    after = scene.end(producer, is_commit=is_commit, version=version)
    with pytest.raises(ConcurrentTransactions):
        scene.add(after, ONE, version=version)
    scene.write_markers()
    scene.add(after, TWO, version=version)
    assert list(scene.transaction().partitions) == [TWO], "the partitions of the transaction before are forgotten"


ASK: list[Callable[[Scene, ProducerIdentity], object]] = [
    lambda scene, who: scene.add(who, ONE),
    lambda scene, who: scene.machine.verify_partitions(NAME, who, [ONE]),
    lambda scene, who: scene.commit(who),
    lambda scene, who: scene.abort(who),
    lambda scene, who: scene.commit(who, version=V1),
    lambda scene, who: scene.abort(who, version=V1),
]


@pytest.mark.parametrize("ask", ASK)
def test_only_the_current_producer_is_accepted(scene: Scene, ask: Callable[[Scene, ProducerIdentity], object]) -> None:
    current = scene.init(scene.init())
    scene.add(current, ONE)
    for epoch in (current.epoch - 1, current.epoch + 1):
        with pytest.raises(ProducerFenced):
            ask(scene, ProducerIdentity(current.producer_id, epoch))
    with pytest.raises(InvalidProducerIdMapping):
        ask(scene, ProducerIdentity(ProducerId(99), current.epoch))
    assert scene.state() is TransactionState.ONGOING


@pytest.mark.parametrize("ask", ASK)
def test_heartbeat_of_unknown_broker_is_rejected(
    scene: Scene, ask: Callable[[Scene, ProducerIdentity], object]
) -> None:
    with pytest.raises(InvalidProducerIdMapping):
        ask(scene, ProducerIdentity(SEVEN, 0))


def test_empty_transactional_id_has_no_transactions(scene: Scene) -> None:
    with pytest.raises(InvalidRequest):
        scene.add(ProducerIdentity(SEVEN, 0), ONE, name="")
    with pytest.raises(InvalidRequest):
        scene.end(ProducerIdentity(SEVEN, 0), is_commit=True, name="")


def test_verification_returns_partitions_of_the_open_transaction(scene: Scene) -> None:
    producer = scene.init()
    scene.add(producer, ONE)
    verified = scene.machine.verify_partitions(NAME, producer, [ONE, TWO])
    assert verified == {ONE: ErrorCode.NONE, TWO: ErrorCode.TRANSACTION_ABORTABLE}
    after = scene.commit(producer)
    with pytest.raises(ConcurrentTransactions):
        scene.machine.verify_partitions(NAME, after, [ONE])
    scene.write_markers()
    assert scene.machine.verify_partitions(NAME, after, [ONE]) == {ONE: ErrorCode.TRANSACTION_ABORTABLE}


# EndTxn


@VERSIONS
@OUTCOMES
def test_markers_go_to_every_partition_then_end_is_complete(scene: Scene, version: int, is_commit: bool) -> None:
    producer = scene.init()
    scene.add(producer, ONE, OTHER, version=version)
    after = scene.end(producer, is_commit=is_commit, version=version)
    assert scene.state() is (TransactionState.PREPARE_COMMIT if is_commit else TransactionState.PREPARE_ABORT)
    (markers,) = scene.markers
    assert (markers.transactional_id, markers.is_commit, markers.partitions) == (NAME, is_commit, (ONE, OTHER))
    assert (markers.producer_id, markers.epoch, markers.transaction_version) == (*after, version)
    assert markers.coordinator_epoch == 5
    scene.write_markers()
    assert scene.state() is (TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT)
    assert not scene.transaction().partitions


@OUTCOMES
def test_version_1_keeps_the_producer_identity(scene: Scene, is_commit: bool) -> None:
    producer = scene.init()
    assert scene.done(producer=producer, is_commit=is_commit, version=V1) == producer


@OUTCOMES
def test_every_end_bumps_the_epoch_in_version_2(scene: Scene, is_commit: bool) -> None:
    producer = scene.init()
    after = scene.done(producer=producer, is_commit=is_commit)
    assert after == (producer.producer_id, producer.epoch + 1)
    assert scene.done(producer=after, is_commit=is_commit) == (producer.producer_id, producer.epoch + 2)


@VERSIONS
@OUTCOMES
def test_retried_end_waits_and_gets_the_same_response(scene: Scene, version: int, is_commit: bool) -> None:
    producer = scene.init()
    scene.add(producer, ONE, version=version)
    after = scene.end(producer, is_commit=is_commit, version=version)
    with pytest.raises(ConcurrentTransactions):
        scene.end(producer, is_commit=is_commit, version=version)
    assert len(scene.markers) == 1
    scene.write_markers()
    count = len(scene.log)
    assert scene.end(producer, is_commit=is_commit, version=version) == after
    scene.fail_over()
    assert scene.end(producer, is_commit=is_commit, version=version) == after
    assert len(scene.log) == count


@VERSIONS
@OUTCOMES
def test_transaction_has_one_outcome(scene: Scene, version: int, is_commit: bool) -> None:
    producer = scene.init()
    scene.add(producer, ONE, version=version)
    scene.end(producer, is_commit=is_commit, version=version)
    for _ in ("prepared", "complete"):
        with pytest.raises(InvalidTxnState):
            scene.end(producer, is_commit=not is_commit, version=version)
        scene.write_markers()


@OUTCOMES
def test_end_without_a_transaction_is_rejected_in_version_1(scene: Scene, is_commit: bool) -> None:
    with pytest.raises(InvalidTxnState):
        scene.end(scene.init(), is_commit=is_commit, version=V1)


def test_commit_without_a_transaction_is_rejected_in_version_2(scene: Scene) -> None:
    producer = scene.init()
    with pytest.raises(InvalidTxnState):
        scene.commit(producer)
    for is_commit in (True, False):
        producer = scene.done(producer=producer, is_commit=is_commit)
        with pytest.raises(InvalidTxnState):
            scene.commit(producer)


@pytest.mark.parametrize("before", [None, True, False])
def test_empty_transaction_is_aborted_with_a_new_epoch_in_version_2(scene: Scene, before: bool | None) -> None:
    """Its producer cannot know whether one of its batches has reached the broker and started it."""
    producer = scene.init()
    if before is not None:
        producer = scene.done(producer=producer, is_commit=before)
    after = scene.abort(producer)
    assert after == (producer.producer_id, producer.epoch + 1)
    assert scene.state() is TransactionState.COMPLETE_ABORT
    assert not scene.markers
    assert scene.abort(producer) == after, "the same request again"
    with pytest.raises(ProducerFenced):
        scene.add(producer, ONE)


def test_next_end_waits_until_the_previous_one_is_complete(scene: Scene) -> None:
    producer = scene.init()
    scene.add(producer, ONE)
    after = scene.commit(producer)
    with pytest.raises(ConcurrentTransactions):
        scene.abort(after)
    scene.write_markers()
    assert scene.abort(after).epoch == after.epoch + 1


@OUTCOMES
def test_late_end_does_not_affect_a_later_transaction(scene: Scene, is_commit: bool) -> None:
    first = scene.init()
    second = scene.done(producer=first)
    scene.add(second, ONE)
    with pytest.raises(ProducerFenced):
        scene.end(first, is_commit=is_commit)
    assert scene.state() is TransactionState.ONGOING
    scene.commit(second)
    with pytest.raises(ProducerFenced):
        scene.end(first, is_commit=is_commit)


def test_late_partition_does_not_join_a_later_transaction(scene: Scene) -> None:
    first = scene.init()
    second = scene.done(producer=first)
    for _ in ("between two transactions", "in the next one"):
        with pytest.raises(ProducerFenced):
            scene.add(first, OTHER)
        scene.add(second, ONE)
    assert list(scene.transaction().partitions) == [ONE]


def test_zombie_does_not_get_the_response_of_its_successors_end(scene: Scene) -> None:
    """A version 2 producer was replaced by a version 1 producer with the next epoch, which committed."""
    zombie = scene.init()
    successor = scene.init()
    scene.done(producer=successor, version=V1)
    for is_commit in (True, False):
        with pytest.raises(ProducerFenced):
            scene.end(zombie, is_commit=is_commit)


# Exhausted epochs


@OUTCOMES
def test_producer_gets_a_new_id_after_the_last_epoch(scene: Scene, is_commit: bool) -> None:
    last = exhausted(scene)
    scene.add(last, ONE)
    after = scene.end(last, is_commit=is_commit)
    assert after == (1, 0)
    (markers,) = scene.markers
    assert (markers.producer_id, markers.epoch) == (SEVEN, EPOCH_MAX), "the transaction is one of the old id"
    with pytest.raises(ConcurrentTransactions):
        scene.add(after, ONE)
    with pytest.raises(ConcurrentTransactions):
        scene.init(after)
    with pytest.raises(ConcurrentTransactions):
        scene.end(last, is_commit=is_commit)
    scene.fail_over()
    scene.write_markers()
    assert scene.transaction().identity == (1, 0)
    assert scene.end(last, is_commit=is_commit) == after
    scene.add(after, TWO)
    with pytest.raises(InvalidProducerIdMapping):
        scene.end(last, is_commit=is_commit)


def test_empty_transaction_of_the_last_epoch_is_aborted(scene: Scene) -> None:
    last = exhausted(scene)
    assert scene.abort(last) == (1, 0)
    assert scene.abort(last) == (1, 0)


def test_last_epoch_can_be_reused_in_version_1(scene: Scene) -> None:
    last = exhausted(scene)
    for _ in range(3):
        assert scene.done(producer=last, version=V1) == last


@pytest.mark.parametrize("state", [TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE])
def test_state_that_is_never_written_is_rejected(scene: Scene, state: TransactionState) -> None:
    with pytest.raises(ValueError, match="invalid state"):
        scene.put(Transaction(SEVEN, 0, TIMEOUT_MS, state))

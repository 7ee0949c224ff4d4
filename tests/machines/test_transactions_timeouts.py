"""Markers, timeouts, expiration, failover, and the administration of transactional ids."""

import pytest
from transactions_scene import NAME, ONE, OTHER, TIMEOUT_MS, TWO, V1, V2, Scene, stored

from moldau.machines.transactions import ProducerIdentity, Transaction, TransactionSettings, TransactionState
from moldau.machines.transactions.settings import IDS_PER_SWEEP_STEP
from moldau.machines.transactions.state import record_of
from moldau.model.errors import (
    ConcurrentTransactions,
    ErrorCode,
    InvalidProducerIdMapping,
    InvalidTxnState,
    ProducerFenced,
)
from moldau.model.ids import NO_TIMESTAMP, ProducerId
from moldau.model.units import HOUR_MS
from moldau.wire.data_records import decode_transaction_record

pytestmark = pytest.mark.proves("P3")

LOOK_MS = 10_000
WEEK_MS = 7 * 24 * HOUR_MS
VERSIONS = pytest.mark.parametrize("version", [V1, V2])


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_record_round_trips() -> None:
    transaction = Transaction(
        ProducerId(2**62),
        3,
        4,
        TransactionState.ONGOING,
        {ONE: None, OTHER: None},
        ProducerId(5),
        ProducerId(6),
        7,
        8,
        V2,
    )
    record = record_of(NAME, transaction)
    assert decode_transaction_record(*stored(record)) == record
    assert decode_transaction_record(*stored(record_of(NAME, None))) == record_of(NAME, None)


# Markers


def test_end_is_complete_with_its_last_marker(scene: Scene) -> None:
    producer = scene.init()
    scene.add(producer, ONE, TWO, OTHER)
    scene.commit(producer)
    (markers,) = scene.markers
    scene.written(markers, TWO)
    scene.written(markers, TWO, ONE)
    assert scene.state() is TransactionState.PREPARE_COMMIT
    scene.written(markers, OTHER)
    assert scene.state() is TransactionState.COMPLETE_COMMIT


@VERSIONS
def test_late_marker_report_does_not_complete_another_end(scene: Scene, version: int) -> None:
    producer = scene.init()
    scene.add(producer, ONE, version=version)
    after = scene.commit(producer, version=version)
    (markers,) = scene.markers
    scene.write_markers()
    scene.add(after, ONE, version=version)
    scene.written(markers, ONE)
    assert scene.state() is TransactionState.ONGOING
    scene.commit(after, version=version)
    scene.written(markers, ONE)
    assert scene.state() is TransactionState.PREPARE_COMMIT


def test_marker_report_of_expired_id_changes_nothing(scene: Scene) -> None:
    producer = scene.init()
    scene.add(producer, ONE)
    scene.commit(producer)
    (markers,) = scene.markers
    scene.write_markers()
    scene.pass_time(2 * WEEK_MS)
    scene.written(markers, ONE)
    assert not scene.machine.state.transactions


@VERSIONS
@pytest.mark.parametrize("is_commit", [True, False])
def test_new_coordinator_sends_all_markers_again(scene: Scene, version: int, is_commit: bool) -> None:
    producer = scene.init()
    scene.add(producer, ONE, TWO, version=version)
    scene.end(producer, is_commit=is_commit, version=version)
    (markers,) = scene.markers
    scene.written(markers, ONE)
    scene.fail_over()
    (again,) = scene.markers
    assert again == markers
    scene.written(again, TWO)
    with pytest.raises(ConcurrentTransactions):
        scene.init()
    scene.written(again, ONE)
    assert scene.state() in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)


def test_new_coordinator_completes_an_end_without_partitions(scene: Scene) -> None:
    scene.put(Transaction(ProducerId(7), 1, TIMEOUT_MS, TransactionState.PREPARE_ABORT, start_ms=1, client_version=V2))
    scene.fail_over()
    assert scene.state() is TransactionState.COMPLETE_ABORT
    assert not scene.markers


# Time-outs


@VERSIONS
def test_transaction_is_aborted_at_its_timeout(scene: Scene, version: int) -> None:
    producer = scene.init()
    scene.add(producer, ONE, version=version)
    scene.pass_time(TIMEOUT_MS)
    assert scene.state() is TransactionState.ONGOING
    scene.pass_time(LOOK_MS)
    assert scene.state() is TransactionState.PREPARE_ABORT
    (markers,) = scene.markers
    assert (markers.is_commit, markers.partitions, markers.epoch) == (False, (ONE,), producer.epoch + 1)
    with pytest.raises(ProducerFenced):
        scene.add(producer, TWO, version=version)


def test_added_partitions_do_not_extend_the_timeout(scene: Scene) -> None:
    producer = scene.init()
    scene.add(producer, ONE)
    scene.pass_time(TIMEOUT_MS - 1)
    scene.add(producer, TWO)
    scene.pass_time(LOOK_MS + 1)
    assert scene.state() is TransactionState.PREPARE_ABORT


@pytest.mark.parametrize("is_complete", [True, False])
def test_transaction_that_ended_in_time_is_not_aborted(scene: Scene, is_complete: bool) -> None:
    producer = scene.init()
    scene.add(producer, ONE)
    scene.commit(producer)
    if is_complete:
        scene.write_markers()
    before = scene.state()
    scene.pass_time(2 * TIMEOUT_MS)
    assert scene.state() is before


def test_next_transaction_has_the_full_timeout(scene: Scene) -> None:
    producer = scene.init()
    after = scene.done(producer=producer)
    scene.pass_time(TIMEOUT_MS - 1)
    scene.add(after, ONE)
    scene.pass_time(TIMEOUT_MS - 1)
    assert scene.state() is TransactionState.ONGOING


def test_transaction_times_out_after_failover(scene: Scene) -> None:
    scene.add(scene.init(), ONE)
    scene.pass_time(TIMEOUT_MS - 1)
    scene.fail_over()
    scene.pass_time(LOOK_MS + 1)
    assert scene.state() is TransactionState.PREPARE_ABORT


def test_clock_that_was_ahead_does_not_extend_the_timeout(scene: Scene) -> None:
    ahead_ms = scene.now.wall_ms + 10 * HOUR_MS
    scene.put(
        Transaction(
            ProducerId(7),
            0,
            TIMEOUT_MS,
            TransactionState.ONGOING,
            {ONE: None},
            start_ms=ahead_ms,
            last_update_ms=ahead_ms,
        )
    )
    scene.fail_over()
    scene.pass_time(TIMEOUT_MS + LOOK_MS)
    assert scene.state() is TransactionState.PREPARE_ABORT


def test_version_2_producer_continues_after_a_timeout_once_it_aborts(scene: Scene) -> None:
    producer = scene.init()
    scene.add(producer, ONE)
    scene.pass_time(2 * TIMEOUT_MS)
    with pytest.raises(ConcurrentTransactions):
        scene.abort(producer)
    scene.write_markers()
    with pytest.raises(InvalidTxnState):
        scene.commit(producer)
    assert scene.abort(producer) == (producer.producer_id, producer.epoch + 1)


@VERSIONS
def test_producer_continues_after_a_timeout_with_the_next_epoch(scene: Scene, version: int) -> None:
    producer = scene.init()
    scene.add(producer, ONE, version=version)
    scene.pass_time(2 * TIMEOUT_MS)
    scene.write_markers()
    assert scene.init(producer) == (producer.producer_id, producer.epoch + 1)


def test_version_1_producer_is_fenced_after_timeout(scene: Scene) -> None:
    producer = scene.init()
    scene.add(producer, ONE, version=V1)
    scene.pass_time(2 * TIMEOUT_MS)
    for _ in ("aborting", "aborted"):
        for is_commit in (True, False):
            with pytest.raises(ProducerFenced):
                scene.end(producer, is_commit=is_commit, version=V1)
        scene.write_markers()


def test_many_transactions_time_out_in_slices(scene: Scene) -> None:
    count = IDS_PER_SWEEP_STEP + 1
    for number in range(count):
        scene.add(scene.init(name=f"id-{number}"), ONE, name=f"id-{number}")
    before = len(scene.log)
    scene.pass_time(TIMEOUT_MS + LOOK_MS)
    assert len(scene.markers) == len(scene.log) - before == count
    assert scene.machine.open_count == count


# Expiration


@pytest.mark.parametrize("last", [None, True, False])
def test_unused_transactional_id_expires(scene: Scene, last: bool | None) -> None:
    producer = scene.init()
    if last is not None:
        producer = scene.done(producer=producer, is_commit=last)
    scene.pass_time(WEEK_MS - 1)
    assert scene.machine.state.transactions
    scene.pass_time(HOUR_MS + 1)
    assert not scene.machine.state.transactions
    assert scene.log[-1][1] is None, "a tombstone, for the cleaner"
    scene.fail_over()
    with pytest.raises(InvalidProducerIdMapping):
        scene.add(producer, ONE)
    assert scene.init().producer_id != producer.producer_id


def test_id_with_an_open_transaction_is_kept() -> None:
    scene = Scene(TransactionSettings(transactional_id_expiration_ms=1, transaction_max_timeout_ms=2**31 - 1))
    ongoing = scene.init(timeout_ms=2**31 - 1)
    scene.add(ongoing, ONE)
    scene.pass_time(2 * HOUR_MS)
    assert scene.state() is TransactionState.ONGOING
    scene.commit(ongoing)
    scene.pass_time(2 * HOUR_MS)
    assert scene.state() is TransactionState.PREPARE_COMMIT


def test_many_ids_expire_in_slices(scene: Scene) -> None:
    for number in range(IDS_PER_SWEEP_STEP + 1):
        scene.init(name=f"id-{number}")
    scene.pass_time(WEEK_MS + HOUR_MS)
    assert not scene.machine.state.transactions


# Administration


def test_transactional_id_is_described(scene: Scene) -> None:
    producer = scene.init()
    scene.add(producer, TWO, OTHER, ONE)
    found = scene.machine.describe(NAME)
    assert (found.error_code, found.transactional_id, found.transaction_state) == (
        ErrorCode.NONE,
        NAME,
        "Ongoing",
    )
    assert (found.producer_id, found.producer_epoch, found.transaction_timeout_ms) == (
        *producer,
        TIMEOUT_MS,
    )
    assert found.transaction_start_time_ms == scene.now.wall_ms
    assert [(each.topic, list(each.partitions)) for each in found.topics] == [("t", [0, 1]), ("u", [0])]


def test_unknown_transactional_id_is_not_found(scene: Scene) -> None:
    assert scene.machine.describe(NAME).error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert scene.machine.describe("").error_code == ErrorCode.INVALID_REQUEST


def test_transactional_ids_are_listed_by_state_producer_and_age(scene: Scene) -> None:
    names = ("old", "new", "idle")
    who = {name: scene.init(name=name, timeout_ms=900_000) for name in names}
    scene.add(who["old"], ONE, name="old")
    scene.pass_time(5_000)
    scene.add(who["new"], ONE, name="new")

    def listed(**filters: object) -> list[str]:
        found = scene.machine.list_transactions(now=scene.now, **filters)  # type: ignore[arg-type]
        return [each.transactional_id for each in found]

    assert listed() == list(names)
    assert listed(states=["Ongoing"]) == ["old", "new"]
    assert listed(states=["Nonsense"]) == []
    assert listed(producer_ids=[who["new"].producer_id]) == ["new"]
    assert listed(longer_than_ms=4_999) == ["old"]
    assert listed(longer_than_ms=5_000) == []
    assert listed(longer_than_ms=0, states=["Empty"]) == []


def test_open_transactions_are_counted_with_their_oldest_start(scene: Scene) -> None:
    assert (scene.machine.open_count, scene.machine.oldest_open_age_ms(scene.now)) == (0, 0)
    producer = scene.init()
    scene.add(producer, ONE)
    scene.pass_time(3_000)
    scene.add(scene.init(name="b"), ONE, name="b")
    assert (scene.machine.open_count, scene.machine.oldest_open_age_ms(scene.now)) == (2, 3_000)
    scene.commit(producer)
    assert scene.machine.open_count == 2, "open until every partition has its marker"
    scene.write_markers()
    assert (scene.machine.open_count, scene.machine.oldest_open_age_ms(scene.now)) == (1, 0)


def test_states_have_kafkas_names() -> None:
    names = "Empty Ongoing PrepareCommit PrepareAbort CompleteCommit CompleteAbort Dead PrepareEpochFence"
    assert [each.kafka_name for each in TransactionState] == names.split()
    assert NO_TIMESTAMP == Transaction(ProducerId(1), 0, 1).start_ms
    assert Transaction(ProducerId(1), 0, 1).identity == ProducerIdentity(ProducerId(1), 0)

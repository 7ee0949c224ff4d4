"""Transactions across restarts of a broker, and their administration."""

import asyncio
from typing import Any

import pytest
from broker_scene import Scene, on_broker
from transaction_scene import FEW_PARTITIONS, P0, P1, Producer, Sink, code_of, find, producer_of, ready

from moldau.broker.transactions.record_serde import TransactionCoding
from moldau.model.errors import ErrorCode
from moldau.model.ids import TopicPartition
from moldau.wire import messages
from moldau.wire.messages import (
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
)

NONE = ErrorCode.NONE


async def restart(scene: Scene, *, is_crash: bool) -> Sink:
    sink = Sink()
    with sink.of_nodes_to_come():
        if is_crash:
            await scene.restart_after_crash()
        else:
            await scene.host.stop()
            await scene.restart()
    return sink


def play(script: Any, *settings: str) -> None:
    on_broker(script, settings=[*FEW_PARTITIONS, *settings])


lives = pytest.mark.parametrize("is_crash", [False, True], ids=["stopped", "killed"])


@pytest.mark.proves("P3")
@lives
def test_open_transaction_survives_a_restart(is_crash: bool) -> None:
    async def script(scene: Scene) -> None:
        await ready(scene)
        producer = producer_of(scene)
        await producer.init()
        await producer.add(P0)
        sink = await restart(scene, is_crash=is_crash)
        assert await producer.add(P1) is NONE
        assert await producer.end() is NONE
        await producer.until("CompleteCommit")
        assert sorted(each.partition for each in sink.came) == [P0, P1]

    play(script)


@pytest.mark.proves("P3")
@lives
@pytest.mark.parametrize("is_commit", [True, False], ids=["commit", "abort"])
def test_decided_end_is_sent_to_all_partitions_after_a_restart(is_crash: bool, is_commit: bool) -> None:
    async def script(scene: Scene) -> None:
        sink = await ready(scene)
        sink.codes[P1] = ErrorCode.NOT_ENOUGH_REPLICAS
        producer = producer_of(scene)
        await producer.init()
        await producer.add(P0, P1)
        assert await producer.end(is_commit=is_commit) is NONE
        await producer.until("PrepareCommit" if is_commit else "PrepareAbort")
        sink = await restart(scene, is_crash=is_crash)
        await producer.until("CompleteCommit" if is_commit else "CompleteAbort")
        assert sorted(each.partition for each in sink.came) == [P0, P1], "which of them had it is not stored"
        assert {(each.is_commit, each.epoch) for each in sink.came} == {(is_commit, producer.epoch)}
        assert await producer.add(P0) is NONE

    play(script)


@pytest.mark.proves("P3")
@lives
def test_fenced_producer_stays_fenced(is_crash: bool) -> None:
    async def script(scene: Scene) -> None:
        await ready(scene)
        zombie, successor = producer_of(scene), producer_of(scene)
        await zombie.init()
        await successor.init()
        await restart(scene, is_crash=is_crash)
        assert await zombie.add(P0) is ErrorCode.PRODUCER_FENCED
        assert await successor.add(P0) is NONE

    play(script)


def test_transaction_timeout_applies_after_a_restart() -> None:
    async def script(scene: Scene) -> None:
        await ready(scene)
        producer = producer_of(scene)
        await producer.init(timeout_ms=30_000)
        await producer.add(P0)
        began_s = scene.simulation.now_s
        await asyncio.sleep(20)
        sink = await restart(scene, is_crash=True)
        await producer.until("CompleteAbort")
        assert 30 <= scene.simulation.now_s - began_s <= 45
        assert [each.is_commit for each in sink.came] == [False]

    play(script)


def test_requests_get_a_retriable_error_while_a_shard_is_loading() -> None:
    async def script(scene: Scene) -> None:
        await ready(scene)
        producer = producer_of(scene)
        for _ in range(40):  # each is a batch, and needs a read of its own
            await producer.init()
        await producer.add(P0)
        await scene.restart_after_crash()
        Sink(scene.node)
        talker = await scene.connect()
        assert (await find(talker, "t")).error_code == 0
        requested = [
            talker.begin(3, producer.add_request(P1)),
            talker.begin(5, producer.end_request()),
            talker.begin(5, InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=1000)),
            talker.begin(0, DescribeTransactionsRequest(transactional_ids=["t"])),
        ]
        codes = [code_of(await each) for each in requested]
        assert codes == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 4
        response = await talker.ask(0, ListTransactionsRequest())
        assert response.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        described = await producer.described()
        assert (described.transaction_state, list(described.topics[0].partitions)) == ("Ongoing", [0])

    play(script, "transaction.state.log.load.buffer.size=1")


# Verification requests of brokers


def _requested(producer: Producer, partition: TopicPartition, *, verify_only: bool) -> Any:
    topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=partition.topic, partitions=[partition.partition])
    return AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
        transactional_id=producer.transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        verify_only=verify_only,
        topics=[topic],
    )


def _codes(response: Any) -> dict[str, ErrorCode]:
    assert response.error_code == 0
    return {
        each.transactional_id: ErrorCode(each.topic_results[0].results_by_partition[0].partition_error_code)
        for each in response.results_by_transaction
    }


@pytest.mark.proves("P3")
@pytest.mark.parametrize("version", [4, 5])
def test_many_transactions_are_verified_in_one_request(version: int) -> None:
    async def script(scene: Scene) -> None:
        await ready(scene)
        joined, apart, zombie, new = (producer_of(scene, each) for each in ("joined", "apart", "zombie", "new"))
        for producer in (joined, apart, zombie, new):
            await producer.init()
        await joined.add(P0)
        await producer_of(scene, "zombie").init()
        stranger = producer_of(scene, "stranger")
        requested = [_requested(each, P0, verify_only=True) for each in (joined, apart, zombie, stranger)]
        requested += [_requested(new, P1, verify_only=False)]
        talker = await scene.connect()
        codes = _codes(await talker.ask(version, AddPartitionsToTxnRequest(transactions=requested)))
        assert codes == {
            "joined": NONE,
            "apart": ErrorCode.TRANSACTION_ABORTABLE,
            "zombie": ErrorCode.PRODUCER_FENCED,
            "stranger": ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            "new": NONE,
        }
        assert (await apart.described()).transaction_state == "Empty", "to verify adds nothing"
        assert list((await new.described()).topics[0].partitions) == [1]

    play(script)


# Administration


async def listed(scene: Scene, version: int = 2, **filters: Any) -> list[str]:
    talker = await scene.connect()
    response = await talker.ask(version, ListTransactionsRequest(**filters))
    assert response.error_code == 0, ErrorCode(response.error_code)
    return sorted(each.transactional_id for each in response.transaction_states)


def test_transactions_are_listed_by_state_producer_age_and_name() -> None:
    async def script(scene: Scene) -> None:
        await ready(scene)
        old, young, empty = (producer_of(scene, each) for each in ("old", "young", "empty"))
        for producer in (old, young, empty):
            await producer.init(timeout_ms=900_000)
        await old.add(P0)
        await asyncio.sleep(60)
        await young.add(P0)
        assert await listed(scene, 0) == ["empty", "old", "young"]
        assert await listed(scene, 0, state_filters=["Ongoing"]) == ["old", "young"]
        assert await listed(scene, 0, producer_id_filters=[young.producer_id, 99]) == ["young"]
        assert await listed(scene, 1, duration_filter=30_000) == ["old"]
        assert await listed(scene, 2, transactional_id_pattern=".*y.*") == ["empty", "young"]
        talker = await scene.connect()
        response = await talker.ask(2, ListTransactionsRequest(state_filters=["Ongoing", "Lost"]))
        assert response.unknown_state_filters == ["Lost"]
        response = await talker.ask(2, ListTransactionsRequest(transactional_id_pattern="(("))
        assert response.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION

    play(script)


def test_transaction_is_described_with_all_fields() -> None:
    async def script(scene: Scene) -> None:
        await ready(scene)
        producer = producer_of(scene)
        await producer.init(timeout_ms=900_000)
        await producer.add(P0, P1)
        described = await producer.described()
        assert (described.producer_id, described.producer_epoch) == (producer.producer_id, producer.epoch)
        assert (described.transaction_state, described.transaction_timeout_ms) == ("Ongoing", 900_000)
        assert described.transaction_start_time_ms > 0
        talker = await scene.connect()
        response = await talker.ask(0, DescribeTransactionsRequest(transactional_ids=["unknown", ""]))
        codes = [each.error_code for each in response.transaction_states]
        assert codes == [ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, ErrorCode.INVALID_REQUEST]

    play(script)


# Records of the topic


def _value(**fields: Any) -> messages.TransactionLogValue:
    partition = messages.TransactionLogValue.PartitionsSchema(topic="t", partition_ids=[0, 7])
    return messages.TransactionLogValue(
        producer_id=5, producer_epoch=3, transaction_timeout_ms=1, transaction_partitions=[partition], **fields
    )


@pytest.mark.proves("P3")
@pytest.mark.parametrize(
    ("level", "fields", "version"),
    [
        (0, {}, 0),
        (1, {}, 1),
        (2, {}, 1),
        (0, {"client_transaction_version": 2}, 1),
        (0, {"previous_producer_id": 4}, 1),
        (0, {"next_producer_id": 6}, 1),
    ],
)
def test_records_are_written_in_the_oldest_sufficient_version(level: int, fields: Any, version: int) -> None:
    coding = TransactionCoding(lambda: level)
    key, value = messages.TransactionLogKey(transactional_id="t"), _value(**fields)
    encoded = coding.encode((key, value))
    assert encoded[0] == b"\0\0" + b"\0\1t"
    assert encoded[1] is not None
    assert encoded[1][:2] == bytes([0, version])
    assert coding.decode(*encoded) == (key, value)


def test_tombstone_removes_and_unknown_record_is_skipped() -> None:
    coding = TransactionCoding(lambda: 2)
    key = messages.TransactionLogKey(transactional_id="t")
    encoded = coding.encode((key, None))
    assert encoded[1] is None
    assert coding.decode(*encoded) == (key, None)
    assert coding.decode(b"\0\x09t", None) is None
    assert coding.decode(encoded[0], b"\0\x09") is None

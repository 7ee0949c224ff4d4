"""The transaction coordinator on one broker: from InitProducerId to the last marker."""

import asyncio
from typing import Any

import pytest
from broker_scene import Scene, on_broker
from transaction_scene import FEW_PARTITIONS, P0, P1, Marked, code_of, find, producer_of, ready

from moldau.broker.internal_topics import OFFSETS_TOPIC, STATE_TOPIC, partition_for
from moldau.broker.transactions import transaction_coordinator
from moldau.broker.transactions.markers import REQUESTS_PER_BROKER, Markers
from moldau.machines.transactions import SendMarkers
from moldau.model.errors import ErrorCode
from moldau.model.ids import ProducerId, TopicPartition
from moldau.wire.messages import DeleteTopicsRequest, InitProducerIdRequest, MetadataRequest

NONE = ErrorCode.NONE


def play(script: Any, *settings: str) -> None:
    on_broker(script, settings=[*FEW_PARTITIONS, *settings])


@pytest.mark.parametrize("version", range(1, 7))
def test_find_coordinator_creates_the_transaction_state_topic(version: int) -> None:
    async def script(scene: Scene) -> None:
        response = await find(await scene.connect(), "t", version)
        assert (response.error_code, response.node_id) == (0, scene.node.broker.node_id)
        image = scene.node.broker.image
        assert len(image.topics[STATE_TOPIC].partitions) == 3
        configs = image.topic_configs(STATE_TOPIC)
        assert (configs["cleanup.policy"], configs["min.insync.replicas"]) == ("compact", "1")
        assert configs["unclean.leader.election.enable"] == "false"

    play(script)


def test_metadata_request_creates_the_transaction_state_topic() -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        requested = MetadataRequest.MetadataRequestTopic(name=STATE_TOPIC)
        await talker.ask(8, MetadataRequest(topics=[requested], allow_auto_topic_creation=True))
        assert (await find(talker, "t")).error_code == 0
        image = scene.node.broker.image
        assert len(image.topics[STATE_TOPIC].partitions) == 3
        assert image.topic_configs(STATE_TOPIC)["cleanup.policy"] == "compact"

    play(script)


@pytest.mark.proves("P3")
@pytest.mark.parametrize("is_commit", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("version", [1, 2], ids=["v1", "v2"])
def test_transaction_ends_with_a_marker_in_each_partition(version: int, is_commit: bool) -> None:
    async def script(scene: Scene) -> None:
        sink = await ready(scene)
        producer = producer_of(scene, version=version)
        assert await producer.init() is NONE
        first_id, first_epoch = producer.producer_id, producer.epoch
        assert await producer.add(P0) is NONE
        assert await producer.add(P0, P1) is NONE
        described = await producer.described()
        assert (described.transaction_state, list(described.topics[0].partitions)) == ("Ongoing", [0, 1])
        assert await producer.end(is_commit=is_commit) is NONE
        await producer.until("CompleteCommit" if is_commit else "CompleteAbort")
        bump = 1 if version == 2 else 0
        assert producer.epoch == first_epoch + bump
        marked = [Marked(first_id, first_epoch + bump, is_commit, each, 0, 2 * bump) for each in (P0, P1)]
        assert sorted(sink.came) == marked
        assert await producer.add(P1) is NONE, "the next transaction begins"
        assert scene.node.broker.transactions.markers.backlog == 0

    play(script)


def test_group_offsets_join_with_their_offsets_topic_partition() -> None:
    async def script(scene: Scene) -> None:
        await ready(scene)
        producer = producer_of(scene)
        await producer.init()
        assert await producer.add_offsets("g") is NONE
        (topic,) = (await producer.described()).topics
        partitions = len(scene.node.broker.image.topics[OFFSETS_TOPIC].partitions)
        assert (topic.topic, list(topic.partitions)) == (OFFSETS_TOPIC, [partition_for("g", partitions)])

    play(script)


@pytest.mark.proves("P3")
def test_replaced_producer_gets_the_error_of_its_version() -> None:
    async def script(scene: Scene) -> None:
        await ready(scene)
        zombie, successor = producer_of(scene), producer_of(scene)
        await zombie.init()
        await successor.init()
        assert (successor.producer_id, successor.epoch) == (zombie.producer_id, zombie.epoch + 1)
        fenced, old_word = ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH
        for version in range(4):
            assert await zombie.add(P0, version=version) is (fenced if version >= 2 else old_word)
            assert await zombie.add_offsets("g", version=version) is (fenced if version >= 2 else old_word)
        for version in range(6):
            assert await zombie.end(version=version) is (fenced if version >= 2 else old_word)
        for version in (3, 4, 5):
            assert await zombie.init(version=version, again=True) is (fenced if version >= 4 else old_word)
        assert await successor.add(P0) is NONE

    play(script)


@pytest.mark.proves("P3")
def test_open_transaction_of_a_replaced_producer_is_aborted_first() -> None:
    async def script(scene: Scene) -> None:
        sink = await ready(scene)
        zombie, successor = producer_of(scene), producer_of(scene)
        await zombie.init()
        await zombie.add(P0, P1)
        sink.is_open.clear()
        talker = await scene.connect()
        request = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=1000)
        for _ in range(3):
            assert (await talker.ask(5, request)).error_code == ErrorCode.CONCURRENT_TRANSACTIONS
        assert await zombie.end() is ErrorCode.PRODUCER_FENCED
        sink.is_open.set()
        assert await successor.init() is NONE
        assert successor.epoch > zombie.epoch + 1, "the abort has an epoch of its own"
        assert {each.is_commit for each in sink.came} == {False}
        assert {each.partition for each in sink.came} == {P0, P1}

    play(script)


@pytest.mark.proves("P3")
def test_invalid_requests_are_rejected() -> None:
    async def script(scene: Scene) -> None:
        await ready(scene)
        producer, stranger = producer_of(scene), producer_of(scene, "unknown")
        stranger.producer_id, stranger.epoch = 77, 0
        assert await stranger.add(P0) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert await stranger.add_offsets("g") is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert await stranger.end() is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert await producer.init(timeout_ms=0) is ErrorCode.INVALID_TRANSACTION_TIMEOUT
        assert await producer.init(timeout_ms=15 * 60_000 + 1) is ErrorCode.INVALID_TRANSACTION_TIMEOUT
        assert await producer_of(scene, "").init() is ErrorCode.INVALID_REQUEST
        await producer.init()
        assert await producer.end(version=4) is ErrorCode.INVALID_TXN_STATE
        response = await producer.ask(3, producer.add_request(P0, ("t", 9), ("nowhere", 0)))
        codes = {
            (topic.name, each.partition_index): ErrorCode(each.partition_error_code)
            for topic in response.results_by_topic_v3_and_below
            for each in topic.results_by_partition
        }
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert codes == {P0: ErrorCode.OPERATION_NOT_ATTEMPTED, ("t", 9): unknown, ("nowhere", 0): unknown}
        assert await producer.add((STATE_TOPIC, 0)) is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert (await producer.described()).transaction_state == "Empty", "none has joined"

    play(script)


@pytest.mark.proves("P3")
def test_transaction_is_aborted_and_fenced_at_its_timeout() -> None:
    async def script(scene: Scene) -> None:
        sink = await ready(scene)
        producer = producer_of(scene)
        await producer.init(timeout_ms=30_000)
        await producer.add(P0)
        began_s = scene.simulation.now_s
        await asyncio.sleep(29)
        assert (await producer.described()).transaction_state == "Ongoing"
        await producer.until("CompleteAbort")
        assert 30 <= scene.simulation.now_s - began_s <= 41
        assert [(each.partition, each.is_commit) for each in sink.came] == [(P0, False)]
        assert await producer.end() is ErrorCode.PRODUCER_FENCED

    play(script)


def test_unused_transactional_id_expires() -> None:
    async def script(scene: Scene) -> None:
        await ready(scene)
        idle, busy = producer_of(scene, "idle"), producer_of(scene, "busy")
        for producer in (idle, busy):
            await producer.init(timeout_ms=600_000)
        await busy.add(P0)
        await asyncio.sleep(8 * 60)
        assert (await idle.described()).error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        assert (await busy.described()).transaction_state == "Ongoing"

    play(
        script,
        "transactional.id.expiration.ms=300000",
        "transaction.remove.expired.transaction.cleanup.interval.ms=60000",
    )


# -- markers


@pytest.mark.proves("P3")
@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
        ErrorCode.KAFKA_STORAGE_ERROR,
    ],
)
def test_marker_is_retried_until_its_partition_has_it(code: ErrorCode) -> None:
    async def script(scene: Scene) -> None:
        sink = await ready(scene)
        sink.codes[P0] = code
        producer = producer_of(scene)
        await producer.init()
        await producer.add(P0, P1)
        await producer.end()
        await asyncio.sleep(5)
        assert (await producer.described()).transaction_state == "PrepareCommit"
        assert scene.node.broker.transactions.markers.backlog == 1
        talker = await scene.connect()
        assert code_of(await talker.ask(3, producer.add_request(P0))) is ErrorCode.CONCURRENT_TRANSACTIONS
        assert len([each for each in sink.came if each.partition == P1]) == 1, (
            "a finished partition gets no second marker"
        )
        assert 10 < len([each for each in sink.came if each.partition == P0]) < 60
        del sink.codes[P0]
        await producer.until("CompleteCommit")

    play(script)


@pytest.mark.proves("P3")
def test_partition_without_the_transaction_needs_no_marker() -> None:
    async def script(scene: Scene) -> None:
        sink = await ready(scene)
        sink.codes[P0] = ErrorCode.INVALID_PRODUCER_EPOCH
        sink.codes[P1] = ErrorCode.NOT_ENOUGH_REPLICAS
        producer = producer_of(scene)
        await producer.init()
        await producer.add(P0, P1)
        await producer.end()
        await asyncio.sleep(1)
        assert (await producer.described()).transaction_state == "PrepareCommit", "the others still get markers"
        del sink.codes[P1]
        await producer.until("CompleteCommit")
        assert len([each for each in sink.came if each.partition == P0]) == 1, "it would reject it for ever"

    play(script)


@pytest.mark.proves("P3")
def test_partitions_of_a_deleted_topic_need_no_marker() -> None:
    async def script(scene: Scene) -> None:
        sink = await ready(scene)
        await scene.create("u")
        sink.codes[TopicPartition("u", 0)] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        producer = producer_of(scene)
        await producer.init()
        await producer.add(P0, ("u", 0))
        await producer.end()
        await producer.until("PrepareCommit")
        talker = await scene.connect()
        await talker.ask(5, DeleteTopicsRequest(topic_names=["u"]))
        await producer.until("CompleteCommit")

    play(script)


def test_markers_of_many_transactions_are_batched() -> None:
    async def script(scene: Scene) -> None:
        sink = await ready(scene)
        producers = [producer_of(scene, f"t{number}") for number in range(100)]
        for producer in producers:
            await producer.init()
            await producer.add(P0, P1)
        sink.is_open.clear()
        await asyncio.gather(*(producer.end() for producer in producers))
        await asyncio.sleep(1)
        assert scene.node.broker.transactions.markers.backlog == 200
        assert sink.requests == REQUESTS_PER_BROKER
        sink.is_open.set()
        for producer in producers:
            await producer.until("CompleteCommit")
        assert sink.requests < 20
        assert len(sink.came) == len(set(sink.came)) == 200

    play(script)


@pytest.mark.proves("P3")
def test_end_txn_is_rejected_while_too_many_markers_are_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_coordinator, "BACKLOG_MAX", 2)

    async def script(scene: Scene) -> None:
        sink = await ready(scene)
        first, second = producer_of(scene, "first"), producer_of(scene, "second")
        for producer in (first, second):
            await producer.init()
            await producer.add(P0, P1)
        sink.is_open.clear()
        await first.end()
        talker = await scene.connect()
        response = await talker.ask(5, second.end_request())
        assert response.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert (await second.described()).transaction_state == "Ongoing"
        sink.is_open.set()
        assert await second.end() is NONE

    play(script)


class MarkerOwner:
    """A shard that has decided a transaction and waits for its markers."""

    coordinator_epoch = 0

    def __init__(self) -> None:
        self.marked: list[SendMarkers] = []

    def all_marked(self, effect: SendMarkers) -> None:
        self.marked.append(effect)


@pytest.mark.proves("P3")
def test_topics_missing_from_an_incomplete_image_do_not_count_as_deleted() -> None:
    async def script(scene: Scene) -> None:
        await ready(scene)
        markers = Markers(scene.node.broker, scene.simulation.fail)
        markers.update_image(scene.node.broker.image)
        owner = MarkerOwner()
        effect = SendMarkers("t", ProducerId(1), 0, True, 0, (TopicPartition("new", 0),), 2)
        markers.send(owner, effect)
        await asyncio.sleep(5)
        assert not owner.marked
        markers.start()
        await asyncio.sleep(1)
        assert owner.marked == [effect], "now it is sure that there is no such topic"
        await markers.close()

    play(script)

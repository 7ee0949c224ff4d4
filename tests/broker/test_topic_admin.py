"""Topic administration in every version, with every error code: create, delete, add partitions, describe."""

from typing import Any

import pytest
from broker_scene import Scene, Talker, batch, on_broker, produce

from moldau.model.errors import ErrorCode
from moldau.wire import messages as m

UNKNOWN_ID = bytes(range(16))
Topic = m.CreateTopicsRequest.CreatableTopic
Config = m.CreateTopicsRequest.CreatableTopicConfig
Assignment = m.CreateTopicsRequest.CreatableReplicaAssignment


def topic(name: str, partitions: int = 1, replication_factor: int = 1, **fields: Any) -> Topic:
    return Topic(name=name, num_partitions=partitions, replication_factor=replication_factor, **fields)


def assigned_topic(name: str, *brokers: list[int], first: int = 0) -> Topic:
    placed = [Assignment(partition_index=first + index, broker_ids=each) for index, each in enumerate(brokers)]
    return topic(name, -1, -1, assignments=placed)


async def create(talker: Talker, *topics: Topic, version: int = 7, **fields: Any) -> list[Any]:
    response = await talker.ask(version, m.CreateTopicsRequest(topics=list(topics), timeout_ms=1000, **fields))
    return list(response.topics)


# -- CreateTopics


@pytest.mark.proves("T1")
@pytest.mark.parametrize("version", range(2, 8))
def test_create_topics_responds_in_every_version(version: int) -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        configs = [Config(name="retention.ms", value="12345"), Config(name="cleanup.policy", value="compact")]
        (response,) = await create(talker, topic("t", 3, configs=configs), version=version)
        assert (response.name, response.error_code) == ("t", 0)
        image = scene.node.broker.image.topics["t"]
        assert len(image.partitions) == 3
        assert scene.node.broker.image.topic_configs("t") == {"retention.ms": "12345", "cleanup.policy": "compact"}
        if version >= 5:
            assert (response.num_partitions, response.replication_factor) == (3, 1)
            described = {config.name: (config.value, config.config_source) for config in response.configs}
            assert described["retention.ms"] == ("12345", 1)
            assert described["segment.bytes"] == ("1073741824", 5)
        if version >= 7:
            assert response.topic_id == image.topic_id

    on_broker(script)


@pytest.mark.parametrize("version", range(2, 8))
def test_create_topics_with_validate_only_creates_nothing(version: int) -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        good, bad = await create(talker, topic("t", 3), topic("u", 1, 2), version=version, validate_only=True)
        assert (good.error_code, bad.error_code) == (0, ErrorCode.INVALID_REPLICATION_FACTOR)
        if version >= 5:
            assert good.num_partitions == 3
        assert scene.node.broker.image.topics == {}
        (again,) = await create(talker, topic("t"), version=version)
        assert again.error_code == 0

    on_broker(script)


INVALID_NAMES = ("", ".", "..", "a b", "a/b", "žluťoučký", "x" * 250, "a\0b", "a\n")


@pytest.mark.parametrize("name", INVALID_NAMES)
def test_create_topics_rejects_invalid_names(name: str) -> None:
    async def script(scene: Scene) -> None:
        (response,) = await create(await scene.connect(), topic(name))
        assert response.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert response.name == name
        assert response.error_message

    on_broker(script)


INVALID = (
    (topic("t", 0), ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value."),
    (topic("t", -2), ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value."),
    (
        topic("t", 1, 0),
        ErrorCode.INVALID_REPLICATION_FACTOR,
        "Replication factor must be larger than 0, or -1 to use the default value.",
    ),
    (
        topic("t", 1, -2),
        ErrorCode.INVALID_REPLICATION_FACTOR,
        "Replication factor must be larger than 0, or -1 to use the default value.",
    ),
    (
        topic("t", 1, 2),
        ErrorCode.INVALID_REPLICATION_FACTOR,
        "Unable to replicate the partition 2 time(s): The target replication factor of 2 cannot be reached because "
        "only 1 broker(s) are registered.",
    ),
    (topic("__cluster_metadata"), ErrorCode.INVALID_REQUEST, "__cluster_metadata"),
    (assigned_topic("t", [7]), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "broker 7, but no such broker is registered"),
    (assigned_topic("t", [1, 1]), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "more than once"),
    (assigned_topic("t", []), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "empty replica list"),
    (assigned_topic("t", [1], first=1), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "consecutive 0-based integer sequence"),
    (
        topic("t", 2, -1, assignments=[Assignment(partition_index=0, broker_ids=[1])]),
        ErrorCode.INVALID_REQUEST,
        "numPartitions was not set to -1",
    ),
    (
        topic("t", -1, 1, assignments=[Assignment(partition_index=0, broker_ids=[1])]),
        ErrorCode.INVALID_REQUEST,
        "replication factor was not set to -1",
    ),
    (
        topic("t", configs=[Config(name="no.such.thing", value="1")]),
        ErrorCode.INVALID_CONFIG,
        "Unknown topic config name: no.such.thing",
    ),
    (topic("t", configs=[Config(name="retention.ms", value="soon")]), ErrorCode.INVALID_CONFIG, "retention.ms"),
    (topic("t", configs=[Config(name="retention.ms", value="-2")]), ErrorCode.INVALID_CONFIG, "retention.ms"),
    (
        topic("t", configs=[Config(name="retention.ms", value=None)]),
        ErrorCode.INVALID_CONFIG,
        "Null value not supported for topic configs: retention.ms",
    ),
)


@pytest.mark.proves("T1")
@pytest.mark.parametrize(("wanted", "code", "words"), INVALID)
def test_create_topics_rejects_with_kafkas_error_messages(wanted: Topic, code: ErrorCode, words: str) -> None:
    async def script(scene: Scene) -> None:
        responses = await create(await scene.connect(), topic("other"), wanted)
        created, rejected = sorted(responses, key=lambda response: response.error_code != 0)
        assert rejected.error_code == code, rejected
        assert words in rejected.error_message
        assert created.error_code == 0  # each topic has its own error
        assert set(scene.node.broker.image.topics) == {"other"}

    on_broker(script)


def test_create_topics_rejects_duplicate_and_existing_names() -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        (response,) = await create(talker, topic("t"), topic("t", 2))
        assert response.error_code == ErrorCode.INVALID_REQUEST
        assert "Duplicate topic name" in response.error_message
        await create(talker, topic("t"))
        (response,) = await create(talker, topic("t"))
        assert response.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        assert response.error_message == "Topic 't' already exists."
        dotted, scored = await create(talker, topic("a.b"), topic("a_b"))
        assert (dotted.error_code, scored.error_code) == (0, ErrorCode.INVALID_TOPIC_EXCEPTION)
        assert "collides with existing topic" in scored.error_message

    on_broker(script)


def test_create_topics_applies_defaults_and_manual_assignments() -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        default, placed = await create(talker, topic("t", -1, -1), assigned_topic("u", [1], [1]))
        assert (default.num_partitions, default.replication_factor) == (4, 1)
        assert (placed.num_partitions, placed.replication_factor) == (2, 1)
        assert (await produce(talker, "u", batch(b"a"), partition=1)).base_offset == 0

    on_broker(script, settings=["num.partitions=4"])


# -- DeleteTopics


@pytest.mark.proves("T1")
@pytest.mark.parametrize("version", range(1, 7))
def test_delete_topics_by_name_in_every_version(version: int) -> None:
    def named(*names: str) -> m.DeleteTopicsRequest:
        if version >= 6:
            states = [m.DeleteTopicsRequest.DeleteTopicState(name=name) for name in names]
            return m.DeleteTopicsRequest(topics=states, timeout_ms=1000)
        return m.DeleteTopicsRequest(topic_names=list(names), timeout_ms=1000)

    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        await create(talker, topic("t", 2), topic("u"))
        response = await talker.ask(version, named("t", "missing"))
        codes = {each.name: each.error_code for each in response.responses}
        assert codes == {"t": 0, "missing": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert set(scene.node.broker.image.topics) == {"u"}
        code = (await produce(talker, "t", batch(b"a"))).error_code
        assert code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    on_broker(script)


def test_delete_topics_by_id_rejects_contradicting_references() -> None:
    state = m.DeleteTopicsRequest.DeleteTopicState

    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        responses = await create(talker, topic("t"), topic("u"), topic("v"))
        first, second, third = (response.topic_id for response in responses)
        wanted = [
            state(name=None, topic_id=first),
            state(name=None, topic_id=UNKNOWN_ID),
            state(name="u", topic_id=second),
            state(name=None),
            state(name="v"),
            state(name="v"),
        ]
        response = await talker.ask(6, m.DeleteTopicsRequest(topics=wanted, timeout_ms=1000))
        results = [(each.name, each.topic_id, each.error_code) for each in response.responses]
        assert ("t", first, 0) in results
        assert (None, UNKNOWN_ID, ErrorCode.UNKNOWN_TOPIC_ID) in results
        assert ("u", second, ErrorCode.INVALID_REQUEST) in results
        assert (None, bytes(16), ErrorCode.INVALID_REQUEST) in results
        assert [code for name, _, code in results if name == "v"] == [ErrorCode.INVALID_REQUEST]
        assert set(scene.node.broker.image.topics) == {"u", "v"}
        (again,) = await create(talker, topic("t"))
        assert again.topic_id not in (first, second, third)

    on_broker(script)


def test_delete_topics_is_rejected_when_disabled() -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        await create(talker, topic("t"))
        response = await talker.ask(5, m.DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000))
        assert response.responses[0].error_code == ErrorCode.TOPIC_DELETION_DISABLED
        assert set(scene.node.broker.image.topics) == {"t"}

    on_broker(script, settings=["delete.topic.enable=false"])


# -- CreatePartitions

More = m.CreatePartitionsRequest.CreatePartitionsTopic
Placed = m.CreatePartitionsRequest.CreatePartitionsAssignment


@pytest.mark.parametrize("version", range(4))
def test_create_partitions_responds_once_the_partitions_exist(version: int) -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        await create(talker, topic("t"))
        request = m.CreatePartitionsRequest(topics=[More(name="t", count=3, assignments=None)], timeout_ms=1000)
        assert (await talker.ask(version, request)).results[0].error_code == 0
        assert (await produce(talker, "t", batch(b"a"), partition=2)).base_offset == 0
        request.topics[0].count, request.validate_only = 9, True
        assert (await talker.ask(version, request)).results[0].error_code == 0
        assert len(scene.node.broker.image.topics["t"].partitions) == 3

    on_broker(script)


GROWTHS = (
    (More(name="t", count=2, assignments=None), ErrorCode.INVALID_PARTITIONS, "Topic already has 2 partition(s)."),
    (More(name="t", count=1, assignments=None), ErrorCode.INVALID_PARTITIONS, "would not be an increase"),
    (More(name="t", count=-1, assignments=None), ErrorCode.INVALID_PARTITIONS, "would not be an increase"),
    (More(name="no", count=5, assignments=None), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "does not host"),
    (
        More(name="t", count=4, assignments=[Placed(broker_ids=[1])]),
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "Attempted to add 2 additional partition(s), but only 1 assignment(s) were specified.",
    ),
    (
        More(name="t", count=3, assignments=[Placed(broker_ids=[9])]),
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "no such broker is registered",
    ),
    (More(name="t", count=1_000_000_000, assignments=None), ErrorCode.POLICY_VIOLATION, "partitions"),
)


@pytest.mark.parametrize(("wanted", "code", "words"), GROWTHS)
def test_create_partitions_rejects_invalid_counts_and_assignments(wanted: More, code: ErrorCode, words: str) -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        await create(talker, topic("t", 2))
        response = await talker.ask(3, m.CreatePartitionsRequest(topics=[wanted], timeout_ms=1000))
        assert response.results[0].error_code == code
        assert words in response.results[0].error_message
        assert len(scene.node.broker.image.topics["t"].partitions) == 2

    on_broker(script)


def test_create_partitions_rejects_a_topic_named_twice() -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        await create(talker, topic("t"))
        twice = [More(name="t", count=count, assignments=None) for count in (2, 3)]
        response = await talker.ask(3, m.CreatePartitionsRequest(topics=twice, timeout_ms=1000))
        assert [each.error_code for each in response.results] == [ErrorCode.INVALID_REQUEST]

    on_broker(script)


# Restart


@pytest.mark.proves("T1")
@pytest.mark.parametrize("ends", ["stop", "crash", "power_loss"])
def test_acknowledged_changes_survive_a_restart(ends: str) -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        kept, _ = await create(talker, topic("t", configs=[Config(name="retention.ms", value="777")]), topic("gone"))
        await talker.ask(
            3,
            m.CreatePartitionsRequest(topics=[More(name="t", count=3, assignments=None)], timeout_ms=1000),
        )
        await talker.ask(5, m.DeleteTopicsRequest(topic_names=["gone"], timeout_ms=1000))
        producer_id = (await talker.ask(4, m.InitProducerIdRequest())).producer_id
        cluster_id = (await talker.ask(9, m.MetadataRequest(topics=[]))).cluster_id
        if ends == "stop":
            await scene.host.stop()
        else:
            getattr(scene.host, ends)()
        await scene.restart()
        talker = await scene.connect()
        response = await talker.ask(12, m.MetadataRequest(topics=None))
        assert response.cluster_id == cluster_id
        assert [(each.name, each.topic_id, len(each.partitions)) for each in response.topics] == [
            ("t", kept.topic_id, 3)
        ]
        assert scene.node.broker.image.topic_configs("t") == {"retention.ms": "777"}
        assert (await talker.ask(4, m.InitProducerIdRequest())).producer_id > producer_id

    on_broker(script)

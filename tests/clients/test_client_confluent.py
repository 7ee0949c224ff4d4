"""Features that only confluent-kafka (librdkafka) has, or that it implements differently."""

import statistics
import time
from collections.abc import Iterator
from typing import Any, Final

import confluent_kafka as library
import pytest
from client_driver import WAIT_S, Rejected, Sent
from client_driver_confluent import ConfluentKafka
from confluent_kafka import admin

from moldau.model.errors import ErrorCode
from moldau.testing import Broker

LONG_POLL_MS: Final = 10_000


@pytest.fixture
def topic(topic_name: str, confluent: ConfluentKafka) -> str:
    confluent.create_topic(topic_name)
    return topic_name


@pytest.fixture
def admin_client(broker: Broker) -> admin.AdminClient:
    return admin.AdminClient({"bootstrap.servers": broker.bootstrap_servers})


@pytest.fixture
def consumer(broker: Broker, request: pytest.FixtureRequest) -> Iterator[library.Consumer]:
    """A consumer whose fetches wait a short time, or as long as the test requires."""
    consumer = library.Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "assigned by hand",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": getattr(request, "param", 100),
            "topic.metadata.propagation.max.ms": 100,
        }
    )
    yield consumer
    consumer.close()


def poll(consumer: library.Consumer) -> Any:
    message = consumer.poll(WAIT_S)
    assert message is not None, "no record"
    return message


# -- reading


@pytest.mark.proves("C1")
@pytest.mark.parametrize("consumer", [LONG_POLL_MS], indirect=True)
def test_waiting_consumer_gets_a_record_within_milliseconds(
    broker: Broker, consumer: library.Consumer, topic: str
) -> None:
    producer = library.Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0})
    consumer.assign([library.TopicPartition(topic, 0, 0)])
    waits_s = []
    for number in range(30):
        producer.produce(topic, b"%d" % number)
        producer.poll(0)
        sent_s = time.monotonic()
        assert poll(consumer).value() == b"%d" % number
        waits_s.append(time.monotonic() - sent_s)
    producer.flush(WAIT_S)
    assert statistics.median(waits_s) < 0.1
    assert max(waits_s[1:]) < LONG_POLL_MS / 1000 / 2


@pytest.mark.proves("C1")
def test_consumer_reads_several_topics(consumer: library.Consumer, confluent: ConfluentKafka, topic: str) -> None:
    names = [f"{topic}-{number}" for number in range(8)]
    for name in names:
        confluent.create_topic(name, partitions=3)
        confluent.produce(name, [Sent(name.encode(), partition=index) for index in range(3)])
    consumer.assign([library.TopicPartition(name, index, 0) for name in names for index in range(3)])
    seen = {(message.topic(), message.partition()) for message in (poll(consumer) for _ in range(24))}
    assert seen == {(name, index) for name in names for index in range(3)}
    confluent.produce(names[5], [Sent(b"one more", partition=2)])
    assert poll(consumer).value() == b"one more"


@pytest.mark.proves("C1")
def test_partition_is_added_to_and_removed_from_an_assignment(
    consumer: library.Consumer, confluent: ConfluentKafka
) -> None:
    confluent.create_topic("assignments", partitions=2)
    consumer.assign([library.TopicPartition("assignments", 0, 0)])
    confluent.produce("assignments", [Sent(b"first")])
    assert poll(consumer).value() == b"first"
    consumer.incremental_assign([library.TopicPartition("assignments", 1, 0)])
    confluent.produce("assignments", [Sent(b"second", partition=1)])
    assert poll(consumer).value() == b"second"
    consumer.incremental_unassign([library.TopicPartition("assignments", 0)])
    confluent.produce("assignments", [Sent(b"skipped"), Sent(b"third", partition=1)])
    assert poll(consumer).value() == b"third"


def test_offset_out_of_range_resets_to_the_beginning(
    consumer: library.Consumer, confluent: ConfluentKafka, topic: str
) -> None:
    confluent.produce(topic, [Sent(b"%d" % number) for number in range(10)])
    confluent.delete_records(topic, 3)
    consumer.assign([library.TopicPartition(topic, 0, 1)])
    assert poll(consumer).offset() == 3
    consumer.assign([library.TopicPartition(topic, 0, 1000)])
    assert poll(consumer).offset() == 3


def test_relative_and_logical_offsets_are_resolved(
    consumer: library.Consumer, confluent: ConfluentKafka, topic: str
) -> None:
    confluent.produce(topic, [Sent(b"%d" % number) for number in range(10)])
    for logical, expected in ((library.OFFSET_BEGINNING, 0), (-2002, 8)):  # librdkafka's OFFSET_TAIL(2)
        consumer.assign([library.TopicPartition(topic, 0, logical)])
        assert poll(consumer).offset() == expected
    consumer.assign([library.TopicPartition(topic, 0, library.OFFSET_END)])
    assert consumer.poll(0.2) is None
    confluent.produce(topic, [Sent(b"new")])
    assert poll(consumer).value() == b"new"


def test_newest_record_is_found_by_its_timestamp(
    admin_client: admin.AdminClient, confluent: ConfluentKafka, topic: str
) -> None:
    times_ms = [1_700_000_000_000, 1_700_000_009_000, 1_700_000_005_000]
    confluent.produce(topic, [Sent(b"", timestamp_ms=each) for each in times_ms])
    partition = library.TopicPartition(topic, 0)
    for specification, expected in (
        (admin.OffsetSpec.earliest(), (0, -1)),
        (admin.OffsetSpec.latest(), (3, -1)),
        (admin.OffsetSpec.max_timestamp(), (1, times_ms[1])),
        (admin.OffsetSpec.for_timestamp(times_ms[0] + 1), (1, times_ms[1])),
    ):
        found: Any = admin_client.list_offsets({partition: specification})[partition].result(WAIT_S)
        assert (found.offset, found.timestamp) == expected


def test_header_value_may_be_null(confluent: ConfluentKafka, topic: str) -> None:
    headers = (("null", None), ("empty", b""), ("", b"nameless"))
    confluent.produce(topic, [Sent(b"", headers=headers)])
    assert confluent.consume(topic, 1)[0].headers == headers


# -- missing topics


def test_missing_topic_is_unknown(
    broker: Broker, admin_client: admin.AdminClient, confluent: ConfluentKafka, topic_name: str
) -> None:
    described: Any = admin_client.list_topics(topic_name, timeout=WAIT_S).topics[topic_name]
    assert described.error.code() == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(Rejected) as rejected:
        confluent.watermarks(topic_name)
    assert rejected.value.code == library.KafkaError._UNKNOWN_PARTITION
    producer = library.Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "topic.metadata.propagation.max.ms": 100}
    )
    errors: list[Any] = []
    producer.produce(topic_name, b"", on_delivery=lambda error, _: errors.append(error))
    producer.flush(WAIT_S)
    assert [error.code() for error in errors] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert topic_name not in admin_client.list_topics(timeout=WAIT_S).topics


def test_topic_is_auto_created_by_produce_when_enabled(topic_name: str) -> None:
    with Broker(num_partitions=3, settings={"moldau.metrics.listener": ""}) as broker:
        client = ConfluentKafka(broker.bootstrap_servers)
        assert client.produce(topic_name, [Sent(b"first", partition=2)]) == [0]
        assert client.partition_count(topic_name) == 3
        client.close()


# -- administration


def result_of(futures: Any) -> Any:
    """Return the only result, or raise `Rejected`."""
    (future,) = futures.values()
    try:
        return future.result(WAIT_S)
    except library.KafkaException as error:
        raise Rejected(error.args[0].code(), error.args[0].str()) from error


def topic_change(topic: str, name: str, value: str | None, how: admin.AlterConfigOpType) -> admin.ConfigResource:
    entry = admin.ConfigEntry(name, value, incremental_operation=how)
    return admin.ConfigResource(admin.RESOURCE_TOPIC, topic, incremental_configs=[entry])


@pytest.mark.proves("T1")
def test_configs_are_set_appended_subtracted_and_deleted(
    admin_client: admin.AdminClient, confluent: ConfluentKafka, topic: str
) -> None:
    steps: list[tuple[admin.AlterConfigOpType, str | None, str]] = [
        (admin.AlterConfigOpType.SET, "compact", "compact"),
        (admin.AlterConfigOpType.APPEND, "delete", "compact,delete"),
        (admin.AlterConfigOpType.SUBTRACT, "compact", "delete"),
        (admin.AlterConfigOpType.SET, "compact", "compact"),
        (admin.AlterConfigOpType.DELETE, None, "delete"),
    ]
    for how, value, expected in steps:
        result_of(admin_client.incremental_alter_configs([topic_change(topic, "cleanup.policy", value, how)]))
        assert confluent.config(topic)["cleanup.policy"] == expected


def test_validate_only_changes_nothing(admin_client: admin.AdminClient, confluent: ConfluentKafka, topic: str) -> None:
    change = topic_change(topic, "retention.ms", "1000", admin.AlterConfigOpType.SET)
    result_of(admin_client.incremental_alter_configs([change], validate_only=True))
    assert confluent.config(topic)["retention.ms"] == "604800000"
    result_of(admin_client.create_topics([admin.NewTopic(f"{topic}-2", 1)], validate_only=True))
    result_of(admin_client.create_partitions([admin.NewPartitions(topic, 2)], validate_only=True))
    assert confluent.partition_count(topic) == 1
    assert f"{topic}-2" not in confluent.topics()


def test_config_has_its_source(admin_client: admin.AdminClient, confluent: ConfluentKafka) -> None:
    confluent.create_topic("sources", config={"retention.ms": "1000"})
    described = result_of(admin_client.describe_configs([admin.ConfigResource(admin.RESOURCE_TOPIC, "sources")]))
    assert described["retention.ms"].source == admin.ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert described["segment.bytes"].source == admin.ConfigSource.DEFAULT_CONFIG.value
    assert described["segment.bytes"].is_default
    assert "log.retention.ms" in described["retention.ms"].synonyms or described["retention.ms"].synonyms


def test_broker_configs_are_described_and_altered(
    admin_client: admin.AdminClient, confluent: ConfluentKafka, topic: str
) -> None:
    broker_id = str(confluent.cluster().controller_id)
    described = result_of(admin_client.describe_configs([admin.ConfigResource(admin.RESOURCE_BROKER, broker_id)]))
    assert described["auto.create.topics.enable"].value == "false"
    assert described["auto.create.topics.enable"].source == admin.ConfigSource.STATIC_BROKER_CONFIG.value
    for name, value, expected in (("log.retention.ms", "5000", "5000"), ("log.retention.ms", None, "604800000")):
        how = admin.AlterConfigOpType.SET if value else admin.AlterConfigOpType.DELETE
        entry = admin.ConfigEntry(name, value, incremental_operation=how)
        change = admin.ConfigResource(admin.RESOURCE_BROKER, broker_id, incremental_configs=[entry])
        result_of(admin_client.incremental_alter_configs([change]))
        assert confluent.config(topic)["retention.ms"] == expected
    entry = admin.ConfigEntry("node.id", "7", incremental_operation=admin.AlterConfigOpType.SET)
    change = admin.ConfigResource(admin.RESOURCE_BROKER, broker_id, incremental_configs=[entry])
    with pytest.raises(Rejected) as rejected:
        result_of(admin_client.incremental_alter_configs([change]))
    assert rejected.value.code in (ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST)


def test_more_replicas_than_brokers_are_rejected(admin_client: admin.AdminClient, topic_name: str) -> None:
    with pytest.raises(Rejected) as rejected:
        result_of(admin_client.create_topics([admin.NewTopic(topic_name, 1, replication_factor=2)]))
    assert rejected.value.code == ErrorCode.INVALID_REPLICATION_FACTOR


def test_replicas_are_assigned_manually(
    admin_client: admin.AdminClient, confluent: ConfluentKafka, topic_name: str
) -> None:
    node = confluent.cluster().controller_id
    result_of(admin_client.create_topics([admin.NewTopic(topic_name, 2, replica_assignment=[[node], [node]])]))
    assert confluent.partition_count(topic_name) == 2
    with pytest.raises(Rejected) as rejected:
        result_of(admin_client.create_topics([admin.NewTopic(f"{topic_name}-2", 1, replica_assignment=[[node + 1]])]))
    assert rejected.value.code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_topic_is_described_with_its_id(admin_client: admin.AdminClient, topic: str) -> None:
    names = library.TopicCollection([topic])
    described: Any = admin_client.describe_topics(names)[topic].result(WAIT_S)
    assert described.topic_id.get_most_significant_bits() != 0
    assert [partition.leader.id for partition in described.partitions] == [1]

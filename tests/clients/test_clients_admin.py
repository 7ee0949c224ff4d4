"""Topic administration with every client library."""

import pytest
from client_driver import KafkaClient, Rejected, Sent
from client_driver_kafka_python import KafkaPython

from moldau.model.errors import ErrorCode
from moldau.testing import Broker


@pytest.mark.proves("T1", "A1")
def test_topic_is_created_listed_and_deleted(client: KafkaClient, topic_name: str) -> None:
    client.create_topic(topic_name, partitions=3)
    assert topic_name in client.topics()
    assert client.partition_count(topic_name) == 3
    client.delete_topic(topic_name)
    assert topic_name not in client.topics()


@pytest.mark.proves("T1")
def test_recreated_topic_is_empty(client: KafkaClient, topic: str) -> None:
    client.produce(topic, [Sent(b"old")] * 5)
    client.delete_topic(topic)
    client.create_topic(topic, partitions=2)
    assert client.watermarks(topic) == (0, 0)
    assert client.produce(topic, [Sent(b"new")]) == [0]
    assert client.consume(topic, 1)[0].value == b"new"


@pytest.mark.proves("T1")
def test_topic_configs_are_described_and_altered(client: KafkaClient, topic_name: str) -> None:
    client.create_topic(topic_name, config={"retention.ms": "3600000", "cleanup.policy": "delete"})
    config = client.config(topic_name)
    assert config["retention.ms"] == "3600000"
    assert config["segment.bytes"] == "1073741824"
    assert config["compression.type"] == "producer"
    client.alter_config(topic_name, {"retention.ms": "7200000", "max.message.bytes": "2000000"})
    config = client.config(topic_name)
    assert (config["retention.ms"], config["max.message.bytes"]) == ("7200000", "2000000")


@pytest.mark.proves("T1")
def test_altered_config_takes_effect_at_once(client: KafkaClient, topic: str) -> None:
    client.alter_config(topic, {"max.message.bytes": "1000"})
    with pytest.raises(Rejected) as rejected:
        client.produce(topic, [Sent(bytes(2000))])
    assert rejected.value.code == ErrorCode.MESSAGE_TOO_LARGE
    client.alter_config(topic, {"max.message.bytes": "3000"})
    assert client.produce(topic, [Sent(bytes(2000))]) == [0]


@pytest.mark.proves("T1")
def test_partitions_are_added_to_a_topic(client: KafkaClient, topic: str) -> None:
    client.create_partitions(topic, 4)
    assert client.partition_count(topic) == 4
    client.produce(topic, [Sent(b"to the new one", partition=3)])
    assert client.consume(topic, 1, offsets={3: 0})[0].value == b"to the new one"


@pytest.mark.proves("S4", part="DeleteRecords")
def test_records_are_deleted_up_to_an_offset(client: KafkaClient, topic: str) -> None:
    client.produce(topic, [Sent(b"%d" % number) for number in range(10)])
    assert client.delete_records(topic, 4) == 4
    assert client.consume(topic, 6, offsets={0: 4})[0].value == b"4"
    assert client.delete_records(topic, -1) == 10
    assert client.watermarks(topic) == (10, 10)


@pytest.mark.proves("A1")
def test_cluster_is_described(client: KafkaClient, broker: Broker) -> None:
    cluster = client.cluster()
    assert len(cluster.cluster_id) == 22
    assert cluster.brokers == {cluster.controller_id: broker.bootstrap_servers}


def test_log_dirs_report_partition_sizes(kafka_python: KafkaPython, topic_name: str) -> None:
    kafka_python.create_topic(topic_name, partitions=2)
    kafka_python.produce(topic_name, [Sent(bytes(5000))])
    (row,) = kafka_python.log_folders()
    (folder,) = row["log_dirs"]
    assert folder["error_code"] == 0
    (sizes,) = [
        {each["partition_index"]: each["partition_size"] for each in topic["partitions"]}
        for topic in folder["topics"]
        if topic["name"] == topic_name
    ]
    assert sizes.keys() == {0, 1}
    assert sizes[0] > 5000
    assert sizes[1] == 0

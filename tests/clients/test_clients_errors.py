"""Rejected requests of clients get the error code that a Kafka user expects."""

import pytest
from client_driver import KafkaClient, Rejected, Sent

from moldau.model.errors import ErrorCode


def code_of(rejected: pytest.ExceptionInfo[Rejected]) -> ErrorCode:
    return ErrorCode(rejected.value.code)


def test_existing_topic_is_not_created_again(client: KafkaClient, topic: str) -> None:
    with pytest.raises(Rejected) as rejected:
        client.create_topic(topic)
    assert code_of(rejected) is ErrorCode.TOPIC_ALREADY_EXISTS


@pytest.mark.parametrize("name", ["with space", "..", "sl/ash", "x" * 250, "ümlaut"])
def test_invalid_topic_name_is_rejected(client: KafkaClient, name: str) -> None:
    with pytest.raises(Rejected) as rejected:
        client.create_topic(name)
    assert code_of(rejected) is ErrorCode.INVALID_TOPIC_EXCEPTION


def test_metadata_topic_is_not_created_by_clients(client: KafkaClient) -> None:
    with pytest.raises(Rejected) as rejected:
        client.create_topic("__cluster_metadata")
    assert code_of(rejected) is ErrorCode.INVALID_REQUEST


def test_topic_names_that_collide_in_metrics_are_rejected(client: KafkaClient, topic_name: str) -> None:
    client.create_topic(f"{topic_name}.a")
    with pytest.raises(Rejected) as rejected:
        client.create_topic(f"{topic_name}_a")
    assert code_of(rejected) is ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("partitions", [0, -2])
def test_topic_needs_at_least_one_partition(client: KafkaClient, topic_name: str, partitions: int) -> None:
    if partitions < 0 and client.name == "confluent-kafka":
        pytest.skip("librdkafka rejects this itself")
    with pytest.raises(Rejected) as rejected:
        client.create_topic(topic_name, partitions=partitions)
    assert code_of(rejected) is ErrorCode.INVALID_PARTITIONS


@pytest.mark.parametrize(
    ("name", "value"),
    [("retention.ms", "soon"), ("segment.bytes", "1"), ("cleanup.policy", "burn"), ("no.such.setting", "1")],
)
def test_invalid_config_is_rejected(client: KafkaClient, topic: str, name: str, value: str) -> None:
    with pytest.raises(Rejected) as rejected:
        client.create_topic(f"{topic}-new", config={name: value})
    assert code_of(rejected) is ErrorCode.INVALID_CONFIG
    with pytest.raises(Rejected) as rejected:
        client.alter_config(topic, {name: value})
    assert code_of(rejected) is ErrorCode.INVALID_CONFIG
    assert client.config(topic)["retention.ms"] == "604800000"


def test_partition_count_cannot_decrease(client: KafkaClient, topic_name: str) -> None:
    client.create_topic(topic_name, partitions=3)
    for total in (3, 2):
        with pytest.raises(Rejected) as rejected:
            client.create_partitions(topic_name, total)
        assert code_of(rejected) is ErrorCode.INVALID_PARTITIONS


def test_missing_topic_cannot_be_changed(client: KafkaClient, topic_name: str) -> None:
    with pytest.raises(Rejected) as rejected:
        client.delete_topic(topic_name)
    assert code_of(rejected) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(Rejected) as rejected:
        client.create_partitions(topic_name, 2)
    assert code_of(rejected) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(Rejected) as rejected:
        client.alter_config(topic_name, {"retention.ms": "1000"})
    assert code_of(rejected) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_records_beyond_the_end_cannot_be_deleted(client: KafkaClient, topic: str) -> None:
    client.produce(topic, [Sent(b"only")])
    with pytest.raises(Rejected) as rejected:
        client.delete_records(topic, 2)
    assert code_of(rejected) is ErrorCode.OFFSET_OUT_OF_RANGE


def test_message_above_the_topic_limit_is_too_large(client: KafkaClient, topic_name: str) -> None:
    client.create_topic(topic_name, config={"max.message.bytes": "10000"})
    with pytest.raises(Rejected) as rejected:
        client.produce(topic_name, [Sent(bytes(20_000))])
    assert code_of(rejected) is ErrorCode.MESSAGE_TOO_LARGE
    assert client.produce(topic_name, [Sent(bytes(20_000))], compression="gzip") == [0]


def test_message_above_the_broker_limit_is_too_large(client: KafkaClient, topic: str) -> None:
    with pytest.raises(Rejected) as rejected:
        client.produce(topic, [Sent(bytes(3 * 2**20))], request_bytes_max=2**22)
    assert code_of(rejected) is ErrorCode.MESSAGE_TOO_LARGE
    assert client.produce(topic, [Sent(b"small")]) == [0]


def test_compacted_topic_requires_keys_from_clients(client: KafkaClient, topic_name: str) -> None:
    client.create_topic(topic_name, config={"cleanup.policy": "compact"})
    with pytest.raises(Rejected) as rejected:
        client.produce(topic_name, [Sent(b"keyless")])
    is_known = client.name != "aiokafka"  # it does not know this code
    assert code_of(rejected) is (ErrorCode.INVALID_RECORD if is_known else ErrorCode.UNKNOWN_SERVER_ERROR)
    assert client.produce(topic_name, [Sent(b"keyed", key=b"k")]) == [0]


def test_record_from_the_far_future_is_rejected(client: KafkaClient, topic: str) -> None:
    with pytest.raises(Rejected) as rejected:
        client.produce(topic, [Sent(b"2100", timestamp_ms=4_102_444_800_000)])
    assert code_of(rejected) is ErrorCode.INVALID_TIMESTAMP

"""Consuming by assignment with every client library: from any offset, from a time, under both isolation levels."""

from typing import Final

import pytest
from client_driver import Isolation, KafkaClient, Sent

START_MS: Final = 1_700_000_000_000
COUNT: Final = 300


def values(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


@pytest.fixture
def filled(client: KafkaClient, topic_name: str) -> str:
    """A topic with records one second apart in many small segments, so that lookups cross segments."""
    client.create_topic(topic_name, config={"segment.bytes": "4096", "index.interval.bytes": "64"})
    records = [Sent(b"%d" % n, timestamp_ms=START_MS + n * 1000, headers=(("pad", bytes(40)),)) for n in range(COUNT)]
    for first in range(0, COUNT, 25):
        client.produce(topic_name, records[first : first + 25])
    return topic_name


@pytest.mark.proves("C1", "A1")
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_consumer_starts_at_any_offset(client: KafkaClient, filled: str, isolation: Isolation) -> None:
    for first in (0, 1, 24, 25, 137, COUNT - 1):
        got = client.consume(filled, COUNT - first, offsets={0: first}, isolation=isolation)
        assert [record.value for record in got] == values(first, COUNT)
        assert [record.offset for record in got] == list(range(first, COUNT))


@pytest.mark.proves("C1", "S3")
def test_offset_is_found_by_timestamp(client: KafkaClient, filled: str) -> None:
    assert client.offset_at(filled, 0) == 0
    assert client.offset_at(filled, START_MS) == 0
    assert client.offset_at(filled, START_MS + 1) == 1
    assert client.offset_at(filled, START_MS + 137_000) == 137
    assert client.offset_at(filled, START_MS + 136_001) == 137
    assert client.offset_at(filled, START_MS + (COUNT - 1) * 1000) == COUNT - 1
    assert client.offset_at(filled, START_MS + COUNT * 1000) is None


@pytest.mark.proves("C1")
def test_watermarks_are_the_start_and_end_of_a_partition(client: KafkaClient, filled: str) -> None:
    assert client.watermarks(filled) == (0, COUNT)
    client.delete_records(filled, 137)
    assert client.watermarks(filled) == (137, COUNT)


@pytest.mark.proves("C1")
def test_watermarks_of_an_empty_partition_are_zero(client: KafkaClient, topic: str) -> None:
    assert client.watermarks(topic) == (0, 0)
    assert client.offset_at(topic, START_MS) is None


@pytest.mark.proves("C1")
def test_log_append_time_is_returned(client: KafkaClient, topic_name: str) -> None:
    client.create_topic(topic_name, config={"message.timestamp.type": "LogAppendTime"})
    client.produce(topic_name, [Sent(b"late", timestamp_ms=START_MS), Sent(b"later", timestamp_ms=START_MS + 1)])
    first, second = client.consume(topic_name, 2)
    assert START_MS < first.timestamp_ms == second.timestamp_ms
    assert client.offset_at(topic_name, START_MS) == 0


@pytest.mark.proves("C1")
def test_topic_codec_overrides_the_producers(client: KafkaClient, topic_name: str) -> None:
    client.create_topic(topic_name, config={"compression.type": "zstd"})
    records = [Sent(b"text " * 100, key=b"%d" % number, timestamp_ms=START_MS + number) for number in range(50)]
    client.produce(topic_name, records, compression="gzip")
    got = client.consume(topic_name, 50)
    assert [(record.key, record.value, record.timestamp_ms) for record in got] == [
        (record.key, record.value, record.timestamp_ms) for record in records
    ]

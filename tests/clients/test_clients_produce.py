"""Producing with every client library: compression, keys, headers, timestamps, acks, idempotence."""

from pathlib import Path

import pytest
from client_driver import CODECS, Acks, Got, KafkaClient, Sent

from moldau.records.compression import Compression
from moldau.records.record import iterate_batches

RECORDS = [
    Sent(b"plain"),
    Sent(b"with key", key=b"k"),
    Sent(b"", key=b""),
    Sent(None, key=b"a tombstone"),
    Sent(b"with headers", headers=(("name", b"value"), ("name", b"again"), ("empty", b""))),
    Sent("grüße 流".encode(), key="schlüssel".encode(), headers=(("ключ", b"\x00\xff"),)),
    Sent(b"repetitive " * 500),
    Sent(b"of 2001", timestamp_ms=1_000_000_000_123),
]


def without_unset_time(sent: Sent, got: Got) -> tuple[object, object]:
    """Return the sent and the read record for comparison, with the timestamp only if the producer set it."""
    time = got.timestamp_ms if sent.timestamp_ms is not None else None
    return (
        (sent.key, sent.value, sent.headers, sent.timestamp_ms),
        (got.key, got.value, got.headers, time),
    )


@pytest.mark.proves("A1", "P1", "S9")
@pytest.mark.parametrize("compression", CODECS)
def test_records_round_trip_with_each_compression(
    client: KafkaClient, topic: str, compression: str, segment: Path
) -> None:
    offsets = client.produce(topic, RECORDS, compression=compression)
    assert offsets == list(range(len(RECORDS)))
    got = client.consume(topic, len(RECORDS))
    assert [record.offset for record in got] == offsets
    for sent, came in zip(RECORDS, got, strict=True):
        was_sent, has_come = without_unset_time(sent, came)
        assert has_come == was_sent
    codecs = {Compression(header.compression).name.lower() for header, _ in iterate_batches(segment.read_bytes())}
    assert compression in codecs
    assert codecs <= {compression, "none"}  # librdkafka sends a batch that does not shrink uncompressed


@pytest.mark.proves("P1")
@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_records_are_appended_with_every_acks(client: KafkaClient, topic: str, acks: Acks) -> None:
    records = [Sent(b"%d" % number) for number in range(20)]
    offsets = client.produce(topic, records, acks=acks)
    assert [record.value for record in client.consume(topic, 20)] == [record.value for record in records]
    if acks != 0:
        assert offsets == list(range(20))


@pytest.mark.proves("P2")
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_idempotent_producer_numbers_its_batches(
    client: KafkaClient, topic: str, compression: str, segment: Path
) -> None:
    records = [Sent(b"%d" % number) for number in range(500)]
    assert client.produce(topic, records, is_idempotent=True, compression=compression) == list(range(500))
    headers = [header for header, _ in iterate_batches(segment.read_bytes())]
    assert {header.producer_id for header in headers} != {-1}
    assert [header.base_sequence for header in headers] == [header.base_offset for header in headers]


@pytest.mark.proves("P1")
def test_record_of_one_mebibyte_round_trips(client: KafkaClient, topic_name: str) -> None:
    client.create_topic(topic_name, config={"max.message.bytes": str(2**21)})
    record = Sent(bytes(range(256)) * 4096, key=b"big")
    assert client.produce(topic_name, [record], request_bytes_max=2**21) == [0]
    (got,) = client.consume(topic_name, 1)
    assert got.value == record.value


@pytest.mark.proves("P1", "C1")
def test_many_partitions_are_written_and_read_at_once(client: KafkaClient, topic_name: str) -> None:
    client.create_topic(topic_name, partitions=40)
    records = [Sent(b"%d" % number, partition=number % 40) for number in range(400)]
    client.produce(topic_name, records)
    got = client.consume(topic_name, 400, offsets=dict.fromkeys(range(40), 0))
    for partition in range(40):
        values = [record.value for record in got if record.partition == partition]
        assert values == [b"%d" % number for number in range(partition, 400, 40)]

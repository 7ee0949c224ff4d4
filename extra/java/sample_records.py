"""Varied records for any broker, and the rows expected in its log."""

import time
from typing import Any, Final, NamedTuple

import confluent_kafka as library
from confluent_kafka import admin

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
BATCH_RECORDS: Final = 12
START_MS: Final = 1_700_000_000_000
WAIT_S: Final = 30.0

PLAIN: Final = "plain"
COMPACTED: Final = "compacted"
TRANSACTIONAL: Final = "transactional"


class Row(NamedTuple):
    """An expected record."""

    offset: int
    key: bytes | None
    value: bytes | None


def fill_plain(servers: str) -> list[Row]:
    """Produce a batch with each codec; create topics, alter a config, add partitions."""
    client = admin.AdminClient({"bootstrap.servers": servers})
    create(client, admin.NewTopic(PLAIN, 2, config={"retention.ms": "-1", "max.message.bytes": "100000"}))
    create(client, admin.NewTopic(COMPACTED, 1, config={"cleanup.policy": "compact", "min.compaction.lag.ms": "1"}))
    rows: list[Row] = []
    for codec in CODECS:
        settings = {
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "compression.type": codec,
            "linger.ms": 50,
        }
        producer = library.Producer(settings)
        for number in range(BATCH_RECORDS):
            row = Row(len(rows), b"key %d" % number, None if number == 5 else b"%s %d " % (codec.encode(), number) * 5)
            rows.append(row)
            headers: Any = [("codec", codec.encode()), ("null", None)]
            time_ms = START_MS + row.offset * 1000
            producer.produce(PLAIN, row.value, row.key, partition=0, headers=headers, timestamp=time_ms)
        assert producer.flush(WAIT_S) == 0
    producer = library.Producer({"bootstrap.servers": servers})
    for number in range(10):
        producer.produce(COMPACTED, b"%d" % number, b"key %d" % (number % 3), partition=0, timestamp=START_MS + number)
    assert producer.flush(WAIT_S) == 0
    resource = admin.ConfigResource(
        admin.RESOURCE_TOPIC,
        PLAIN,
        incremental_configs=[
            admin.ConfigEntry("segment.ms", "3600000", incremental_operation=admin.AlterConfigOpType.SET)
        ],
    )
    client.incremental_alter_configs([resource])[resource].result(WAIT_S)
    client.create_partitions([admin.NewPartitions(PLAIN, 3)])[PLAIN].result(WAIT_S)
    return rows


def fill_transactions(servers: str) -> list[Row]:
    """Produce three transactions, the second aborted, and leave one open. Returns the committed rows."""
    client = admin.AdminClient({"bootstrap.servers": servers})
    create(client, admin.NewTopic(TRANSACTIONAL, 1, config={"retention.ms": "-1"}))
    producer = library.Producer({"bootstrap.servers": servers, "transactional.id": "writer"})
    producer.init_transactions(WAIT_S)
    rows: list[Row] = []
    offset = 0
    for is_committed in (True, False, True):
        producer.begin_transaction()
        values = [b"transaction at %d" % (offset + number) for number in range(4)]
        for value in values:
            producer.produce(TRANSACTIONAL, value, partition=0)
        if is_committed:
            producer.commit_transaction(WAIT_S)
            rows.extend(Row(offset + number, None, value) for number, value in enumerate(values))
        else:
            producer.flush(WAIT_S)
            producer.abort_transaction(WAIT_S)
        offset += len(values) + 1
    producer.begin_transaction()
    producer.produce(TRANSACTIONAL, b"never ended", partition=0)
    assert producer.flush(WAIT_S) == 0
    return rows


def commit_offsets(servers: str) -> None:
    """Commit offsets of a consumer group."""
    consumer = library.Consumer({"bootstrap.servers": servers, "group.id": "readers", "enable.auto.commit": False})
    consumer.commit(offsets=[library.TopicPartition(PLAIN, 0, 17)], asynchronous=False)
    consumer.close()


def read(servers: str, topic: str, count: int, first: int = 0) -> list[Row]:
    """Read the given number of committed records."""
    settings = {"bootstrap.servers": servers, "group.id": "readers", "enable.auto.commit": False}
    consumer = library.Consumer({**settings, "isolation.level": "read_committed", "auto.offset.reset": "error"})
    consumer.assign([library.TopicPartition(topic, 0, first)])
    rows: list[Row] = []
    while len(rows) < count:
        message: Any = consumer.poll(WAIT_S)
        assert message is not None, f"{len(rows)} of {count} records arrived"
        assert message.error() is None, message.error()
        rows.append(Row(message.offset(), message.key(), message.value()))
    consumer.close()
    return rows


def end_offset(servers: str, topic: str) -> int:
    """Return the last stable offset."""
    consumer = library.Consumer({"bootstrap.servers": servers, "group.id": "readers"})
    _, end = consumer.get_watermark_offsets(library.TopicPartition(topic, 0), timeout=WAIT_S)
    consumer.close()
    return int(end)


def create(client: admin.AdminClient, topic: admin.NewTopic) -> None:
    """Create a topic and wait for its leaders, which Apache Kafka elects after its response."""
    client.create_topics([topic])[topic.topic].result(WAIT_S)
    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:
        described: Any = client.list_topics(topic.topic, timeout=WAIT_S).topics[topic.topic]
        if described.error is None and all(each.leader >= 0 for each in described.partitions.values()):
            return
    raise AssertionError(f"{topic.topic} has no leaders")

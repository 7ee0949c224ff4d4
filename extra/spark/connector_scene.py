"""Topics with varied records, and records for streams."""

import uuid
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Producer

from moldau.testing.broker import Broker

START_MS: Final = 1_700_000_000_000
STEP_MS: Final = 1_000
RECORDS: Final = 90  # in each of the three partitions
DELETED: Final = 7  # the deleted first offsets of partition 2
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True, slots=True)
class Scene:
    """Two topics with a common prefix. The first ends with an open transaction."""

    many: str
    few: str
    prefix: str
    open: Any  # keeps the transaction open as long as the scene

    def named(self, options: dict[str, object]) -> dict[str, object]:
        """Replace MANY, FEW and PREFIX by the names of the scene."""
        names = {"MANY": self.many, "FEW": self.few, "PREFIX": self.prefix}
        return {name: _replaced(value, names) if isinstance(value, str) else value for name, value in options.items()}


def _replaced(text: str, names: dict[str, str]) -> str:
    for word, name in names.items():
        text = text.replace(word, name)
    return text


def build(broker: Broker) -> Scene:
    prefix = f"scene-{uuid.uuid4().hex}"
    keep = {"retention.ms": "-1"}
    many = broker.create_topic(f"{prefix}-many", partitions=3, **keep)
    few = broker.create_topic(f"{prefix}-few", partitions=1, **keep)
    _fill_plainly(broker, many)
    _fill_in_transactions(broker, many)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(few, b"alone", timestamp=START_MS)
    assert producer.flush(60) == 0
    with broker.client() as client:
        client.delete_records(many, 2, DELETED)
    return Scene(many, few, prefix, _left_open(broker, many))


def _fill_plainly(broker: Broker, topic: str) -> None:
    """Produce with all codecs: nulls and empty bytes, repeated, empty and null headers, increasing timestamps."""
    for number, codec in enumerate(CODECS):
        settings = {"bootstrap.servers": broker.bootstrap_servers, "compression.type": codec, "linger.ms": 50}
        producer = Producer(settings)
        for place in range(number * RECORDS // len(CODECS), (number + 1) * RECORDS // len(CODECS)):
            for partition in range(3):
                producer.produce(
                    topic,
                    None if place % 11 == 3 else b"" if place % 11 == 4 else b"v%d" % place * 20,
                    None if place % 5 == 0 else b"" if place % 5 == 1 else b"k%d" % (place % 7),
                    partition,
                    timestamp=START_MS + place * STEP_MS,
                    headers=[("a", b"1"), ("a", None), ("\u00e4", b"")] if place % 4 == 0 else None,
                )
        assert producer.flush(60) == 0


def _fill_in_transactions(broker: Broker, topic: str) -> None:
    """Produce three transactions to partitions 0 and 1: committed, aborted, committed."""
    producer = _transactional(broker)
    for turn, is_kept in enumerate((True, False, True)):
        producer.begin_transaction()
        for place in range(10):
            at_ms = START_MS + (RECORDS + turn * 10 + place) * STEP_MS
            producer.produce(topic, b"turn %d" % turn, b"t", place % 2, timestamp=at_ms)
        assert producer.flush(60) == 0
        producer.commit_transaction(60) if is_kept else producer.abort_transaction(60)


def _left_open(broker: Broker, topic: str) -> Any:
    producer = _transactional(broker)
    producer.begin_transaction()
    for partition in range(2):
        producer.produce(topic, b"open", b"o", partition, timestamp=START_MS + 200 * STEP_MS)
    assert producer.flush(60) == 0
    return producer


def _transactional(broker: Broker) -> Producer:
    settings: dict[str, Any] = {
        "bootstrap.servers": broker.bootstrap_servers,
        "transactional.id": f"scene-{uuid.uuid4().hex}",
        "transaction.timeout.ms": 900_000,
    }
    producer = Producer(settings)
    producer.init_transactions(60)
    return producer


def produce_numbers(broker: Broker, topic: str, count: int, first: int = 0) -> None:
    """Produce numbers as values, a third of them to partition 0, so that partitions differ in size."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(first, first + count):
        producer.produce(topic, b"%d" % number, b"k%d" % (number % 5), partition=0 if number % 3 == 0 else 1)
    assert producer.flush(60) == 0

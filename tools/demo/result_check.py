"""Compare the output with the input: every event by its number, and all duplicate, late and malformed ones."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, TopicPartition

READ_S_MAX: Final = 60.0
AT_ONCE: Final = 10_000
SEEN_MAX: Final = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """The counts that the generator reports."""

    seed: int
    events: int
    late: int
    repeated: int
    broken: int
    records: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The counts in the results."""

    out: int
    twice: int
    lost: int
    strangers: int
    dead_letters: int
    lake: int

    def is_right(self, made: Made) -> bool:
        return (self.out, self.twice, self.lost, self.strangers, self.dead_letters, self.lake) == (
            made.events,
            0,
            0,
            0,
            made.broken,
            made.events,
        )


def count_ids(ids: Iterable[str], made: Made) -> tuple[int, int, int, int]:
    """Count events: total, duplicates, missing, and never produced."""
    seen = bytearray(made.events)
    prefix = f"{made.seed}-"
    out = strangers = 0
    for each in ids:
        out += 1
        number = each.removeprefix(prefix)
        if not each.startswith(prefix) or not number.isdecimal() or int(number) >= made.events:
            strangers += 1
        else:
            seen[int(number)] = min(seen[int(number)] + 1, SEEN_MAX)
    lost = seen.count(0)
    return out, out - strangers - (made.events - lost), lost, strangers


def look(bootstrap_servers: str, out: str, lake: Path, made: Made) -> Found:
    events = read_committed(bootstrap_servers, f"{out}.events")
    total, twice, lost, strangers = count_ids((json.loads(value)["event_id"] for value in events), made)
    letters = sum(1 for _ in read_committed(bootstrap_servers, f"{out}.dead-letters"))
    return Found(out=total, twice=twice, lost=lost, strangers=strangers, dead_letters=letters, lake=rows_of(lake))


def rows_of(lake: Path) -> int:
    """Count the rows as any Parquet reader does."""
    from pyarrow import dataset

    return int(dataset.dataset(lake, format="parquet", partitioning="hive").count_rows())


def read_committed(bootstrap_servers: str, topic: str) -> Iterator[bytes]:
    """Return all values of a topic as a `read_committed` consumer reads them."""
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap_servers,
        "group.id": "demo-check",
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
    }
    consumer = Consumer(settings)
    try:
        partitions = consumer.list_topics(topic, READ_S_MAX).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        missing = set(partitions)
        while missing:
            messages = consumer.consume(AT_ONCE, timeout=1.0)
            for message in messages:
                error = message.error()
                if error is None:
                    yield message.value() or b""
                elif error.code() == KafkaError._PARTITION_EOF:
                    missing.discard(message.partition() or 0)
                else:
                    raise RuntimeError(f"{topic} cannot be read: {error.str()}")
    finally:
        consumer.close()

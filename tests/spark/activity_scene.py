"""A small clickstream for the activity pipeline, and its expected results."""

import json
from collections import Counter
from typing import Any, Final

from confluent_kafka import Producer

from moldau.testing.broker import Broker
from moldau_dev.spark import read_committed

START_MS: Final = 1_767_225_600_000  # 2026-01-01
STEP_S: Final = 6
LATER_S: Final = 3 * 3600
PARTITIONS: Final = 2
BAD: Final = {
    b"no json": "not a JSON event",
    b'{"event_id": "b1", "kind": "view", "at": "1767225600000"}': "user is missing",
    b'{"user": "u", "kind": "view", "at": "1767225600000"}': "event_id is missing",
    b'{"event_id": "b2", "user": "u", "kind": "dance", "at": "1767225600000"}': "kind is unknown: dance",
    b'{"event_id": "b3", "user": "u", "kind": "view", "at": "noon"}': "at is not a time: noon",
    b'{"event_id": "b4", "user": "u", "kind": "view", "at": "99999999999999"}': "at is in the future: 99999999999999",
}


def kind_of(number: int) -> str:
    return "purchase" if number % 10 == 0 else "view"


def user_of(number: int) -> str:
    return "hot" if number % 4 == 0 else f"u{number % 7}"


def event(number: int, user: str, at_ms: int) -> bytes:
    fields = {"event_id": f"e{number}", "user": user, "kind": kind_of(number), "page": f"/{number % 3}"}
    return json.dumps({**fields, "at": str(at_ms)}).encode()


def send(broker: Broker, topic: str, *events: tuple[int, int]) -> None:
    """Send events, given as number and seconds after the start, to both partitions alternately."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number, at_s in events:
        at_ms, user = START_MS + at_s * 1000, user_of(number)
        producer.produce(topic, event(number, user, at_ms), user, number % PARTITIONS, timestamp=at_ms)
        assert producer.flush(60) == 0  # one batch per event keeps this order


def fill(broker: Broker, topic: str, first: int, count: int) -> int:
    """Send an event every six seconds, each fifth one twice, and six invalid ones. Returns the number of records."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    numbers = [each for number in range(first, first + count) for each in [number] * (2 if number % 5 == 0 else 1)]
    for number in numbers:
        at_ms, user = START_MS + number * STEP_S * 1000, user_of(number)
        producer.produce(topic, event(number, user, at_ms), user, number % PARTITIONS, timestamp=at_ms)
    for value in BAD:
        producer.produce(topic, value, b"k", partition=1, timestamp=START_MS, headers=[("h", b"1")])
    assert producer.flush(60) == 0
    return len(numbers) + len(BAD)


def values(broker: Broker, topic: str, partitions: int = PARTITIONS) -> list[dict[str, Any]]:
    return [json.loads(value) for _, value in read_committed(broker, topic, partitions)]


def ids_of(broker: Broker, out: str, partitions: int = PARTITIONS) -> Counter[str]:
    return Counter(each["event_id"] for each in values(broker, f"{out}.events", partitions))


def expected_counts(count: int) -> Counter[tuple[str, str, str]]:
    """Return the number of events by minute, kind and page."""
    return Counter(
        (f"2026-01-01T00:{number * STEP_S // 60:02}:00Z", kind_of(number), f"/{number % 3}") for number in range(count)
    )

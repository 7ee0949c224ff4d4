"""`moldau quota` against a broker, and what clients then see of the quota."""

import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import Consumer, Producer
from typer.testing import CliRunner

from moldau.cli.main import app
from moldau.testing.broker import Broker

Moldau = Callable[..., str]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def moldau(broker: Broker) -> Moldau:
    environment = {**os.environ, "MOLDAU_BOOTSTRAP_SERVERS": broker.bootstrap_servers}

    def run(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, ["quota", *arguments], env=environment)
        assert result.exit_code == code, f"{result.output}{result.exception!r}"
        return result.stdout if code == 0 else result.stderr

    return run


def test_quotas_are_set_listed_and_deleted(moldau: Moldau) -> None:
    moldau("set", "--user", "alice", "--client-id", "app", "--produce", "1000000", "--request-percentage", "12.5")
    moldau("set", "--default-user", "--consume", "2000000")
    moldau("set", "--ip", "10.0.0.1", "--connections", "5")
    moldau("set", "--user", "bob", "--mutations", "1", "--dry-run")
    assert json.loads(moldau("list", "--json")) == [
        {"entity": {"ip": "10.0.0.1"}, "quotas": {"connection_creation_rate": 5.0}},
        {"entity": {"user": None}, "quotas": {"consumer_byte_rate": 2000000.0}},
        {
            "entity": {"user": "alice", "client-id": "app"},
            "quotas": {"producer_byte_rate": 1000000.0, "request_percentage": 12.5},
        },
    ]
    table = moldau("list", "--user", "alice")
    assert "producer_byte_rate" in table
    assert "1000000" in table
    assert "10.0.0.1" not in table
    moldau("delete", "--user", "alice", "--client-id", "app", "request_percentage")
    moldau("delete", "--default-user")
    moldau("delete", "--ip", "10.0.0.1")
    (left,) = json.loads(moldau("list", "--json"))
    assert left["quotas"] == {"producer_byte_rate": 1000000.0}
    moldau("delete", "--user", "alice", "--client-id", "app")
    assert json.loads(moldau("list", "--json")) == []


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("set", "--produce", "1"), 2, "say whose quota"),
        (("set", "--user", "a"), 2, "give a limit"),
        (("set", "--user", "a", "--default-user", "--produce", "1"), 2, "exclude each other"),
        (("set", "--user", "a", "--ip", "::1", "--produce", "1"), 2, "cannot be combined"),
        (("set", "--user", "a", "--connections", "1"), 1, "Invalid configuration key connection_creation_rate"),
        (("delete", "--user", "stranger"), 1, "user=stranger has no quota"),
    ],
)
def test_invalid_quota_commands_are_rejected(
    moldau: Moldau, arguments: tuple[str, ...], code: int, message: str
) -> None:
    assert message in moldau(*arguments, code=code)


def throttle_times(client: Any, events: list[confluent_kafka.ThrottleEvent], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not events and time.monotonic() < deadline:
        client.poll(0.1)


@pytest.mark.proves("P4", part="quotas")
def test_confluent_producer_and_consumer_see_their_throttle_time(broker: Broker, moldau: Moldau) -> None:
    topic = broker.create_topic("throttled")
    moldau("set", "--client-id", "slow", "--produce", "20000", "--consume", "20000")
    events: list[confluent_kafka.ThrottleEvent] = []
    settings = {"bootstrap.servers": broker.bootstrap_servers, "client.id": "slow", "throttle_cb": events.append}
    producer = Producer({**settings, "batch.size": 5_000})
    for _ in range(8):
        producer.produce(topic, b"x" * 4_000)
    assert producer.flush(30) == 0
    throttle_times(producer, events, 5)
    assert 0 < events[0].throttle_time < 10
    events.clear()
    consumer = Consumer({**settings, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    values: list[bytes] = []
    deadline = time.monotonic() + 30
    while len(values) < 8 and time.monotonic() < deadline:
        message = consumer.poll(0.1)
        if message is not None and not message.error():
            values.append(message.value() or b"")
    throttle_times(consumer, events, 5)
    consumer.close()
    assert len(values) == 8
    assert events[0].throttle_time > 0
    moldau("delete", "--client-id", "slow")

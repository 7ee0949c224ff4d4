"""`moldau group` with share groups, whose member is confluent-kafka's `ShareConsumer`."""

import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import ShareConsumer
from typer.testing import CliRunner

from moldau.cli.main import app
from moldau.testing.broker import Broker

pytestmark = pytest.mark.proves("A4", part="groups")

Moldau = Callable[..., str]
GROUP, TOPIC = "shared", "jobs"
DEADLINE_S = 30.0
SETTINGS = {
    "offsets.topic.num.partitions": 3,
    "share.coordinator.state.topic.num.partitions": 3,
    "group.share.min.heartbeat.interval.ms": 100,
    "group.share.heartbeat.interval.ms": 200,
}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings=SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def moldau(broker: Broker) -> Moldau:
    environment = {**os.environ, "MOLDAU_BOOTSTRAP_SERVERS": broker.bootstrap_servers}

    def run(*arguments: str, text: str = "", code: int = 0) -> str:
        result = CliRunner().invoke(app, arguments, input=text, env=environment)
        assert result.exit_code == code, f"{result.output}{result.exception!r}"
        return result.stdout if code == 0 else result.stderr

    return run


def described(moldau: Moldau) -> Any:
    return json.loads(moldau("group", "describe", GROUP, "--json"))


@pytest.fixture(scope="module", autouse=True)
def share_group(broker: Broker, moldau: Moldau) -> None:
    """A share group whose member has left after it was assigned both partitions of the topic."""
    moldau("topic", "create", TOPIC, "--partitions", "2")
    moldau("produce", TOPIC, text="".join(f"{line}\n" for line in range(10)))
    consumer = ShareConsumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": GROUP, "log_level": 0})
    consumer.subscribe([TOPIC])
    deadline_s = time.monotonic() + DEADLINE_S
    while True:
        assert time.monotonic() < deadline_s, "no partition is assigned"
        consumer.poll(0.2)
        listed = json.loads(moldau("group", "list", "--json"))
        if [each["protocol"] for each in listed if each["group"] == GROUP] != ["share"]:
            continue
        partitions = described(moldau)["partitions"]
        if [(each["topic"], each["partition"], each["members"]) for each in partitions] == [
            (TOPIC, 0, 1),
            (TOPIC, 1, 1),
        ]:
            break
    (member,) = json.loads(moldau("group", "members", GROUP, "--json"))
    assert member["partitions"] == [f"{TOPIC}-0", f"{TOPIC}-1"]
    assert "stop them first" in moldau("group", "reset-offsets", GROUP, "--to", "start", "-t", TOPIC, code=1)
    consumer.close()
    while described(moldau)["state"] != "Empty":
        assert time.monotonic() < deadline_s, "the member does not leave"


def starts(moldau: Moldau) -> list[int | None]:
    return [each["start"] for each in described(moldau)["partitions"]]


def test_start_offsets_are_reset_and_deleted(moldau: Moldau) -> None:
    shown = moldau("group", "reset-offsets", GROUP, "--to", "start", "-t", TOPIC)
    assert "jobs" in shown
    assert starts(moldau) != [0, 0]
    moldau("group", "reset-offsets", GROUP, "--to", "start", "-t", TOPIC, "--execute")
    assert starts(moldau) == [0, 0]
    assert "whole topics" in moldau("group", "delete-offsets", GROUP, "-t", f"{TOPIC}:0", code=2)
    moldau("group", "delete-offsets", GROUP, "-t", TOPIC)
    assert starts(moldau) == []
    moldau("group", "delete", GROUP)
    assert GROUP not in moldau("group", "list")

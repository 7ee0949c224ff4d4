"""`moldau schedule` with a real broker."""

import json
import os
import time
from collections.abc import Callable, Iterator

import pytest
from typer.testing import CliRunner

from moldau.cli.main import app
from moldau.testing.broker import Broker

pytestmark = pytest.mark.proves("C9")

Moldau = Callable[..., str]
DEADLINE_S = 30.0


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        running.create_topic("ticks")
        yield running


@pytest.fixture
def moldau(broker: Broker) -> Moldau:
    environment = {**os.environ, "MOLDAU_BOOTSTRAP_SERVERS": broker.bootstrap_servers}

    def run(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, arguments, env=environment)
        assert result.exit_code == code, f"{result.output}{result.exception!r}"
        return result.stdout if code == 0 else result.stderr

    return run


def test_schedule_publishes_until_it_is_paused_and_removed(moldau: Moldau) -> None:
    every_second = ("--cron", "* * * * * *", "--topic", "ticks")
    moldau("schedule", "add", "beat", *every_second, "--key", "k", "--value", "now", "--timezone", "Europe/Prague")
    assert "there is a schedule beat already" in moldau("schedule", "add", "beat", *every_second, code=1)
    moldau("consume", "ticks", "--count", "2")
    lines = moldau("consume", "ticks", "--count", "2", "--format", "%T %k %v %h").splitlines()
    times = [int(line.split()[0]) for line in lines]
    assert times[1] - times[0] == 1000
    assert all(" k now moldau-schedule=beat,moldau-tick=" in line for line in lines)
    (listed,) = json.loads(moldau("schedule", "list", "--json"))
    assert (listed["name"], listed["timezone"], listed["catch_up"], listed["is_paused"]) == (
        "beat",
        "Europe/Prague",
        "once",
        False,
    )
    assert listed["next"] is not None
    moldau("schedule", "pause", "beat")
    assert json.loads(moldau("schedule", "list", "--json"))[0]["next"] is None
    moldau("schedule", "resume", "beat")
    assert json.loads(moldau("schedule", "list", "--json"))[0]["is_paused"] is False
    moldau("schedule", "remove", "beat")
    assert json.loads(moldau("schedule", "list", "--json")) == []


def test_schedule_continues_after_a_kill(broker: Broker, moldau: Moldau) -> None:
    moldau("topic", "create", "kept")
    moldau("schedule", "add", "kept", "--cron", "* * * * * *", "--topic", "kept", "--catch-up", "all")
    moldau("consume", "kept", "--count", "2")
    broker.kill()
    broker.start()
    end_s = time.monotonic() + DEADLINE_S
    times: list[int] = []
    while len(times) < 6:
        assert time.monotonic() < end_s
        times = [int(line) for line in moldau("consume", "kept", "--until", "end", "--format", "%T").split()]
    assert times == list(range(times[0], times[0] + 1000 * len(times), 1000))
    moldau("schedule", "remove", "kept")


def test_invalid_schedules_are_rejected(moldau: Moldau) -> None:
    add = ("schedule", "add", "wrong", "--topic", "ticks", "--cron")
    assert "Invalid cron expression '61 * * * *': bad minute" in moldau(*add, "61 * * * *", code=2)
    assert "Unknown time zone 'Mars'" in moldau(*add, "* * * * *", "--timezone", "Mars", code=2)
    assert "use once or all" in moldau(*add, "* * * * *", "--catch-up", "never", code=2)
    assert "nowhere" in moldau("schedule", "add", "wrong", "--cron", "* * * * *", "--topic", "nowhere", code=1)
    for command in ("pause", "resume", "remove"):
        assert "there is no schedule wrong" in moldau("schedule", command, "wrong", code=1)

"""`moldau group` and `moldau consume --group` against a broker."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from typer.testing import CliRunner

from moldau.cli.main import app
from moldau.testing.broker import Broker
from moldau.testing.free_ports import free_ports

pytestmark = [pytest.mark.proves("A4", part="groups"), pytest.mark.proves("C4", part="by moving a group")]

Moldau = Callable[..., str]
numbers = count()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings={"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 3}) as running:
        yield running


@pytest.fixture
def moldau(broker: Broker) -> Moldau:
    environment = {**os.environ, "MOLDAU_BOOTSTRAP_SERVERS": broker.bootstrap_servers}

    def run(*arguments: str, text: str = "", code: int = 0) -> str:
        result = CliRunner().invoke(app, arguments, input=text, env=environment)
        assert result.exit_code == code, f"{result.output}{result.exception!r}"
        return result.stdout if code == 0 else result.stderr

    return run


@pytest.fixture
def read(moldau: Moldau) -> tuple[str, str]:
    """A topic of ten records and a group with committed offset 4."""
    number = next(numbers)
    topic, group = f"read-{number}", f"group-{number}"
    moldau("topic", "create", topic)
    moldau("produce", topic, text="".join(f"{line}\n" for line in range(10)))
    assert moldau("consume", topic, "--group", group, "--count", "4").split() == ["0", "1", "2", "3"]
    return topic, group


def described(moldau: Moldau, group: str) -> Any:
    return json.loads(moldau("group", "describe", group, "--json"))


def test_consume_in_group_prints_records_only(
    moldau: Moldau, read: tuple[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    topic, group = read
    assert moldau("consume", topic, "--group", group, "--count", "2", "--read-committed").split() == ["4", "5"]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("ended_by", ["the reader of its output", "SIGTERM"])
@pytest.mark.parametrize("place", ["in front", "in the background"])
def test_consume_leaves_its_group_on_exit(moldau: Moldau, broker: Broker, ended_by: str, place: str) -> None:
    number = next(numbers)
    topic, group = f"ended-{number}", f"ended-group-{number}"
    moldau("topic", "create", topic)
    moldau("produce", topic, text="only\n")
    # A shell script starts background processes (`&`) with SIGINT ignored.
    shell = ["sh", "-c", 'trap "" INT; exec "$@"', "sh"] if place == "in the background" else []
    command = [*shell, sys.executable, "-m", "moldau.cli.main", "consume", topic, "--group", group]
    with subprocess.Popen([*command, "-b", broker.bootstrap_servers], stdout=subprocess.PIPE) as member:
        try:
            assert member.stdout is not None
            assert member.stdout.readline() == b"only\n"
            if ended_by == "SIGTERM":
                member.terminate()
            else:
                member.stdout.close()
            assert member.wait(30) == (128 + signal.SIGTERM if ended_by == "SIGTERM" else 0)
        finally:
            member.kill()
    assert described(moldau, group)["state"] == "Empty"


def test_consume_rejects_empty_group_and_unknown_topic(moldau: Moldau) -> None:
    assert "--group is empty" in moldau("consume", "any", "--group", "", code=2)
    assert "topic none does not exist" in moldau("consume", "none", "--group", "readers", code=1)


@pytest.mark.parametrize("place", ["@9999999999999999", "99999999999999999999"])
def test_consume_in_group_reports_unreachable_cluster(place: str) -> None:
    arguments = ["consume", "any", "--group", "readers", "--from", place, "-b", f"localhost:{free_ports(1).start}"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1, repr(result.exception)
    assert "is the broker running?" in result.stderr


def test_group_describe_shows_lag(moldau: Moldau, read: tuple[str, str]) -> None:
    topic, group = read
    assert {"group": group, "state": "Empty", "protocol": "classic"} in json.loads(moldau("group", "list", "--json"))
    shown = described(moldau, group)
    assert (shown["state"], shown["lag"]) == ("Empty", 6)
    (row,) = shown["partitions"]
    assert (row["topic"], row["committed"], row["end"], row["lag"]) == (topic, 4, 10, 6)
    assert topic in moldau("group", "describe", group)
    assert moldau("consume", topic, "--group", group, "--count", "1").split() == ["4"]


@pytest.mark.parametrize(
    ("arguments", "offset"),
    [
        (["--to", "start"], 0),
        (["--to", "end"], 10),
        (["--to", "7"], 7),
        (["--to", "-3"], 7),
        (["--to", "@2000-01-01"], 0),
        (["--shift", "3"], 7),
        (["--shift", "-99"], 0),
        (["--by-duration", "1h"], 0),
        (["--by-duration", "30000d"], 0),
        (["--by-duration", "9999999999999999d"], 0),
    ],
)
def test_reset_offsets_commits_only_with_execute(
    moldau: Moldau, read: tuple[str, str], arguments: list[str], offset: int
) -> None:
    _, group = read
    planned = json.loads(moldau("group", "reset-offsets", group, *arguments, "--json"))
    assert planned["executed"] is False
    assert [(each["from"], each["to"]) for each in planned["offsets"]] == [(4, offset)]
    assert described(moldau, group)["partitions"][0]["committed"] == 4
    moldau("group", "reset-offsets", group, *arguments, "--execute")
    assert described(moldau, group)["partitions"][0]["committed"] == offset


def test_reset_offsets_reads_a_file(moldau: Moldau, read: tuple[str, str], tmp_path: Path) -> None:
    topic, group = read
    (tmp_path / "offsets.csv").write_text(f'"{topic}",0,2\n')
    moldau("group", "reset-offsets", group, "--from-file", str(tmp_path / "offsets.csv"), "--execute")
    assert described(moldau, group)["partitions"][0]["committed"] == 2
    (tmp_path / "bad.csv").write_text("nonsense\n")
    assert "bad.csv:1" in moldau("group", "reset-offsets", group, "--from-file", str(tmp_path / "bad.csv"), code=2)
    (tmp_path / "bad.csv").write_bytes(b"\xff,0,2\n")
    error = moldau("group", "reset-offsets", group, "--from-file", str(tmp_path / "bad.csv"), code=2)
    assert "bad.csv is not UTF-8 text" in error


def test_reset_offsets_rejects_shift_without_offsets(moldau: Moldau, read: tuple[str, str]) -> None:
    topic, _ = read
    arguments = ("reset-offsets", "never-read", "--topic", topic, "--shift", "3")
    assert "no offsets to shift" in moldau("group", *arguments, "--execute", code=1)


def test_reset_offsets_creates_a_group(moldau: Moldau, read: tuple[str, str]) -> None:
    topic, _ = read
    moldau("group", "reset-offsets", "brand-new", "--topic", topic, "--to", "8", "--execute")
    assert moldau("consume", topic, "--group", "brand-new", "--count", "2").split() == ["8", "9"]


def test_reset_offsets_rejects_a_group_with_members(moldau: Moldau, read: tuple[str, str], broker: Broker) -> None:
    topic, group = read
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": group,
            "client.id": "the-reader",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    while not consumer.assignment():
        consumer.poll(0.1)
    (member,) = json.loads(moldau("group", "members", group, "--json"))
    assert member["client"] == "the-reader"
    assert member["partitions"] == [f"{topic}-0"]
    assert described(moldau, group)["partitions"][0]["member"] == member["member"]
    error = moldau("group", "reset-offsets", group, "--to", "start", "--execute", code=1)
    assert "1 members (the-reader): stop them first" in error
    assert consumer.committed([TopicPartition(topic, 0)], timeout=10)[0].offset == 4
    consumer.close()
    moldau("group", "reset-offsets", group, "--to", "start", "--execute")


def test_groups_and_offsets_are_deleted(moldau: Moldau, read: tuple[str, str]) -> None:
    topic, group = read
    moldau("group", "delete-offsets", group, "--topic", topic)
    assert described(moldau, group)["partitions"] == []
    moldau("group", "delete", group)
    assert "there is no group" in moldau("group", "describe", group, code=1)


def test_group_delete_continues_after_a_failure(moldau: Moldau, read: tuple[str, str]) -> None:
    _, group = read
    shown = moldau("group", "delete", "missing", group, "no-one", code=1)
    assert "missing: group id not found" in shown
    assert f"deleted {group}" in shown
    assert "2 of 3 groups could not be deleted" in shown
    assert "there is no group" in moldau("group", "describe", group, code=1)


def test_wrong_usage_of_groups_is_rejected(moldau: Moldau, read: tuple[str, str]) -> None:
    topic, group = read
    assert "one of --to" in moldau("group", "reset-offsets", group, code=2)
    assert "30s, 90m" in moldau("group", "reset-offsets", group, "--by-duration", "soon", code=2)
    assert "no such topic" in moldau("group", "reset-offsets", group, "--topic", "nowhere", "--to", "end", code=1)
    assert "name the topics" in moldau("group", "delete-offsets", group, code=2)
    assert "cannot be combined with --group" in moldau("consume", topic, "--group", group, "--until", "end", code=2)
    assert "cannot be combined with --group" in moldau("consume", topic, "--group", group, "--from", "-5", code=2)

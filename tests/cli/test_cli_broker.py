"""The commands against a broker."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from moldau.cli.main import app
from moldau.testing.broker import Broker

MOLDAU = [sys.executable, "-m", "moldau.cli.main"]
Moldau = Callable[..., str]
numbers = count()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def topic() -> str:
    return f"topic-{next(numbers)}"


@pytest.fixture
def environment(broker: Broker) -> dict[str, str]:
    return {**os.environ, "MOLDAU_BOOTSTRAP_SERVERS": broker.bootstrap_servers}


@pytest.fixture
def moldau(environment: dict[str, str]) -> Moldau:
    """Runs a command and returns what it printed; an exit code other than `code` fails the test."""

    def run(*arguments: str, text: str = "", code: int = 0) -> str:
        result = CliRunner().invoke(app, arguments, input=text, env=environment)
        assert result.exit_code == code, f"{result.output}{result.exception!r}"
        return result.stdout if code == 0 else result.stderr

    return run


def listed(text: str) -> list[Any]:
    shown = json.loads(text)
    assert isinstance(shown, list)
    return shown


# Topics


@pytest.mark.proves("A4", part="topics and settings")
@pytest.mark.parametrize(
    "arguments",
    [
        ["topic", "create", "wide", "--partitions", "99999999999"],
        ["topic", "create", "wide", "--replication-factor", "40000"],
        ["topic", "describe", "x" * 40_000],
        ["topic", "delete", "--yes", "\udcff"],
        ["produce", "wide", "--key-separator", "\udcff"],
    ],
)
def test_values_too_large_for_the_protocol_are_rejected(moldau: Moldau, arguments: list[str]) -> None:
    assert "error: " in moldau(*arguments, code=2)


@pytest.mark.proves("T1")
@pytest.mark.proves("A4", part="topics and settings")
def test_topic_is_created_altered_and_deleted(moldau: Moldau, topic: str) -> None:
    assert moldau("topic", "create", topic, "-p", "3", "-c", "retention.ms=60000") == f"topic {topic} created\n"
    assert topic in moldau("topic", "list")
    (described,) = listed(moldau("topic", "describe", topic, "--json"))
    assert described["configs"] == {"retention.ms": "60000"}
    assert [each["partition"] for each in described["partitions"]] == [0, 1, 2]
    assert {each["leader"] for each in described["partitions"]} == {1}
    moldau("topic", "alter", topic, "-p", "5", "-c", "cleanup.policy=compact", "--unset", "retention.ms")
    (described,) = listed(moldau("topic", "describe", topic, "--json"))
    assert described["configs"] == {"cleanup.policy": "compact"}
    assert len(described["partitions"]) == 5
    moldau("topic", "delete", topic)
    assert topic not in moldau("topic", "list")


@pytest.mark.proves("A4", part="topics and settings")
def test_topic_errors_are_one_line(moldau: Moldau, topic: str) -> None:
    assert "does not exist" in moldau("topic", "describe", topic, code=1)
    assert topic in moldau("topic", "delete", topic, code=1)
    moldau("topic", "delete", topic, "--if-exists")
    moldau("topic", "create", topic)
    assert "already exists" in moldau("topic", "create", topic, code=1)
    moldau("topic", "create", topic, "--if-not-exists")
    assert "error:" in moldau("topic", "alter", topic, "-p", "1", code=1)
    assert "no.such.thing" in moldau("topic", "create", f"{topic}x", "-c", "no.such.thing=1", code=1)
    assert "error:" in moldau("topic", "create", "not a name", code=1)
    (rejected,) = listed(moldau("topic", "create", topic, "--if-not-exists", "--json"))
    assert rejected["error"]["code"] == "TOPIC_ALREADY_EXISTS"


@pytest.mark.proves("A4", part="topics and settings")
def test_dry_run_changes_nothing(moldau: Moldau, topic: str) -> None:
    assert "could be created" in moldau("topic", "create", topic, "--dry-run")
    assert "does not exist" in moldau("topic", "describe", topic, code=1)


# Settings


@pytest.mark.proves("A4", part="topics and settings")
def test_topic_settings_are_set_and_read(moldau: Moldau, topic: str) -> None:
    moldau("topic", "create", topic)
    assert listed(moldau("config", "get", "topic", topic, "--json")) == []
    moldau("config", "set", "topic", topic, "retention.ms=5000", "max.message.bytes=2000")
    got = {each["name"]: each["value"] for each in listed(moldau("config", "get", "topic", topic, "--json"))}
    assert got == {"retention.ms": "5000", "max.message.bytes": "2000"}
    moldau("config", "set", "topic", topic, "--unset", "retention.ms")
    (entry,) = listed(moldau("config", "get", "topic", topic, "retention.ms", "--json"))
    assert (entry["value"], entry["is_default"]) == ("604800000", True)
    assert "segment.bytes" in moldau("config", "get", "topic", topic, "--all")
    moldau("config", "set", "topic", topic, "--append", "cleanup.policy=compact")
    (entry,) = listed(moldau("config", "get", "topic", topic, "cleanup.policy", "--json"))
    assert entry["value"] == "delete,compact"


@pytest.mark.proves("A4", part="topics and settings")
def test_broker_settings_are_set_and_read(moldau: Moldau) -> None:
    assert "listeners" in moldau("config", "get", "broker", "1")
    moldau("config", "set", "broker", "default", "log.retention.ms=700000")
    (entry,) = listed(moldau("config", "get", "broker", "1", "log.retention.ms", "--json"))
    assert (entry["value"], entry["source"]) == ("700000", "dynamic_default_broker")
    moldau("config", "set", "broker", "default", "--unset", "log.retention.ms")
    assert "error:" in moldau("config", "set", "topic", "no-such-topic", "retention.ms=1", code=1)
    assert "error:" in moldau("config", "get", "broker", "99", code=1)


# Producing and consuming


@pytest.mark.proves("P1", part="compression")
@pytest.mark.proves("A4", part="produce and consume")
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_produced_lines_are_consumed_unchanged(moldau: Moldau, topic: str, codec: str) -> None:
    lines = "".join(f"line {n} äöü\n" for n in range(1000))
    shown = json.loads(moldau("produce", topic, "-z", codec, "--batch-bytes", "4000", "--json", text=lines))
    assert shown["records"] == 1000
    assert moldau("consume", topic, "--until", "end") == lines


@pytest.mark.proves("P1")
@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_produce_delivers_with_every_acks(moldau: Moldau, topic: str, acks: str) -> None:
    moldau("topic", "create", topic)
    moldau("produce", topic, "--acks", acks, text="one\ntwo\n")
    assert moldau("consume", topic, "-n", "2") == "one\ntwo\n"


@pytest.mark.proves("T2", part="keyed")
def test_records_of_a_key_stay_in_order_in_one_partition(moldau: Moldau, topic: str) -> None:
    moldau("topic", "create", topic, "-p", "4")
    moldau("produce", topic, "-K", "|", text="".join(f"user{n % 7}|{n}\n" for n in range(70)))
    lines = [line.split() for line in moldau("consume", topic, "--until", "end", "--format", "%k %p %v").splitlines()]
    assert len(lines) == 70
    for key in {line[0] for line in lines}:
        own = [(partition, int(value)) for name, partition, value in lines if name == key]
        assert len({partition for partition, _ in own}) == 1
        assert [value for _, value in own] == sorted(value for _, value in own)


def test_produce_writes_headers_files_partitions_and_tombstones(moldau: Moldau, topic: str, tmp_path: Path) -> None:
    moldau("topic", "create", topic, "-p", "2")
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("a=1\nb=\nplain")
    two.write_text("c=3=4\n")
    options = ["-K", "=", "--allow-missing-key", "-H", "app=cli", "-p", "1", "--null"]
    moldau("produce", topic, str(one), str(two), *options)
    lines = [json.loads(line) for line in moldau("consume", topic, "-p", "1", "--until", "end", "--json").splitlines()]
    assert [(each["key"], each["value"]) for each in lines] == [("a", "1"), ("b", None), (None, "plain"), ("c", "3=4")]
    assert lines[0]["headers"] == [{"name": "app", "value": "cli"}]
    assert [each["offset"] for each in lines] == [0, 1, 2, 3]
    assert "partition 2 does not exist" in moldau("produce", topic, "-p", "2", text="x\n", code=2)
    assert "partition 9 does not exist" in moldau("consume", topic, "-p", "9", code=2)
    assert "no such file" in moldau("produce", topic, str(tmp_path / "none"), code=1)


@pytest.mark.proves("A4", part="produce and consume")
def test_topic_is_copied_through_json(moldau: Moldau, topic: str) -> None:
    moldau("produce", topic, "-K", ":", "--allow-missing-key", "-H", "x=y", text="k:v\n\n")
    copied = moldau("consume", topic, "--until", "end", "--json")
    moldau("produce", f"{topic}-copy", "--format", "json", text=copied)
    again = moldau("consume", f"{topic}-copy", "--until", "end", "--json")
    assert again == copied.replace(f'"{topic}"', f'"{topic}-copy"')
    assert "not a record in JSON" in moldau("produce", topic, "--format", "json", text="{\n", code=1)
    assert "not a record in JSON" in moldau("produce", topic, "--format", "json", text="[" * 100_000, code=1)
    late = json.dumps({"value": "x", "timestamp": 2**63})
    assert "timestamp does not fit in 64 bits" in moldau("produce", topic, "--format", "json", text=late, code=1)


@pytest.mark.proves("A4", part="produce and consume")
def test_produce_sends_and_counts_records_before_an_invalid_line(moldau: Moldau, topic: str) -> None:
    moldau("topic", "create", topic)
    lines = ['{"value": "a"}', '{"value": "b"}', '{"value": "c", "partition": 7}', '{"value": "d"}']
    shown = moldau("produce", topic, "--format", "json", text="\n".join(lines), code=2)
    reason = f"standard input:3: topic {topic} has 1 partitions, partition 7 does not exist"
    assert shown == f"error: {reason}; sent 2 records before that\n"
    assert moldau("consume", topic, "--until", "end") == "a\nb\n"


@pytest.mark.proves("A4", part="produce and consume")
def test_produce_rejects_line_without_key_separator(moldau: Moldau, topic: str, tmp_path: Path) -> None:
    moldau("topic", "create", topic)
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("a:1\n")
    second.write_text("b:2\n\nno key here\n")
    message = moldau("produce", topic, str(first), str(second), "-K", ":", code=1)
    assert message.startswith(f"error: {second}:2: no separator ':' in ''; --allow-missing-key sends such lines")
    assert message.endswith("sent 2 records before that\n")
    assert moldau("consume", topic, "--until", "end", "--format", "%k %v") == "a 1\nb 2\n"


def test_produce_keeps_the_rate(moldau: Moldau, topic: str) -> None:
    moldau("produce", topic, "--rate", "100", text="".join(f"{n}\n" for n in range(50)))
    times = [int(line) for line in moldau("consume", topic, "--until", "end", "--format", "%T").splitlines()]
    assert 400 <= times[-1] - times[0] <= 2000


@pytest.mark.proves("C4", part="ListOffsets")
def test_consume_starts_and_stops_at_positions(moldau: Moldau, topic: str) -> None:
    start = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)
    records = "".join(json.dumps({"value": str(n), "timestamp": start + n * 60_000}) + "\n" for n in range(10))
    moldau("produce", topic, "--format", "json", text=records)

    def values(*arguments: str) -> list[int]:
        return [int(line) for line in moldau("consume", topic, *arguments).splitlines()]

    assert values("--until", "end") == list(range(10))
    assert values("--from", "start", "-n", "3") == [0, 1, 2]
    assert values("--from", "-2", "--until", "end") == [8, 9]
    assert values("--from", "4", "--until", "6") == [4, 5]
    assert values("--from", "@2026-01-01T00:07:00Z", "--until", "end") == [7, 8, 9]
    assert values("--from", "2", "--until", "@2026-01-01T00:04:00Z") == [2, 3]
    assert values("--from", "end", "--until", "end") == []
    assert values("--from", "1000", "--until", "end") == []
    assert values("--from", "@2030-01-01", "--until", "end") == []


@pytest.mark.proves("C1", part="minimum bytes and maximum wait")
def test_consume_prints_new_records(moldau: Moldau, topic: str, environment: dict[str, str]) -> None:
    moldau("produce", topic, text="old\n")
    command = [*MOLDAU, "consume", topic, "--from", "start"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"old\n"
        moldau("produce", topic, text="new\n")
        assert process.stdout.readline() == b"new\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_produce_sends_lines_as_they_are_typed(moldau: Moldau, topic: str, environment: dict[str, str]) -> None:
    moldau("topic", "create", topic)
    with (
        subprocess.Popen([*MOLDAU, "produce", topic], stdin=subprocess.PIPE, env=environment) as typed,
        subprocess.Popen([*MOLDAU, "consume", topic, "-n", "2"], stdout=subprocess.PIPE, env=environment) as shown,
    ):
        assert typed.stdin is not None
        assert shown.stdout is not None
        for line in (b"first\n", b"second\n"):
            typed.stdin.write(line)
            typed.stdin.flush()
            assert shown.stdout.readline() == line
        typed.stdin.close()
        assert typed.wait(30) == 0
        assert shown.wait(30) == 0


def test_broken_pipe_ends_consume_quietly(moldau: Moldau, topic: str, environment: dict[str, str]) -> None:
    moldau("produce", topic, text="".join(f"{n}\n" for n in range(50_000)))
    command = f"{sys.executable} -m moldau.cli.main consume {topic} | head -n 1"
    result = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, timeout=60, check=False, env=environment
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, b"0\n", b"")


def test_broken_pipe_ends_consume_without_new_records(moldau: Moldau, topic: str, environment: dict[str, str]) -> None:
    moldau("produce", topic, text="only\n")
    with subprocess.Popen([*MOLDAU, "consume", topic], stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"only\n"
        process.stdout.close()
        assert process.wait(30) == 0


# Starting and looking at folders


def test_start_prints_its_address_and_stops_cleanly(tmp_path: Path) -> None:
    command = [*MOLDAU, "start", "--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        shown = process.stdout.readline()
        assert "serves on 127.0.0.1:" in shown
        while "stop" not in shown:
            shown += process.stdout.readline()
        assert "moldau produce" in shown
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 0, errors
    shown = json.loads(
        subprocess.run(
            [*MOLDAU, "storage", "info", "--data", str(tmp_path / "data"), "--json"],
            capture_output=True,
            check=True,
            text=True,
        ).stdout
    )
    assert shown["is_clean"]
    assert shown["identity"]["node_id"] == 1


def test_second_broker_on_same_directory_or_port_is_rejected(broker: Broker, moldau: Moldau, tmp_path: Path) -> None:
    same_folder = moldau("start", "--data", str(broker.data), "--listen", "127.0.0.1:0", code=1)
    assert "is in use by another node" in same_folder
    same_port = moldau("start", "--data", str(tmp_path), "--listen", broker.bootstrap_servers, code=1)
    assert f"{broker.bootstrap_servers} is in use" in same_port


@pytest.mark.proves("A4", part="storage and log dump")
def test_data_directory_is_formatted_once(moldau: Moldau, tmp_path: Path) -> None:
    folder = str(tmp_path / "new")
    shown = json.loads(moldau("storage", "format", "-d", folder, "--node-id", "7", "--json"))
    assert shown["node_id"] == 7
    assert "formatted already" in moldau("storage", "format", "-d", folder, "--node-id", "7", code=1)
    moldau("storage", "format", "-d", folder, "--node-id", "7", "--ignore-formatted")
    assert "belongs to node 7" in moldau("storage", "format", "-d", folder, "--ignore-formatted", code=1)
    assert shown["cluster_id"] in moldau("storage", "info", "-d", folder)
    assert "no such directory" in moldau("storage", "info", "-d", str(tmp_path / "none"), code=1)


@pytest.mark.proves("A4", part="storage and log dump")
def test_log_dump_reads_files_of_a_running_broker(broker: Broker, moldau: Moldau, topic: str) -> None:
    moldau("produce", topic, "-z", "zstd", text="".join(f"{n}\n" for n in range(3000)))
    lines = moldau("log", "dump", str(broker.data / f"{topic}-0"), "--records", "--json").splitlines()
    values = [each["value"] for each in map(json.loads, lines) if each["type"] == "record"]
    assert values == [str(n) for n in range(3000)]
    metadata = moldau("log", "dump", str(broker.data / "__cluster_metadata-0"), "--records", "--json").splitlines()
    names = [each["data"]["name"] for each in map(json.loads, metadata) if each.get("record") == "TopicRecord"]
    assert topic in names

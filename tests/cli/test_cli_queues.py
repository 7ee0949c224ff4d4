"""`moldau queue` with a real broker."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from moldau.cli.main import app
from moldau.testing.broker import Broker

pytestmark = pytest.mark.proves("C8", part="moldau queue")

Moldau = Callable[..., str]
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
        result = CliRunner().invoke(app, ["queue", *arguments], input=text, env=environment)
        assert result.exit_code == code, f"{result.output}{result.exception!r}"
        return result.stdout if code == 0 else result.stderr

    return run


def test_job_is_put_shown_taken_and_finished(broker: Broker, moldau: Moldau) -> None:
    moldau("create", "letters", "--max-attempts", "4", "--lock", "20s", "--partitions", "2")
    moldau("put", "letters", "one", "two", "--key", "k", "-H", "kind=test")
    assert moldau("peek", "letters", "--format", "%v %h").splitlines() == ["one kind=test", "two kind=test"]
    status = json.loads(moldau("status", "letters", "--json"))
    assert (status["jobs"], status["dead"], status["in_flight"], status["members"]) == (2, None, None, 0)
    assert 0 <= status["oldest_age_s"] < 300
    assert moldau("take", "letters", "--count", "2", "--ack").splitlines() == ["one", "two"]
    assert broker.metrics is not None
    after = json.loads(moldau("status", "letters", "--json", "--metrics", broker.metrics))
    assert (after["jobs"], after["in_flight"], after["oldest_age_s"]) == (0, 0, None)
    assert [row["jobs"] for row in json.loads(moldau("list", "--json")) if row["group"] == "letters"] == [0]


def test_take_asks_for_the_verdict_of_each_job(moldau: Moldau) -> None:
    moldau("create", "asked", "--max-attempts", "3")
    moldau("put", "asked", text="ack\nretry\nreject\n")
    template = ("--format", "%v")
    assert moldau("take", "asked", *template, text="a\nr\nj\n?\nq\n").split() == ["ack", "retry", "reject", "retry"]
    assert moldau("take", "asked", "--count", "1", *template, text="a\n").split() == ["retry"]
    assert json.loads(moldau("status", "asked", "--json"))["jobs"] == 0


def test_exit_code_of_the_command_is_the_verdict(moldau: Moldau, tmp_path: Path) -> None:
    moldau("create", "executed", "--max-attempts", "2")
    moldau("put", "executed", "good", "bad", "broken", "--key", "k")
    script = (
        f'read v; echo "$v $MOLDAU_KEY $MOLDAU_ATTEMPT" >> {tmp_path}/log; '
        "case $v in bad) exit 3;; broken) exit 65;; esac"
    )
    moldau("take", "executed", "--exec", script, "--count", "4")
    lines = sorted((tmp_path / "log").read_text().splitlines())
    assert lines == ["bad k 1", "bad k 2", "broken k 1", "good k 1"]
    assert json.loads(moldau("status", "executed", "--json"))["jobs"] == 0


def test_ctrl_c_waits_for_the_running_command(broker: Broker, moldau: Moldau, tmp_path: Path) -> None:
    moldau("create", "interrupted")
    moldau("put", "interrupted", "one", "two")
    script = f"touch {tmp_path}/started; while [ ! -e {tmp_path}/end ]; do sleep 0.05; done; touch {tmp_path}/done"
    command = [sys.executable, "-m", "moldau", "queue", "take", "interrupted", "--exec", script]
    taker = subprocess.Popen([*command, "-b", broker.bootstrap_servers], stderr=subprocess.PIPE, text=True)
    end_s = time.monotonic() + 30
    while not (tmp_path / "started").exists():
        assert time.monotonic() < end_s
        time.sleep(0.05)  # polls the condition
    taker.send_signal(signal.SIGINT)
    (tmp_path / "end").touch()
    _, errors = taker.communicate(timeout=30)
    assert taker.returncode == 0, errors
    assert "1 done, 0 retried, 0 rejected, 0 released" in errors
    assert json.loads(moldau("status", "interrupted", "--json"))["jobs"] == 1


def test_two_groups_are_two_queues(moldau: Moldau) -> None:
    for group in ("first", "second"):
        moldau("create", "shared", "--group", group)
    moldau("put", "shared", "job")
    for group in ("first", "second"):
        assert moldau("take", "shared", "--group", group, "--ack", "--count", "1") == "job\n"


def test_delete_forgets_the_group_and_its_configs(moldau: Moldau) -> None:
    moldau("create", "deleted", "--max-attempts", "9")
    moldau("put", "deleted", "job")
    moldau("take", "deleted", "--ack", "--count", "1")
    moldau("delete", "deleted", "--with-topic")
    assert "deleted" not in moldau("list")
    assert "deleted" in moldau("status", "deleted", code=1)


def test_invalid_use_is_reported(moldau: Moldau) -> None:
    assert "use none or key" in moldau("create", "x", "--order", "fifo", code=2)
    assert "write it as 30s" in moldau("create", "x", "--lock", "soon", code=2)
    assert "rejected the configs of group x" in moldau("create", "x", "--lock", "1s", code=1)
    assert "x" in moldau("status", "x", code=1)
    moldau("create", "plain")
    assert "has no delays (share.delay.enable)" in moldau("put", "plain", "job", "--delay", "5s", code=1)
    assert "has no dead-letter topic" in moldau("dead", "list", "plain", code=1)
    assert "--ack cannot be combined with --exec" in moldau("take", "plain", "--ack", "--exec", "true", code=2)


def until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.05)  # polls the condition


def test_dead_letters_are_listed_replayed_and_purged(moldau: Moldau) -> None:
    def dead() -> list[str]:
        return [each["value"] for each in json.loads(moldau("dead", "list", "revived", "--json"))]

    moldau("create", "revived", "--dead-letters", "dlq.revived", "--max-attempts", "2")
    moldau("put", "revived", "0", "1", "2", "--key", "k", "-H", "kind=own")
    moldau("take", "revived", "--exec", "exit 65", "--count", "2")
    moldau("take", "revived", "--exec", "exit 1", "--count", "2")  # both attempts of the third
    until(lambda: len(dead()) == 3)
    assert dead() == ["0", "1", "2"]
    assert "__dlq.errors.topic=revived" in moldau("dead", "list", "revived", "--count", "1")
    status = json.loads(moldau("status", "revived", "--json"))
    assert status["dead"] == 3
    moldau("dead", "replay", "revived", "--count", "2")
    assert dead() == ["2"]
    assert moldau("take", "revived", "--count", "2", "--ack", "--format", "%k %v %h").splitlines() == [
        "k 0 kind=own",
        "k 1 kind=own",
    ]
    moldau("dead", "purge", "revived", "--yes")
    assert dead() == []


def test_retry_waits_for_the_back_off(moldau: Moldau) -> None:
    moldau("create", "patient", "--backoff", "1s", "--backoff-factor", "1", "--backoff-max", "2s")
    moldau("put", "patient", "job")
    before_s = time.monotonic()
    assert moldau("take", "patient", "--count", "2", text="r\na\n").split() == ["job", "job"]
    assert time.monotonic() - before_s >= 1

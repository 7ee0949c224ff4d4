"""Running commands continue after a broker was killed and restarted, without loss or duplicates."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from moldau.testing.broker import Broker

MOLDAU = [sys.executable, "-m", "moldau.cli.main"]


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.mark.proves("P2", part="a retry is stored once")
def test_produce_and_consume_continue_after_kill_and_restart(broker: Broker) -> None:
    broker.create_topic("t")
    environment = {**os.environ, "MOLDAU_BOOTSTRAP_SERVERS": broker.bootstrap_servers}
    with (
        subprocess.Popen([*MOLDAU, "produce", "t"], stdin=subprocess.PIPE, env=environment) as produce,
        subprocess.Popen(
            [*MOLDAU, "consume", "t"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
        ) as consume,
    ):
        assert produce.stdin is not None
        assert consume.stdout is not None
        produce.stdin.write(b"0\n")
        produce.stdin.flush()
        assert consume.stdout.readline() == b"0\n"  # both are connected
        sent = 1
        for _ in range(3):
            for _ in range(100):
                produce.stdin.write(b"%d\n" % sent)
                produce.stdin.flush()
                sent += 1
            broker.kill()
            produce.stdin.write(b"%d\n" % sent)
            produce.stdin.flush()
            sent += 1
            broker.start()
        produce.stdin.close()
        assert produce.wait(60) == 0
        assert [consume.stdout.readline() for _ in range(1, sent)] == [b"%d\n" % n for n in range(1, sent)]
        consume.send_signal(signal.SIGINT)
        consume.wait(30)
    with broker.client() as client:
        assert client.list_offset("t", 0, -1).offset == sent


def test_hangup_is_a_clean_stop(tmp_path: Path) -> None:
    command = [*MOLDAU, "start", "-c", "listeners=PLAINTEXT://127.0.0.1:0", "-c", f"log.dirs={tmp_path}/data"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    inherited = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup, this process and the node would ignore it
    try:
        node = subprocess.Popen(
            [*command, "-c", "moldau.metrics.listener="],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )
    finally:
        signal.signal(signal.SIGHUP, inherited)
    with node:
        assert node.stdout is not None
        node.stdout.readline()  # it serves
        node.send_signal(signal.SIGHUP)
        try:
            _, errors = node.communicate(timeout=30)
        finally:
            node.kill()
    assert node.returncode == 0, errors
    assert b"Traceback" not in errors
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()

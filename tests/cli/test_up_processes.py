"""`moldau up` with real nodes: the cluster serves, survives a kill, and continues after a restart."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from moldau.cli.main import app
from moldau.testing.free_ports import free_ports

pytestmark = [pytest.mark.timeout(180), pytest.mark.proves("H3")]

MOLDAU = [sys.executable, "-m", "moldau.cli.main"]
Start = Callable[..., "Up"]


class Up:
    """A running `moldau up`, whose output lines can be awaited."""

    def __init__(self, process: "subprocess.Popen[str]", port: int) -> None:
        self.process = process
        self._environment = {**os.environ, "MOLDAU_BOOTSTRAP_SERVERS": f"localhost:{port}"}
        self.lines: list[str] = []

    def until(self, text: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if text in line:
                return self.lines[-1]
        raise AssertionError(f"it never printed {text!r}, but:\n" + "\n".join(self.lines))

    def moldau(self, *arguments: str, text: str = "", code: int | None = 0) -> str:
        result = CliRunner().invoke(app, arguments, input=text, env=self._environment)
        assert code is None or result.exit_code == code, f"{result.output}{result.exception!r}"
        return result.stdout

    def health(self) -> Any:
        return json.loads(self.moldau("cluster", "health", "--json", code=None))

    def table(self) -> list[list[str]]:
        """The rows of the printed table: node, kafka, controller, metrics, pid."""
        header = next(number for number, line in enumerate(self.lines) if line.split()[:1] == ["NODE"])
        rows = self.lines[header + 1 :]
        return [line.split() for line in rows[: rows.index("")]]

    def kill(self, node: int) -> None:
        os.kill(int(self.table()[node - 1][-1]), signal.SIGKILL)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.stdout is not None
        self.lines += [line.rstrip() for line in self.process.stdout]
        assert self.process.wait(60) == 0, "\n".join(self.lines)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    ports = free_ports(12)
    running: list[Up] = []

    def up(*options: str) -> Up:
        command = [*MOLDAU, "up", "--data", str(tmp_path / "cluster"), "--port", str(ports.start)]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen(
            [*command, "-c", "moldau.metrics.listener=", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        running.append(Up(process, ports.start))
        running[-1].until("stop  Ctrl-C")
        return running[-1]

    yield up
    for each in running:
        each.process.kill()
        each.process.wait()
        assert each.process.stdout is not None
        each.process.stdout.close()


def test_local_cluster_survives_a_killed_node_and_a_restart(start: Start) -> None:
    up = start("--brokers", "3")
    up.moldau("topic", "create", "orders", "--partitions", "3")
    up.moldau("produce", "orders", text="one\ntwo\n")
    up.kill(2)
    up.until("node 2 was killed (SIGKILL) and stays down")
    up.moldau("produce", "orders", text="three\n")
    assert sorted(up.moldau("consume", "orders", "--until", "end").split()) == ["one", "three", "two"]
    assert not up.health()["is_healthy"]
    cluster_id = up.health()["cluster_id"]
    up.stop()
    again = start("--brokers", "4")
    assert again.health()["cluster_id"] == cluster_id
    assert [each["id"] for each in again.health()["brokers"]] == [1, 2, 3, 4]
    assert [each["id"] for each in again.health()["quorum"]["voters"]] == [1, 2, 3]
    assert sorted(again.moldau("consume", "orders", "--until", "end").split()) == ["one", "three", "two"]
    again.stop()


def test_up_prints_a_table_of_ports_and_pids_and_restarts_a_killed_node(start: Start) -> None:
    up = start("--restart", "--brokers", "1", "-c", f"moldau.metrics.listener=localhost:{free_ports(1).start}")
    ((node, kafka, controller, metrics, pid),) = up.table()
    assert node == "1"
    assert abs(int(controller.rpartition(":")[2]) - int(kafka.rpartition(":")[2])) == 10_000
    with urllib.request.urlopen(metrics, timeout=10) as page:
        assert b"kafka_server" in page.read()
    os.kill(int(pid), 0)
    up.moldau("topic", "create", "orders")
    up.kill(1)
    up.until("node 1 serves again")
    up.moldau("produce", "orders", text="one\n")
    assert [each["is_fenced"] for each in up.health()["brokers"]] == [False]
    up.stop()


def test_port_in_use_is_one_line(tmp_path: Path) -> None:
    ports = free_ports(12)
    with socket.create_server(("localhost", ports.start + 1)):
        options = ["--data", str(tmp_path / "cluster"), "--port", str(ports.start), "-c", "moldau.metrics.listener="]
        done = subprocess.run([*MOLDAU, "up", *options], capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 1
    assert f"{ports.start + 1} is in use" in done.stderr
    assert len(done.stderr.splitlines()) == 1

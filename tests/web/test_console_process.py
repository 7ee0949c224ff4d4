"""`moldau start --serve` and `moldau up --serve`: the console runs beside the brokers, and ends with them."""

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any

import pytest

from moldau.cli.certificates import LOCAL_HOSTS, Authority
from moldau.cli.files import write_private
from moldau.testing.free_ports import PortRange

COMMAND = (sys.executable, "-P", "-m", "moldau.cli.main")
ADDRESSES = {"MOLDAU_CONSOLE_LISTEN": "127.0.0.1:0", "MOLDAU_REGISTRY_LISTEN": "127.0.0.1:0"}
WAIT_S = 60


@contextmanager
def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], "Queue[str]"]]:
    """Yield the process and the lines that it and its children print."""
    for name, value in ADDRESSES.items():
        monkeypatch.setenv(name, value)
    with subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, text=True) as process:
        lines: Queue[str] = Queue()

        def read() -> None:
            for line in process.stdout or ():
                lines.put(line)
            lines.put("")  # the end: no process holds the other end of the pipe

        Thread(target=read, daemon=True).start()
        try:
            yield process, lines
        finally:
            process.kill()


def url_in(lines: "Queue[str]") -> str:
    while True:
        line = lines.get(timeout=WAIT_S)
        assert line, "the output has ended without the address of the console"
        if line.startswith("  console"):
            return line.split()[1]


def overview(url: str) -> Any:
    with urllib.request.urlopen(f"{url}/api/console/overview", timeout=WAIT_S) as response:
        return json.load(response)


def test_console_of_a_lone_broker_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with run(monkeypatch, "start", "--data", str(tmp_path / "data"), "-l", "127.0.0.1:0", "--serve") as (broker, lines):
        assert len(overview(url_in(lines))["brokers"]) == 1
        broker.send_signal(signal.SIGTERM)
        assert broker.wait(WAIT_S) == 0
        while lines.get(timeout=WAIT_S):
            pass


def test_console_of_a_killed_broker_ends_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with run(monkeypatch, "start", "--data", str(tmp_path / "data"), "-l", "127.0.0.1:0", "--serve") as (broker, lines):
        url_in(lines)
        broker.kill()
        while lines.get(timeout=WAIT_S):
            pass


def test_console_of_a_cluster_shows_all_its_brokers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reserved = PortRange()
    ports = reserved.draw(2)
    reserved.release()
    arguments = ["up", "-n", "2", "--port", str(ports.start), "--data", str(tmp_path / "data")]
    arguments += ["-c", "moldau.metrics.listener=", "--serve"]
    with run(monkeypatch, *arguments) as (cluster, lines):
        assert len(overview(url_in(lines))["brokers"]) == 2
        cluster.send_signal(signal.SIGTERM)
        assert cluster.wait(WAIT_S) == 0


def test_secured_listener_needs_a_console_of_its_own(tmp_path: Path) -> None:
    keystore = tmp_path / "node.pem"
    write_private(keystore, Authority.create().issue("node", LOCAL_HOSTS))
    settings = {
        "listeners": "SSL://127.0.0.1:0",
        "inter.broker.listener.name": "SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(keystore),
    }
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    secured = ("start", "--data", str(tmp_path / "data"), *options)
    done = subprocess.run([*COMMAND, *secured, "--serve"], capture_output=True, text=True, check=False, timeout=WAIT_S)
    assert (done.returncode, "--serve has no credentials" in done.stderr) == (2, True), done.stderr


def test_secured_cluster_needs_a_console_of_its_own(tmp_path: Path) -> None:
    secured = ("up", "--secure", "--data", str(tmp_path / "data"))
    done = subprocess.run([*COMMAND, *secured, "--serve"], capture_output=True, text=True, check=False, timeout=WAIT_S)
    assert (done.returncode, "--serve has no credentials" in done.stderr) == (2, True), done.stderr

"""`moldau serve` as a process: addresses, health pages, shutdown, errors."""

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from moldau.testing import Broker

COMMAND = (sys.executable, "-P", "-m", "moldau.cli.main", "serve")
FREE_PORTS = ("--listen", "127.0.0.1:0", "--registry-listen", "127.0.0.1:0")
URLS_AFTER_LINE = "serves the cluster"


@contextmanager
def served(bootstrap: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """Yield the process and the URLs that it prints."""
    command = [*COMMAND, "-b", bootstrap, *FREE_PORTS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert URLS_AFTER_LINE in process.stdout.readline()
            lines = [process.stdout.readline().split() for _ in range(2)]
            yield process, dict(lines)
        finally:
            process.terminate()


def get(url: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_health_pages_name_the_cluster_or_the_reason_and_sigterm_stops() -> None:
    with Broker() as broker, served(broker.bootstrap_servers) as (process, urls):
        assert list(urls) == ["console", "registry"]
        for url in urls.values():
            status, health = get(f"{url}/health")
            assert (status, health["status"], health["brokers"]) == (200, "ok", 1)
        broker.close()
        for url in urls.values():
            status, health = get(f"{url}/health")
            assert (status, health["status"]) == (503, "unavailable")
            assert health["reason"]
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=20)
        assert process.returncode == 0
        assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--listen", "8080"], "--listen 8080: write it as HOST:PORT"),
        (["--registry-listen", "127.0.0.1:70000"], "--registry-listen: 127.0.0.1:70000 has an invalid port"),
    ],
)
def test_invalid_address_is_a_usage_error(arguments: list[str], message: str) -> None:
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert message in done.stderr


def test_address_in_use_is_reported_with_the_address() -> None:
    with Broker() as broker:
        used = broker.bootstrap_servers
        done = subprocess.run(
            [*COMMAND, "-b", used, *FREE_PORTS, "--listen", used], capture_output=True, text=True, check=False
        )
    assert done.returncode == 1
    assert f"cannot listen on {used}" in done.stderr
    assert "Traceback" not in done.stderr


def test_missing_extra_is_named() -> None:
    hide = "import sys; sys.modules['uvicorn'] = None; from moldau.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-P", "-c", hide, "serve"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "moldau serve needs the extra moldau[serve]" in done.stderr

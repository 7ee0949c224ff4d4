"""franz-go's client of the schema registry, with a login, against ours."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from moldau.testing import Broker

TOUR = Path(__file__).parent / "bin/tour"


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(security="scram") as running:
        yield running


@pytest.fixture
def registry_url(broker: Broker) -> Iterator[str]:
    ready, announce = os.pipe()
    settings = [part for item in broker.client_settings.items() for part in ("-X", "=".join(item))]
    addresses = ("--listen", "127.0.0.1:0", "--registry-listen", "127.0.0.1:0", "--announce-fd", str(announce))
    command = [sys.executable, "-P", "-m", "moldau.cli.main", "serve", "-b", broker.bootstrap_servers]
    with subprocess.Popen(
        [*command, *addresses, "--registry-login", *settings], pass_fds=[announce], stdout=subprocess.DEVNULL
    ) as process:
        os.close(announce)
        try:
            with os.fdopen(ready) as lines:
                yield json.loads(lines.readline())["registry"]
        finally:
            process.terminate()


def test_franz_go_registers_compares_and_deletes(broker: Broker, registry_url: str) -> None:
    user = broker.librdkafka_settings
    command = [str(TOUR), registry_url, user["sasl.username"], user["sasl.password"]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "types": 3,
        "version": 1,
        "latest": 2,
        "is_same_id": True,
        "compatible": False,
        "rejected": 409,
        "versions": [1, 2],
        "usages": 1,
        "decoded": 7,
        "deleted": [1, 2],
    }


def test_wrong_password_is_an_error(broker: Broker, registry_url: str) -> None:
    command = [str(TOUR), registry_url, broker.librdkafka_settings["sasl.username"], "wrong"]
    failed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert failed.returncode == 1
    assert "Unauthorized" in failed.stderr

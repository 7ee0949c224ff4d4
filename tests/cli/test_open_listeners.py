"""A broker that lets the network in without authentication says so at its start and in `moldau cluster health`."""

import json

import pytest
from typer.testing import CliRunner

from moldau.cli.main import app
from moldau.testing import Broker

pytestmark = pytest.mark.proves("O4", part="safe by default")

WARNING = "may read, write and delete everything: no authentication is required there"


def health(broker: Broker, *options: str) -> tuple[str, str]:
    servers = f"localhost:{broker.bootstrap_servers.rpartition(':')[2]}"
    result = CliRunner().invoke(app, ["cluster", "health", "-b", servers, *options])
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


def test_broker_on_all_interfaces_warns_once_at_start_and_in_health() -> None:
    with Broker(listen="0.0.0.0:0") as broker:
        assert broker.log.count(WARNING) == 1
        assert "warning: Anyone who can reach PLAINTEXT://0.0.0.0:0 " in broker.log
        stdout, stderr = health(broker)
        assert "\nhealthy\n" in stdout
        assert stderr.count(WARNING) == 1
        assert "of broker 1" in stderr
        (advice,) = json.loads(health(broker, "--json")[0])["advice"]
        assert WARNING in advice


def test_broker_on_loopback_does_not_warn() -> None:
    with Broker() as broker:
        assert "authentication" not in broker.log
        assert WARNING not in "".join(health(broker))

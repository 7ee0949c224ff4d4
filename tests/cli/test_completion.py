"""Shell completion: names of topics and groups come from the cluster, and an unreachable cluster is no error."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from moldau.cli import completion
from moldau.cli.cluster_client import connect
from moldau.client.types import NewTopic
from moldau.testing.broker import Broker
from moldau.testing.free_ports import free_ports


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(offsets_topic_num_partitions=1) as broker, connect(broker.bootstrap_servers) as client:
        client.create_topics([NewTopic(name) for name in ("orders", "orders.eu", "clicks")])
        yield broker


def complete(line: str, servers: str | None = None) -> list[str]:
    """Return the completions of the last word of a line."""
    environment = {**os.environ, "_MOLDAU_COMPLETE": "complete_bash", "COMP_WORDS": line}
    environment |= {"COMP_CWORD": str(len(line.split(" ")) - 1)}
    environment[completion.TIMEOUT_VARIABLE] = "30"
    if servers is not None:
        environment["MOLDAU_BOOTSTRAP_SERVERS"] = servers
    done = subprocess.run(
        [sys.executable, "-m", "moldau"], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("moldau topic describe or", ["orders", "orders.eu"]),
        ("moldau topic delete clicks ", ["clicks", "orders", "orders.eu"]),
        ("moldau consume cl", ["clicks"]),
        ("moldau produce x", []),
        ("moldau group reset-offsets g --topic orders.", ["orders.eu"]),
        ("moldau topic create or", []),
    ],
)
def test_topics_are_completed(broker: Broker, line: str, offered: list[str]) -> None:
    assert complete(line, broker.bootstrap_servers) == offered


def test_completion_uses_the_bootstrap_servers_of_the_line(broker: Broker) -> None:
    assert complete(f"moldau consume -b {broker.bootstrap_servers} cl") == ["clicks"]


def test_completion_offers_nothing_when_no_broker_is_reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert complete("moldau consume cl", f"127.0.0.1:{free_ports(1).start}") == []
    monkeypatch.setattr(completion, "TIMEOUT_S", 0.2)
    began_s = time.monotonic()
    context = type("Context", (), {"params": {"bootstrap_servers": "192.0.2.1:9092"}})()  # no route: connects time out
    assert completion.complete_topics(context, "") == []
    assert time.monotonic() - began_s < 5

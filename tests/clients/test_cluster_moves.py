"""Partitions move to a new broker under a load of librdkafka, throttled; cancelled half-way, and once more.

`make soak-moves PARTITIONS=100` moves a realistic number of partitions.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from test_cluster_faults import SETTINGS, TOPIC, Load
from typer.testing import CliRunner

from moldau.cli.main import app
from moldau.testing import Cluster

MOVED: Final = int(os.environ.get("MOLDAU_PARTITIONS", "12"))
BULK: Final = "bulk"
THROTTLE: Final = 2_000_000
RECORDS: Final = 2_000  # a kilobyte each, in all

pytestmark = [pytest.mark.proves("H8"), pytest.mark.timeout(180 + 6 * MOVED)]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3, settings=SETTINGS) as cluster:
        cluster.create_topic(TOPIC, partitions=3, replication_factor=3, min_insync_replicas=2)
        cluster.create_topic(BULK, partitions=MOVED, replication_factor=2)
        yield cluster


def moldau(cluster: Cluster, *arguments: str, text: str = "", code: int | None = 0) -> str:
    environment = {**os.environ, "MOLDAU_BOOTSTRAP_SERVERS": cluster.bootstrap_servers}
    result = CliRunner().invoke(app, arguments, input=text, env=environment)
    assert code is None or result.exit_code == code, f"{result.output}{result.exception!r}"
    return result.stdout


def holders(cluster: Cluster) -> list[int]:
    """Return the number of replicas of the topic on each broker."""
    (topic,) = json.loads(moldau(cluster, "topic", "describe", BULK, "--json"))
    held: list[Any] = [broker for each in topic["partitions"] for broker in each["replicas"]]
    return [held.count(node) for node in cluster.nodes]


def test_partitions_move_to_a_new_broker_under_load(cluster: Cluster, tmp_path: Path) -> None:
    moldau(cluster, "produce", BULK, text="".join(f"{number} {'.' * 1000}\n" for number in range(RECORDS)))
    plan = str(tmp_path / "plan.json")
    with Load(cluster, tmp_path) as running:
        cluster.add()
        moldau(cluster, "reassign", "generate", "--topic", BULK, "--brokers", "1,2,3,4", "--out", plan)
        moldau(cluster, "reassign", "execute", plan, "--throttle", str(THROTTLE // 100))
        running.wait_for_progress()
        moldau(cluster, "reassign", "cancel", plan)
        assert json.loads(moldau(cluster, "reassign", "list", "--json")) == []
        # Some may be done already, and the metadata of the queried broker may lag.
        cluster.wait_until(lambda: holders(cluster)[3] < MOVED // 2, "the moves are called off")
        running.wait_for_progress()
        moldau(cluster, "reassign", "execute", plan, "--throttle", str(THROTTLE))
        running.wait_for_progress()
        moldau(cluster, "reassign", "verify", plan, "--wait")
        cluster.wait_until(lambda: max(holders(cluster)) - min(holders(cluster)) <= 1, "all hold as much")
        seen = moldau(cluster, "consume", BULK, "--until", "end").splitlines()
        assert sorted(int(line.split()[0]) for line in seen) == list(range(RECORDS))
        moldau(cluster, "broker", "drain", "4")
        cluster.wait_until(lambda: holders(cluster)[3] == 0, "the new broker is empty again")
        running.settle()

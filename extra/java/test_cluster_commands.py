"""The cluster commands against Apache Kafka: their output and effects."""

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from apache_cluster import ApacheCluster
from apache_kafka import has_java
from typer.testing import CliRunner

from moldau.cli.main import app

pytestmark = [pytest.mark.skipif(not has_java, reason="java is not installed"), pytest.mark.timeout(300)]

Moldau = Callable[..., str]
WAIT_S = 60.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheCluster]:
    with ApacheCluster(tmp_path_factory.mktemp("apache") / "nodes") as running:
        yield running


@pytest.fixture(scope="module")
def moldau(cluster: ApacheCluster) -> Moldau:
    environment = {**os.environ, "MOLDAU_BOOTSTRAP_SERVERS": cluster.bootstrap_servers}

    def run(*arguments: str, text: str = "", code: int | None = 0) -> str:
        result = CliRunner().invoke(app, arguments, input=text, env=environment)
        assert code is None or result.exit_code == code, f"{result.output}{result.exception!r}"
        return result.stderr if code and not result.stdout else result.stdout

    return run


@pytest.fixture(scope="module")
def topic(moldau: Moldau) -> str:
    moldau("topic", "create", "orders", "--partitions", "6", "--replication-factor", "2")
    moldau("produce", "orders", text="".join(f"{number} {'.' * 1000}\n" for number in range(20_000)))
    return "orders"


def until(look: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not look():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.2)  # polls other processes


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("localhost", port)) == 0


def health(moldau: Moldau) -> Any:
    return json.loads(moldau("cluster", "health", "--json", code=None))


def brokers(moldau: Moldau) -> dict[int, Any]:
    return {each["id"]: each for each in json.loads(moldau("broker", "list", "--json"))}


def test_cluster_of_kafka_is_healthy(moldau: Moldau, topic: str) -> None:
    shown = health(moldau)
    assert (shown["is_healthy"], shown["problems"], len(shown["brokers"])) == (True, [], 3)
    assert [each["id"] for each in shown["quorum"]["voters"]] == [1, 2, 3]
    assert shown["partitions"] == 6
    assert "healthy" in moldau("cluster", "health").splitlines()
    assert topic == "orders"


def test_killed_broker_is_reported_and_cannot_be_removed(cluster: ApacheCluster, moldau: Moldau, topic: str) -> None:
    cluster.kill(3)
    until(lambda: len(health(moldau)["under_replicated"]) == 4, "partitions lack a replica")
    shown = health(moldau)
    assert [each["id"] for each in shown["brokers"] if each["is_fenced"]] == [3]
    assert "broker 3 is fenced" in moldau("cluster", "health", code=1)
    assert "4 partitions have a replica on broker 3" in moldau("broker", "remove", "3", code=1)
    assert "is running and would register again" in moldau("broker", "remove", "1", code=1)
    cluster.start(3)
    until(lambda: bool(health(moldau)["is_healthy"]), "all is well again")
    assert moldau("partition", "elect-leaders", "--topic", topic)
    assert [each["leaders"] for each in brokers(moldau).values()] == [2, 2, 2]


def test_reassignment_to_a_new_broker_is_executed_and_cancelled(
    cluster: ApacheCluster, moldau: Moldau, topic: str, tmp_path: Path
) -> None:
    cluster.add(4, "broker")
    cluster.wait_for_brokers(4)
    plan, back = str(tmp_path / "plan.json"), str(tmp_path / "back.json")
    moldau("reassign", "generate", "--topic", topic, "--brokers", "1,2,3,4", "--out", plan)
    moldau("reassign", "execute", plan, "--throttle", "50000", "--rollback", back)
    verified = json.loads(moldau("reassign", "verify", plan, "--json", code=1))
    assert {each["state"] for each in verified["partitions"]} == {"moving"}
    assert "are already being reassigned" in moldau("reassign", "execute", plan, code=1)
    throttled = json.loads(moldau("config", "get", "broker", "4", "--json"))
    assert {"follower.replication.throttled.rate", "leader.replication.throttled.rate"} <= {
        each["name"] for each in throttled
    }
    assert "3 moves cancelled" in moldau("reassign", "cancel", plan)
    assert brokers(moldau)[4]["replicas"] == 0
    assert not [
        each for each in json.loads(moldau("config", "get", "broker", "4", "--json")) if "thrott" in each["name"]
    ]
    moldau("reassign", "execute", plan, "--throttle", "50000")
    moldau("reassign", "execute", plan, "--throttle", "50000000", "--additional")
    moldau("reassign", "verify", plan, "--wait")
    assert [each["replicas"] for each in brokers(moldau).values()] == [3, 3, 3, 3]
    assert moldau("config", "get", "topic", topic).count("throttled") == 0


def test_broker_of_kafka_is_drained_and_removed(cluster: ApacheCluster, moldau: Moldau, topic: str) -> None:
    assert "broker 4 is empty" in moldau("broker", "drain", "4")
    assert [each["replicas"] for each in brokers(moldau).values()] == [4, 4, 4, 0]
    cluster.stop(4)
    until(lambda: bool(brokers(moldau)[4]["is_fenced"]), "broker 4 is seen to be gone")
    moldau("broker", "remove", "4")
    assert sorted(brokers(moldau)) == [1, 2, 3]
    assert health(moldau)["is_healthy"]
    assert topic in moldau("topic", "list")


def test_controller_is_added_to_and_removed_from_the_voters(cluster: ApacheCluster, moldau: Moldau) -> None:
    assert "start it before you add it" in moldau("quorum", "add-controller", "5", "--listener", "h:1", code=1)
    cluster.add(5, "controller")

    def described() -> Any:
        return json.loads(moldau("quorum", "describe", "--json"))

    def observers() -> list[int]:
        return [each["id"] for each in described()["observers"]]

    def has_vote() -> bool:
        """Try to add the voter. Kafka rejects a controller that lags at this moment."""
        moldau("quorum", "add-controller", "5", "--listener", where, code=None)
        return 5 in [each["id"] for each in described()["voters"]]

    until(lambda: 5 in observers(), "the controller follows the quorum")
    until(lambda: listens(cluster.controller_port(5)), "the controller can be reached")
    where = f"localhost:{cluster.controller_port(5)}"
    until(has_vote, "the controller gets its vote")
    voters = described()["voters"]
    assert [each["id"] for each in voters] == [1, 2, 3, 5]
    assert voters[-1]["listeners"] == [f"CONTROLLER://{where}"]
    moldau("quorum", "remove-controller", "5")
    assert "LISTENERS" in moldau("quorum", "describe").upper()
    assert 5 in observers()

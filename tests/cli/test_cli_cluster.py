"""The cluster commands against a cluster."""

import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from moldau.cli import groups, partial_results, transactions
from moldau.cli.main import app
from moldau.testing import Cluster

pytestmark = [pytest.mark.proves("A4", part="reassignment"), pytest.mark.proves("H8")]

Moldau = Callable[..., str]
TOPIC = "orders"
PARTITIONS = 6


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3, auto_leader_rebalance_enable=False) as running:
        running.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=2)
        yield running


@pytest.fixture(scope="module")
def moldau(cluster: Cluster) -> Moldau:
    environment = {**os.environ, "MOLDAU_BOOTSTRAP_SERVERS": cluster.bootstrap_servers}

    def run(*arguments: str, text: str = "", code: int | None = 0) -> str:
        result = CliRunner().invoke(app, arguments, input=text, env=environment)
        assert code is None or result.exit_code == code, f"{result.output}{result.exception!r}"
        return result.stderr if code and not result.stdout else result.stdout

    return run


@pytest.fixture(scope="module", autouse=True)
def records(moldau: Moldau) -> str:
    """Equal records in each partition, in small batches, so that a throttled move takes long enough to be observed."""
    texts = [
        "".join(f"{partition}-{number} {'.' * 1000}\n" for number in range(500)) for partition in range(PARTITIONS)
    ]
    for partition, text in enumerate(texts):
        moldau("produce", TOPIC, "--partition", str(partition), "--batch-bytes", "16384", text=text)
    return "".join(texts)


def health(moldau: Moldau) -> Any:
    return json.loads(moldau("cluster", "health", "--json", code=None))


def fenced(moldau: Moldau) -> list[int]:
    """Return the fenced nodes. The queried broker may not know of a failure yet, so the command may fail."""
    nodes = json.loads(moldau("cluster", "info", "--json", code=None))["nodes"]
    return [each["id"] for each in nodes if each["is_fenced"]]


def brokers(moldau: Moldau) -> dict[int, Any]:
    return {each["id"]: each for each in json.loads(moldau("broker", "list", "--json"))}


def replicas(moldau: Moldau) -> list[int]:
    """Return the number of replicas of the topic by broker id."""
    described = json.loads(moldau("topic", "describe", TOPIC, "--json"))
    held = [broker for each in described[0]["partitions"] for broker in each["replicas"]]
    return [held.count(broker) for broker in sorted(brokers(moldau))]


def are_led_by_the_first(moldau: Moldau, topic: str) -> bool:
    described = json.loads(moldau("topic", "describe", topic, "--json"))
    return all(each["leader"] == each["replicas"][0] for each in described[0]["partitions"])


def test_complete_cluster_is_healthy(cluster: Cluster, moldau: Moldau) -> None:
    cluster.wait_until_in_sync()
    shown = health(moldau)
    assert (shown["is_healthy"], shown["problems"]) == (True, [])
    assert [each["id"] for each in shown["brokers"]] == [1, 2, 3]
    assert [each["id"] for each in shown["quorum"]["voters"]] == [1, 2, 3]
    assert shown["quorum"]["leader"] == cluster.controller_id
    assert "healthy" in moldau("cluster", "health").splitlines()


@pytest.mark.proves("A4", part="cluster state")
def test_cluster_info_shows_nodes_features_and_counts(cluster: Cluster, moldau: Moldau) -> None:
    shown = json.loads(moldau("cluster", "info", "--json"))
    assert shown["controller"] == cluster.controller_id
    assert [each["id"] for each in shown["nodes"]] == [1, 2, 3]
    for each in shown["nodes"]:
        assert each["roles"] == ["broker", "controller"]
        assert (each["release"], each["is_fenced"]) == ("4.3", False)
    assert (shown["topics"], shown["partitions"], shown["replicas"]) == (1, PARTITIONS, 2 * PARTITIONS)
    assert {each["name"] for each in shown["features"]} > {"metadata.version", "group.version"}
    lines = moldau("cluster", "info").splitlines()
    assert lines[0] == f"cluster     {shown['cluster_id']}"
    assert [line.split()[-2:] for line in lines if "registered" in line] == [["broker,controller", "4.3"]] * 3


def test_quorum_describe_shows_the_leader(cluster: Cluster, moldau: Moldau) -> None:
    text = moldau("quorum", "describe")
    assert text.startswith(f"leader {cluster.controller_id}  epoch ")
    assert text.count("voter") == 2


def test_killed_broker_is_unhealthy_and_cannot_be_removed(cluster: Cluster, moldau: Moldau) -> None:
    cluster.kill(3)
    cluster.wait_until(lambda: len(health(moldau)["under_replicated"]) == 4, "partitions that lack a replica")
    shown = health(moldau)
    assert [each["id"] for each in shown["brokers"] if each["is_fenced"]] == [3]
    cluster.wait_until(lambda: fenced(moldau) == [3], "every broker knows that broker 3 is fenced")
    assert "broker 3 is fenced: start it, or move its replicas" in moldau("cluster", "health", code=1)
    assert "partitions have a replica on broker 3" in moldau("broker", "remove", "3", code=1)
    assert "is running and would register again" in moldau("broker", "remove", "1", code=1)
    assert "there is no broker 9" in moldau("broker", "remove", "9", code=1)
    cluster.start(3)
    cluster.wait_until(lambda: bool(health(moldau)["is_healthy"]), "all is well again")


def test_quorum_changes_reject_unknown_controllers(moldau: Moldau) -> None:
    assert "node 9 does not follow the quorum" in moldau(
        "quorum", "add-controller", "9", "--listener", "localhost:1", code=1
    )
    assert "is a voter already" in moldau("quorum", "add-controller", "2", "--listener", "localhost:1", code=1)
    assert "the voters are 1, 2, 3" in moldau("quorum", "remove-controller", "9", code=1)


def test_elect_leaders_elects_preferred_replicas(cluster: Cluster, moldau: Moldau) -> None:
    cluster.restart(2)
    cluster.wait_until_in_sync()
    assert brokers(moldau)[2]["leaders"] < brokers(moldau)[2]["preferred"]
    outcomes = json.loads(moldau("partition", "elect-leaders", "--topic", TOPIC, "--json"))
    assert {each["outcome"] for each in outcomes} == {"elected", "not needed"}
    # The queried broker may apply the metadata a moment later.
    cluster.wait_until(lambda: brokers(moldau)[2]["leaders"] >= 2, "broker 2 leads again")
    assert moldau("partition", "elect-leaders", "--all") == ""


def test_elect_leaders_rejects_unknown_partitions(moldau: Moldau, tmp_path: Path) -> None:
    shown = moldau("partition", "elect-leaders", "--topic", f"{TOPIC}:{PARTITIONS}", code=1)
    assert shown == f"error: topic {TOPIC} has no partition {PARTITIONS}; its last is {PARTITIONS - 1}\n"
    empty = tmp_path / "empty.json"
    empty.write_text('{"partitions": []}')
    assert "contains no partitions" in moldau("partition", "elect-leaders", "--file", str(empty), code=2)


def test_reassign_moves_nothing_if_rollback_cannot_be_saved(moldau: Moldau, tmp_path: Path) -> None:
    def first() -> list[int]:
        return list(json.loads(moldau("topic", "describe", TOPIC, "--json"))[0]["partitions"][0]["replicas"])

    before, plan = first(), tmp_path / "turned.json"
    plan.write_text(json.dumps({"partitions": [{"topic": TOPIC, "partition": 0, "replicas": before[::-1]}]}))
    shown = moldau("reassign", "execute", str(plan), "--rollback", str(tmp_path / "nowhere" / "back.json"), code=1)
    assert "nowhere/back.json: no such file or directory" in shown
    assert not json.loads(moldau("reassign", "verify", str(plan), "--json", code=1))["is_done"]
    assert first() == before


@pytest.mark.timeout(240)
def test_reassign_changes_the_replication_factor(cluster: Cluster, moldau: Moldau, tmp_path: Path) -> None:
    cluster.create_topic("thin", partitions=3, replication_factor=1)
    moldau("produce", "thin", text="".join(f"{number}\n" for number in range(100)))
    plan = str(tmp_path / "plan.json")

    def has(copies: int) -> bool:
        described = json.loads(moldau("topic", "describe", "thin", "--json"))
        return all(len(each["isr"]) == len(each["replicas"]) == copies for each in described[0]["partitions"])

    assert "replicas require" in moldau(
        "reassign", "generate", "-t", "thin", "--brokers", "1,2", "-r", "3", "-o", plan, code=1
    )
    for count in (3, 2):
        moldau("reassign", "generate", "-t", "thin", "--brokers", "1,2,3", "-r", str(count), "-o", plan)
        moldau("reassign", "execute", plan)
        moldau("reassign", "verify", plan, "--wait")
        cluster.wait_until(partial(has, count), f"{count} copies")
    shown = moldau("consume", "thin", "--until", "end").splitlines()
    assert sorted(shown, key=int) == [str(number) for number in range(100)]
    moldau("topic", "delete", "thin", "--yes")


@pytest.mark.timeout(240)
def test_reassign_is_executed_cancelled_and_executed_again(
    cluster: Cluster, moldau: Moldau, tmp_path: Path, records: str
) -> None:
    assert cluster.add() == (4,)
    plan, back = str(tmp_path / "plan.json"), str(tmp_path / "back.json")
    moldau("reassign", "generate", "--topic", TOPIC, "--brokers", "1,2,3,4", "--out", plan)
    moldau("reassign", "execute", plan, "--throttle", "20000", "--rollback", back)
    verified = json.loads(moldau("reassign", "verify", plan, "--json", code=1))
    assert {each["state"] for each in verified["partitions"]} == {"moving"}
    assert "are already being reassigned" in moldau("reassign", "execute", plan, code=1)
    assert len(json.loads(moldau("reassign", "list", "--json"))) == 3
    assert "3 moves cancelled" in moldau("reassign", "cancel", plan)
    cluster.wait_until(lambda: replicas(moldau) == [4, 4, 4, 0], "they are where they were")
    assert "throttled" not in moldau("config", "get", "broker", "4")
    moldau("reassign", "execute", plan, "--throttle", "20000")
    moldau("reassign", "execute", plan, "--throttle", "50000000", "--additional")
    moldau("reassign", "verify", plan, "--wait")
    cluster.wait_until(lambda: replicas(moldau) == [3, 3, 3, 3], "they are where the plan wants them")
    assert "throttled" not in moldau("config", "get", "topic", TOPIC)
    assert sorted(moldau("consume", TOPIC, "--until", "end").splitlines()) == sorted(records.splitlines())


@pytest.mark.timeout(240)
def test_broker_is_drained_stopped_and_removed(cluster: Cluster, moldau: Moldau, records: str) -> None:
    if 4 not in cluster.nodes:
        cluster.add()
    moldau("topic", "create", "even", "--partitions", "8", "--replication-factor", "2")
    assert "broker 4 is empty" in moldau("broker", "drain", "4", "--throttle", "50000000")
    cluster.wait_until(lambda: are_led_by_the_first(moldau, "even"), "preferred replicas lead")
    moldau("topic", "delete", "even")
    cluster.wait_until(lambda: replicas(moldau) == [4, 4, 4, 0], "it holds nothing")
    assert [each["is_drained"] for each in brokers(moldau).values()] == [False, False, False, True]
    moldau("topic", "create", "later", "--partitions", "8", "--replication-factor", "1")
    assert brokers(moldau)[4]["replicas"] == 0  # new partitions go elsewhere
    assert "accepts new partitions again" in moldau("broker", "drain", "4", "--undo")
    assert not brokers(moldau)[4]["is_drained"]
    moldau("topic", "delete", "later")
    assert "broker 4 is empty" in moldau("broker", "drain", "4")
    cluster.stop(4)
    moldau("broker", "remove", "4")
    cluster.wait_until(lambda: sorted(brokers(moldau)) == [1, 2, 3], "broker 4 is unregistered")
    cluster.wait_until(lambda: bool(health(moldau)["is_healthy"]), "all is well")
    assert sorted(moldau("consume", TOPIC, "--until", "end").splitlines()) == sorted(records.splitlines())


@pytest.mark.timeout(240)
def test_dead_broker_is_drained_with_a_throttle(cluster: Cluster, moldau: Moldau, tmp_path: Path) -> None:
    (dead,) = cluster.add()
    plan = tmp_path / "plan.json"
    for topic, replicas in {"left": [dead, 1], "lost": [dead]}.items():
        cluster.create_topic(topic, partitions=1, replication_factor=len(replicas))
        plan.write_text(json.dumps({"partitions": [{"topic": topic, "partition": 0, "replicas": replicas}]}))
        moldau("reassign", "execute", str(plan))
        moldau("reassign", "verify", str(plan), "--wait")
    cluster.wait_until_in_sync()
    cluster.kill(dead)
    cluster.wait_until(lambda: bool(brokers(moldau)[dead]["is_fenced"]), "it is known to be dead")
    assert "lost-0 cannot be copied without a leader" in moldau("broker", "drain", str(dead), code=1)
    moldau("topic", "delete", "lost")
    assert f"broker {dead} is empty" in moldau("broker", "drain", str(dead), "--throttle", "50000000")
    assert f"broker {dead} is empty" in moldau("broker", "drain", str(dead))  # there is nothing left to do
    assert "throttled" not in moldau("config", "get", "broker", "1")
    assert json.loads(moldau("broker", "remove", str(dead), "--json")) == {"broker": dead, "is_forgotten": True}
    moldau("topic", "delete", "left")
    cluster.wait_until(lambda: bool(health(moldau)["is_healthy"]), "all is well again")


@pytest.mark.timeout(240)
def test_broker_removed_too_early_is_still_drained(cluster: Cluster, moldau: Moldau, tmp_path: Path) -> None:
    (dead,) = cluster.add()
    cluster.create_topic("held", partitions=1, replication_factor=2)
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"partitions": [{"topic": "held", "partition": 0, "replicas": [1, dead]}]}))
    moldau("reassign", "execute", str(plan))
    moldau("reassign", "verify", str(plan), "--wait")
    cluster.kill(dead)
    cluster.wait_until(lambda: bool(brokers(moldau)[dead]["is_fenced"]), "it is known to be dead")
    moldau("broker", "remove", str(dead), "--force")
    where = {"MOLDAU_BOOTSTRAP_SERVERS": cluster.bootstrap_servers}
    shown = CliRunner().invoke(app, ["broker", "drain", str(dead)], env=where)
    assert f"broker {dead} is empty" in shown.stdout
    assert "may still be placed" not in shown.stderr
    moldau("topic", "delete", "held")
    cluster.wait_until(lambda: bool(health(moldau)["is_healthy"]), "all is well again")


def test_invalid_plans_are_rejected(moldau: Moldau, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text('{"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": [1, 9]}]}')
    assert "unavailable brokers: 9" in moldau("reassign", "execute", str(plan), code=1)
    plan.write_text('{"version": 1, "partitions": [{"topic": "orders", "partition": 99, "replicas": [1]}]}')
    assert "unknown partitions: orders-99" in moldau("reassign", "execute", str(plan), code=1)
    plan.write_text("{")
    assert "not JSON" in moldau("reassign", "verify", str(plan), code=2)
    assert "select partitions" in moldau("partition", "elect-leaders", code=2)
    assert "write ids such as" in moldau("reassign", "generate", "--brokers", "one", code=2)
    assert "not running: broker 9" in moldau("reassign", "generate", "--brokers", "9", code=1)


def test_rejected_throttle_changes_nothing_and_saves_the_rollback(moldau: Moldau, tmp_path: Path) -> None:
    described = json.loads(moldau("topic", "describe", TOPIC, "--json"))[0]["partitions"][0]["replicas"]
    plan, back = tmp_path / "turned.json", tmp_path / "back.json"
    plan.write_text(json.dumps({"partitions": [{"topic": TOPIC, "partition": 0, "replicas": described[::-1]}]}))
    shown = moldau("reassign", "execute", str(plan), "--throttle", str(2**63), "--rollback", str(back), code=1)
    assert "must fit in 64 bits" in shown
    assert json.loads(back.read_text())["partitions"][0]["replicas"] == described
    assert "throttled" not in moldau("config", "get", "topic", TOPIC)


def test_plan_is_done_when_one_of_its_topics_was_deleted(cluster: Cluster, moldau: Moldau, tmp_path: Path) -> None:
    rows = []
    for topic in ("kept", "dropped"):
        cluster.create_topic(topic, partitions=1, replication_factor=1)
        (held,) = json.loads(moldau("topic", "describe", topic, "--json"))[0]["partitions"][0]["replicas"]
        rows.append({"topic": topic, "partition": 0, "replicas": [held % 3 + 1]})
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"partitions": rows}))
    moldau("reassign", "execute", str(plan), "--throttle", "1000000")
    moldau("topic", "delete", "dropped")
    moldau("reassign", "verify", str(plan), "--wait", "--preserve-throttles")
    assert "throttled" in moldau("config", "get", "topic", "kept")
    shown = json.loads(moldau("reassign", "verify", str(plan), "--json"))
    assert shown["is_done"]
    assert [each["state"] for each in shown["partitions"]] == ["gone", "done"]
    assert "topic kept" in shown["unthrottled"]
    assert "throttled" not in moldau("config", "get", "topic", "kept")
    moldau("topic", "delete", "kept")


def test_minority_reports_no_active_controller(
    cluster: Cluster, moldau: Moldau, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = cluster.running[0]
    cluster.kill(*(node for node in cluster.running if node != last))
    shown = health(moldau)
    while shown["quorum"] is not None:  # until the last broker has lost the quorum
        shown = health(moldau)
    assert shown["problems"][0].startswith("no active controller")
    assert [each["id"] for each in shown["brokers"] if each["is_reachable"]] == [last]
    assert moldau("broker", "list").count("unreachable") == 2
    monkeypatch.setattr(partial_results, "OFFSETS_WAIT_S", 2.0)
    (described,) = json.loads(moldau("topic", "describe", TOPIC, "--json"))
    led_here = [each["leader"] == last for each in described["partitions"]]
    assert [each["end_offset"] is not None for each in described["partitions"]] == led_here
    assert not all(led_here)
    silent = ", ".join(str(node) for node in (1, 2, 3) if node != last)
    for module, command, what in ((groups, "group", "groups"), (transactions, "txn", "transactional ids")):
        monkeypatch.setattr(module, "RESPONSES_WAIT_MS", 2_000)
        result = CliRunner().invoke(app, [command, "list", "-b", cluster.bootstrap_servers])
        assert result.exit_code == 1
        assert f"no response from brokers {silent}: their {what} are not shown" in result.stderr
    cluster.start(*(node for node in (1, 2, 3) if node != last))
    cluster.wait_until(lambda: bool(health(moldau)["is_healthy"]), "all is well again")

"""How the cluster fixture treats its processes, tried on stand-ins that keep the agreement about pipes and no more."""

import os
import random
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from moldau.testing import Cluster
from moldau.testing.broker import Broker, BrokerFailed
from moldau.testing.free_ports import PortsInARow

STAND_IN = """
import json, os, select, signal, sys
arguments = sys.argv[2:]
options = {name: value for name, value in zip(arguments, arguments[1:]) if name.startswith("--")}
settings = dict(text.split("=", 1) for name, text in zip(arguments, arguments[1:]) if name == "-c")
print("started with", *arguments, flush=True)
woken, wake = os.pipe()
os.set_blocking(wake, False)
signal.set_wakeup_fd(wake)
signal.signal(signal.SIGTERM, lambda *_: None)
address = settings["listeners"].split(",")[0].removeprefix("PLAINTEXT://")
with os.fdopen(int(options["--announce-fd"]), "w") as announce:
    announce.write(json.dumps({"bootstrap_servers": address, "metrics": None}) + "\\n")
select.select([woken, int(options["--lifeline-fd"])], [], [])
print("stopping", flush=True)
"""


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> type[Broker]:
    program = tmp_path_factory.mktemp("program") / "stand_in.py"
    program.write_text(STAND_IN)

    class StandIn(Broker):
        command = (sys.executable, str(program))

    return StandIn


@pytest.fixture
def cluster(stand_in: type[Broker]) -> Iterator[Cluster]:
    with _of(stand_in)(brokers=4, log_segment_bytes=1024) as cluster:
        yield cluster


def _of(stand_in: type[Broker]) -> type[Cluster]:
    class Standing(Cluster):
        broker_class = stand_in

    return Standing


def running(cluster: Cluster) -> list[int]:
    return list(cluster.running)


def test_every_node_has_its_own_folder_ports_and_id(cluster: Cluster) -> None:
    assert cluster.nodes == cluster.running == (1, 2, 3, 4)
    servers = cluster.bootstrap_servers.split(",")
    assert [cluster[node].bootstrap_servers for node in cluster.nodes] == servers
    assert len(set(servers)) == len({cluster[node].data for node in cluster.nodes}) == 4
    assert [f"-c node.id={node} " in cluster[node].log for node in cluster.nodes] == [True] * 4


def test_the_first_three_nodes_are_controllers_and_all_know_them(cluster: Cluster) -> None:
    roles = [cluster[node].settings["process.roles"] for node in cluster.nodes]
    assert roles == ["broker,controller", "broker,controller", "broker,controller", "broker"]
    (controllers,) = {cluster[node].settings["controller.quorum.bootstrap.servers"] for node in cluster.nodes}
    assert [int(each.split(":")[1]) for each in str(controllers).split(",")] == [
        each.port for each in cluster.layout.state.controllers
    ]


def test_settings_reach_all_nodes_by_kafkas_names(cluster: Cluster) -> None:
    assert all("-c log.segment.bytes=1024" in cluster[node].log for node in cluster.nodes)


def test_nodes_are_killed_and_started_again_each_by_itself(cluster: Cluster) -> None:
    before = [cluster[node].pid for node in (1, 3, 4)]
    cluster.kill(2)
    assert running(cluster) == [1, 3, 4]
    assert "stopping" not in cluster[2].log
    cluster.start()
    assert running(cluster) == [1, 2, 3, 4]
    assert [cluster[node].pid for node in (1, 3, 4)] == before


def test_nodes_are_stopped_politely(cluster: Cluster) -> None:
    cluster.stop(1, 4)
    assert running(cluster) == [2, 3]
    assert cluster[1].log.count("stopping") == cluster[4].log.count("stopping") == 1
    cluster.stop()
    assert running(cluster) == []


@pytest.mark.parametrize("is_noticed", [True, False], ids=["dead for long", "just now"])
def test_a_node_that_the_test_itself_has_killed_is_started_again(cluster: Cluster, is_noticed: bool) -> None:
    killed = cluster[2].pid
    os.kill(killed, signal.SIGKILL)
    if is_noticed:
        os.waitid(os.P_PID, killed, os.WEXITED | os.WNOWAIT)
    cluster.restart(2)
    assert running(cluster) == [1, 2, 3, 4]
    assert cluster[2].pid != killed
    os.kill(cluster[2].pid, signal.SIGKILL)
    assert cluster[2].restart().is_running


def test_a_node_that_crashed_by_itself_is_not_started_again_as_if_nothing_had_been(cluster: Cluster) -> None:
    os.kill(cluster[2].pid, signal.SIGSEGV)
    with pytest.raises(BrokerFailed, match="ended with code -11"):
        cluster.restart(2)


@pytest.mark.parametrize("count", [0, -1])
def test_a_cluster_of_no_brokers_is_refused(stand_in: type[Broker], temporary: Path, count: int) -> None:
    with pytest.raises(ValueError, match="at least one"):
        _of(stand_in)(brokers=count)
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("count", [0, -1])
def test_no_brokers_cannot_be_added(cluster: Cluster, count: int) -> None:
    cluster.kill(2)
    with pytest.raises(ValueError, match="at least one"):
        cluster.add(count)
    assert running(cluster) == [1, 3, 4]


def test_paused_nodes_go_on_when_they_are_resumed(cluster: Cluster) -> None:
    cluster.pause(1, 2)
    cluster.resume(2)
    cluster.resume()
    cluster.pause(3)
    cluster.stop(3)
    assert "stopping" in cluster[3].log


def test_what_befell_a_node_by_itself_is_healed_too(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "wait_until_in_sync", lambda: None)  # stand-ins hold no replicas
    cluster[2].pause()
    cluster.pause(3)
    cluster[3].kill()
    cluster.heal()
    assert running(cluster) == [1, 2, 3, 4]
    assert not any(cluster[node].is_paused for node in cluster.nodes)
    cluster.stop(2)  # in time: it is no longer frozen
    assert "stopping" in cluster[2].log


def test_a_broker_is_added_beside_the_others_and_does_not_vote(cluster: Cluster) -> None:
    servers = cluster.bootstrap_servers
    assert cluster.add() == (5,)
    assert cluster.bootstrap_servers.startswith(servers)
    assert cluster[5].settings["process.roles"] == "broker"
    assert len({cluster[node].data.joinpath("meta.properties").read_text().split()[1] for node in cluster.nodes}) == 1


def test_the_same_folder_is_the_same_cluster_another_time(stand_in: type[Broker], tmp_path: Path) -> None:
    with _of(stand_in)(data=tmp_path / "kept") as first:
        told = first.layout.state
    with _of(stand_in)(data=tmp_path / "kept") as second:
        assert second.layout.state.cluster_id == told.cluster_id
        assert second.layout.state.controllers == told.controllers
    assert (tmp_path / "kept" / "node-3" / "meta.properties").exists()


def test_temporary_folders_go_with_the_cluster(stand_in: type[Broker]) -> None:
    with _of(stand_in)(brokers=1) as cluster:
        assert cluster.data.exists()
    assert not cluster.data.parent.exists()


def test_what_never_comes_is_given_up_with_the_nodes_last_words(cluster: Cluster) -> None:
    with pytest.raises(BrokerFailed, match=r"(?s)Not within 0\.05 s: a miracle.*Node 4 said:\nstarted with"):
        cluster.wait_until(lambda: False, "a miracle", 0.05)


def test_a_cluster_that_cannot_start_says_which_node_ended_and_why(tmp_path: Path) -> None:
    program = tmp_path / "stand_in.py"
    waits_for_the_others = "if '-c node.id=1 ' in ' '.join(arguments): select.select([], [], [], 60)\n"
    ends = (  # a moment later than the others have spoken
        "if '-c node.id=3 ' in ' '.join(arguments): select.select([], [], [], 2); sys.exit('the port is taken')\n"
    )
    program.write_text(STAND_IN.replace("woken, wake", f"{waits_for_the_others}{ends}woken, wake", 1))

    class StandIn(Broker):
        command = (sys.executable, str(program))

    started = time.monotonic()
    with pytest.raises(BrokerFailed, match=r"(?s)ended with code 1.*the port is taken") as caught, _of(StandIn)():
        pass
    assert "It was node 3.\nNode 1 said:\nstarted with" in caught.value.__notes__[0]
    assert time.monotonic() - started < 20  # what became of node 1, nobody waits for


def test_a_cluster_that_does_not_start_says_which_node_is_late_and_what_all_said(tmp_path: Path) -> None:
    program = tmp_path / "stand_in.py"
    waits = "if '-c node.id=2 ' in ' '.join(arguments): select.select([], [], [], 60)\n"
    program.write_text(STAND_IN.replace("woken, wake", f"{waits}woken, wake", 1))

    class StandIn(Broker):
        command = (sys.executable, str(program))

    with pytest.raises(BrokerFailed, match="not ready") as caught, _of(StandIn)(ready_s_max=2):
        pass
    assert "It was node 2." in caught.value.__notes__[0]
    assert "Node 3 said:\nstarted with" in caught.value.__notes__[0]


def test_a_failing_test_shows_what_all_nodes_said(stand_in: type[Broker]) -> None:
    with pytest.raises(ValueError, match="of the test") as caught, _of(stand_in)(brokers=2):
        raise ValueError("of the test")
    assert "Node 2 said" in caught.value.__notes__[0]


def test_ports_lie_below_those_of_outgoing_connections(cluster: Cluster) -> None:
    with socket.socket() as outgoing:
        outgoing.bind(("127.0.0.1", 0))
        assert outgoing.getsockname()[1] >= 32_000
    assert all(16_000 <= int(each.split(":")[1]) < 32_000 for each in cluster.bootstrap_servers.split(","))


def test_a_cluster_that_is_yet_to_start_keeps_its_ports_from_others(
    stand_in: type[Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = PortsInARow(), PortsInARow()
    draws = [one.draw(30).start, other.draw(30).start]
    chances = [draws[0], draws[0], draws[1]]
    one.release()
    other.release()
    monkeypatch.setattr(random.SystemRandom, "randrange", lambda *_: chances.pop(0))
    first = _of(stand_in)()
    second = _of(stand_in)()
    assert set(first.bootstrap_servers.split(",")).isdisjoint(second.bootstrap_servers.split(","))
    first.close()
    chances.append(draws[0])
    third = _of(stand_in)()  # what was given back may be drawn again
    assert third.bootstrap_servers == first.bootstrap_servers
    second.close()
    third.close()


def test_a_forked_process_that_leaves_the_block_takes_no_folders_along(stand_in: type[Broker]) -> None:
    with _of(stand_in)(brokers=1) as cluster:
        cluster._owner = 0  # as in a forked process, whose own number is another
        cluster.__exit__(None, None, None)
        assert running(cluster) == [1]
        assert cluster.data.exists()
        cluster._owner = os.getpid()


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made, and nothing else."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_nothing_stays_of_a_cluster_whose_node_died_by_itself(stand_in: type[Broker], temporary: Path) -> None:
    cluster = _of(stand_in)(brokers=3).start()
    assert len(list(temporary.iterdir())) == 4
    os.kill(cluster[1].pid, signal.SIGKILL)
    os.waitid(os.P_PID, cluster[1].pid, os.WEXITED | os.WNOWAIT)  # it is for the fixture to find out
    with pytest.raises(BrokerFailed, match="ended with code -9") as caught:
        cluster.close()
    assert caught.value.__notes__ == ["It was node 1."]
    assert running(cluster) == []
    assert list(temporary.iterdir()) == []


def test_nothing_stays_of_a_cluster_that_cannot_be_laid_out(stand_in: type[Broker], temporary: Path) -> None:
    taken = temporary.parent / "taken"
    taken.write_text("")
    with pytest.raises(OSError, match="taken"):
        _of(stand_in)(data=taken)
    assert list(temporary.iterdir()) == []

"""Process handling of the cluster fixture, tested with stub programs that implement only the two pipes."""

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
from moldau.testing.free_ports import PortRange

STUB_PROGRAM = """
import json, os, select, signal, sys
arguments = sys.argv[2:]
options = {name: value for name, value in zip(arguments, arguments[1:]) if name.startswith("--")}
settings = dict(line.split("=", 1) for line in open(options["--config"]).read().splitlines())
print("started with", *arguments, *(f"{name}={text}" for name, text in settings.items()), flush=True)
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
def stub_broker(tmp_path_factory: pytest.TempPathFactory) -> type[Broker]:
    program = tmp_path_factory.mktemp("program") / "stub_broker.py"
    program.write_text(STUB_PROGRAM)

    class StubBroker(Broker):
        command = (sys.executable, str(program))

    return StubBroker


@pytest.fixture
def cluster(stub_broker: type[Broker]) -> Iterator[Cluster]:
    with _of(stub_broker)(brokers=4, log_segment_bytes=1024) as cluster:
        yield cluster


def _of(stub_broker: type[Broker]) -> type[Cluster]:
    class StubCluster(Cluster):
        broker_class = stub_broker

    return StubCluster


def running(cluster: Cluster) -> list[int]:
    return list(cluster.running)


def test_every_node_has_its_own_directory_ports_and_id(cluster: Cluster) -> None:
    assert cluster.nodes == cluster.running == (1, 2, 3, 4)
    servers = cluster.bootstrap_servers.split(",")
    assert [cluster[node].bootstrap_servers for node in cluster.nodes] == servers
    assert len(set(servers)) == len({cluster[node].data for node in cluster.nodes}) == 4
    assert [f" node.id={node} " in cluster[node].log for node in cluster.nodes] == [True] * 4


def test_first_three_nodes_are_the_controllers_of_all_nodes(cluster: Cluster) -> None:
    roles = [cluster[node].settings["process.roles"] for node in cluster.nodes]
    assert roles == ["broker,controller", "broker,controller", "broker,controller", "broker"]
    (controllers,) = {cluster[node].settings["controller.quorum.bootstrap.servers"] for node in cluster.nodes}
    assert [int(each.split(":")[1]) for each in str(controllers).split(",")] == [
        each.port for each in cluster.layout.state.controllers
    ]


def test_settings_reach_all_nodes_by_kafka_name(cluster: Cluster) -> None:
    assert all(" log.segment.bytes=1024" in cluster[node].log for node in cluster.nodes)


def test_nodes_are_killed_and_started_individually(cluster: Cluster) -> None:
    before = [cluster[node].pid for node in (1, 3, 4)]
    cluster.kill(2)
    assert running(cluster) == [1, 3, 4]
    assert "stopping" not in cluster[2].log
    cluster.start()
    assert running(cluster) == [1, 2, 3, 4]
    assert [cluster[node].pid for node in (1, 3, 4)] == before


def test_stop_shuts_down_nodes_cleanly(cluster: Cluster) -> None:
    cluster.stop(1, 4)
    assert running(cluster) == [2, 3]
    assert cluster[1].log.count("stopping") == cluster[4].log.count("stopping") == 1
    cluster.stop()
    assert running(cluster) == []


@pytest.mark.parametrize("has_exited", [True, False], ids=["exited", "just killed"])
def test_restart_accepts_a_node_killed_by_the_test(cluster: Cluster, has_exited: bool) -> None:
    killed = cluster[2].pid
    os.kill(killed, signal.SIGKILL)
    if has_exited:
        os.waitid(os.P_PID, killed, os.WEXITED | os.WNOWAIT)
    cluster.restart(2)
    assert running(cluster) == [1, 2, 3, 4]
    assert cluster[2].pid != killed
    os.kill(cluster[2].pid, signal.SIGKILL)
    assert cluster[2].restart().is_running


def test_restart_reports_a_node_that_crashed(cluster: Cluster) -> None:
    os.kill(cluster[2].pid, signal.SIGSEGV)
    with pytest.raises(BrokerFailed, match="exited with code -11"):
        cluster.restart(2)


@pytest.mark.parametrize("count", [0, -1])
def test_cluster_without_brokers_is_rejected(stub_broker: type[Broker], temporary: Path, count: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        _of(stub_broker)(brokers=count)
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("count", [0, -1])
def test_add_rejects_a_count_below_one(cluster: Cluster, count: int) -> None:
    cluster.kill(2)
    with pytest.raises(ValueError, match="at least 1"):
        cluster.add(count)
    assert running(cluster) == [1, 3, 4]


def test_paused_nodes_can_be_resumed_and_stopped(cluster: Cluster) -> None:
    cluster.pause(1, 2)
    cluster.resume(2)
    cluster.resume()
    cluster.pause(3)
    cluster.stop(3)
    assert "stopping" in cluster[3].log


def test_heal_covers_nodes_paused_or_killed_directly(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "wait_until_in_sync", lambda: None)  # stubs have no replicas
    cluster[2].pause()
    cluster.pause(3)
    cluster[3].kill()
    cluster.heal()
    assert running(cluster) == [1, 2, 3, 4]
    assert not any(cluster[node].is_paused for node in cluster.nodes)
    cluster.stop(2)  # would time out if it were still paused
    assert "stopping" in cluster[2].log


def test_added_node_is_a_broker_and_not_a_controller(cluster: Cluster) -> None:
    servers = cluster.bootstrap_servers
    assert cluster.add() == (5,)
    assert cluster.bootstrap_servers.startswith(servers)
    assert cluster[5].settings["process.roles"] == "broker"
    assert len({cluster[node].data.joinpath("meta.properties").read_text().split()[1] for node in cluster.nodes}) == 1


def test_cluster_id_and_controllers_persist_in_the_data_directory(stub_broker: type[Broker], tmp_path: Path) -> None:
    with _of(stub_broker)(data=tmp_path / "kept") as first:
        state = first.layout.state
    with _of(stub_broker)(data=tmp_path / "kept") as second:
        assert second.layout.state.cluster_id == state.cluster_id
        assert second.layout.state.controllers == state.controllers
    assert (tmp_path / "kept" / "node-3" / "meta.properties").exists()


def test_close_removes_temporary_directories(stub_broker: type[Broker]) -> None:
    with _of(stub_broker)(brokers=1) as cluster:
        assert cluster.data.exists()
    assert not cluster.data.parent.exists()


def test_wait_until_times_out_with_the_output_of_all_nodes(cluster: Cluster) -> None:
    with pytest.raises(BrokerFailed, match=r"(?s)Timed out after 0\.05 s: never.*Output of node 4:\nstarted with"):
        cluster.wait_until(lambda: False, "never", 0.05)


def test_start_error_names_the_node_that_exited(tmp_path: Path) -> None:
    program = tmp_path / "stub_broker.py"
    waits_for_others = "if settings['node.id'] == '1': select.select([], [], [], 60)\n"
    exits = (  # after the others are ready
        "if settings['node.id'] == '3': select.select([], [], [], 2); sys.exit('the port is taken')\n"
    )
    program.write_text(STUB_PROGRAM.replace("woken, wake", f"{waits_for_others}{exits}woken, wake", 1))

    class StubBroker(Broker):
        command = (sys.executable, str(program))

    started = time.monotonic()
    with pytest.raises(BrokerFailed, match=r"(?s)exited with code 1.*the port is taken") as caught, _of(StubBroker)():
        pass
    assert "Failed node: 3.\nOutput of node 1:\nstarted with" in caught.value.__notes__[0]
    assert time.monotonic() - started < 20  # does not wait for node 1


def test_start_timeout_names_the_late_node_and_shows_all_output(tmp_path: Path) -> None:
    program = tmp_path / "stub_broker.py"
    waits = "if settings['node.id'] == '2': select.select([], [], [], 60)\n"
    program.write_text(STUB_PROGRAM.replace("woken, wake", f"{waits}woken, wake", 1))

    class StubBroker(Broker):
        command = (sys.executable, str(program))

    with pytest.raises(BrokerFailed, match="not ready") as caught, _of(StubBroker)(ready_s_max=2):
        pass
    assert "Failed node: 2." in caught.value.__notes__[0]
    assert "Output of node 3:\nstarted with" in caught.value.__notes__[0]


def test_failing_test_shows_the_output_of_all_nodes(stub_broker: type[Broker]) -> None:
    with pytest.raises(ValueError, match="of the test") as caught, _of(stub_broker)(brokers=2):
        raise ValueError("of the test")
    assert "Output of node 2" in caught.value.__notes__[0]


def test_ports_are_below_the_ephemeral_range(cluster: Cluster) -> None:
    with socket.socket() as outgoing:
        outgoing.bind(("127.0.0.1", 0))
        assert outgoing.getsockname()[1] >= 32_000
    assert all(16_000 <= int(each.split(":")[1]) < 32_000 for each in cluster.bootstrap_servers.split(","))


def test_ports_are_reserved_before_the_cluster_starts(
    stub_broker: type[Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = PortRange(), PortRange()
    draws = [one.draw(30).start, other.draw(30).start]
    starts = [draws[0], draws[0], draws[1]]
    one.release()
    other.release()
    monkeypatch.setattr(random.SystemRandom, "randrange", lambda *_: starts.pop(0))
    first = _of(stub_broker)()
    second = _of(stub_broker)()
    assert set(first.bootstrap_servers.split(",")).isdisjoint(second.bootstrap_servers.split(","))
    first.close()
    starts.append(draws[0])
    third = _of(stub_broker)()  # released ports may be drawn again
    assert third.bootstrap_servers == first.bootstrap_servers
    second.close()
    third.close()


def test_cluster_stays_when_a_forked_child_leaves_the_block(stub_broker: type[Broker]) -> None:
    with _of(stub_broker)(brokers=1) as cluster:
        cluster._owner = 0  # as in a forked child, which has another pid
        cluster.__exit__(None, None, None)
        assert running(cluster) == [1]
        assert cluster.data.exists()
        cluster._owner = os.getpid()


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for temporary files, otherwise empty."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_close_cleans_up_when_a_node_has_died(stub_broker: type[Broker], temporary: Path) -> None:
    cluster = _of(stub_broker)(brokers=3).start()
    assert len(list(temporary.iterdir())) == 4
    os.kill(cluster[1].pid, signal.SIGKILL)
    os.waitid(os.P_PID, cluster[1].pid, os.WEXITED | os.WNOWAIT)  # without reaping it
    with pytest.raises(BrokerFailed, match="exited with code -9") as caught:
        cluster.close()
    assert caught.value.__notes__ == ["Failed node: 1."]
    assert running(cluster) == []
    assert list(temporary.iterdir()) == []


def test_no_temporary_files_stay_when_the_layout_fails(stub_broker: type[Broker], temporary: Path) -> None:
    taken = temporary.parent / "taken"
    taken.write_text("")
    with pytest.raises(OSError, match="taken"):
        _of(stub_broker)(data=taken)
    assert list(temporary.iterdir()) == []

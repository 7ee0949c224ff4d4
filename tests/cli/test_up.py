"""Process handling of `moldau up`, with stub nodes that implement only the two pipes; and the cluster's layout."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from moldau.cli.errors import CommandError
from moldau.cli.local.layout import LocalCluster
from moldau.cli.main import app
from moldau.node.ports.capabilities import Capabilities
from moldau.node.ports.files import SystemDisk
from moldau.storage.log_dir import LogDir
from moldau.testing.free_ports import free_ports

STUB = """
import json, os, select, signal, sys
from pathlib import Path
options = dict(zip(sys.argv[2::2], sys.argv[3::2]))
settings = dict(line.split("=", 1) for line in Path(options["--config"]).read_text().splitlines())
node = settings["node.id"]
print(f"hello from {{node}}", file=sys.stderr, flush=True)
{before}
woken, wake = os.pipe()
os.set_blocking(wake, False)
signal.set_wakeup_fd(wake)
signal.signal(signal.SIGTERM, lambda *_: None)
print(f"pid {{node}} {{os.getpid()}}", file=sys.stderr, flush=True)
with os.fdopen(int(options["--announce-fd"]), "w") as announce:
    announce.write(json.dumps({{"bootstrap_servers": "x:1", "metrics": None}}) + "\\n")
select.select([woken, int(options["--lifeline-fd"])], [], [])
print("stopping", file=sys.stderr, flush=True)
"""

SUPERVISED = """
import asyncio, sys
from pathlib import Path
from moldau.cli.errors import CommandError
from moldau.cli.local import supervisor
from moldau.cli.local.layout import LocalCluster
supervisor.PAUSE_S_FIRST = 0.01
supervisor.STOP_S_MAX = {stop_s_max}
supervisor.LATE_S = {late_s}
cluster = LocalCluster.open(Path({folder!r}), brokers=3, port=9092)
def say(line): print(line, flush=True)
async def main():
    program = (sys.executable, {program!r})
    watched = supervisor.Supervisor(cluster, note=say, log=say, restarts={restarts}, program=program)
    await watched.run(lambda running: say(f"all serve, pids {{[each.pid for each in running]}}"))
try:
    asyncio.run(main())
except CommandError as error:
    say(f"error: {{error}}")
    sys.exit(1)
"""

Started = Callable[..., "Supervised"]


class Supervised:
    """A supervisor process, whose output lines can be awaited."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.lines: list[str] = []

    def until(self, text: str) -> str:
        """Return the next line that contains the text."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if text in line:
                return self.lines[-1]
        raise AssertionError(f"it never shown {text!r}, but:\n" + "\n".join(self.lines))

    def pid_of(self, node: int, generation: int = 1) -> int:
        """Return the pid of the node's process number `generation`; its line may follow the supervisor's."""
        start = f"[{node}] pid {node} "
        while len(found := [line for line in self.lines if line.startswith(start)]) < generation:
            self.until(start)
        return int(found[generation - 1].split()[-1])

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        assert self.process.stdout is not None
        self.lines += [line.rstrip() for line in self.process.stdout]
        return self.process.wait(30)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    running: list[Supervised] = []

    def start(before: str = "", *, restarts: bool = False, stop_s_max: float = 30, late_s: float = 60) -> Supervised:
        program = tmp_path / "stand_in.py"
        program.write_text(STUB.format(before=textwrap.dedent(before)))
        text = SUPERVISED.format(
            folder=str(tmp_path / "cluster"),
            program=str(program),
            restarts=restarts,
            stop_s_max=stop_s_max,
            late_s=late_s,
        )
        process = subprocess.Popen(
            [sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        running.append(Supervised(process))
        return running[-1]

    yield start
    for each in running:
        each.process.kill()
        each.process.wait()
        assert each.process.stdout is not None
        each.process.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_all_nodes_are_started_and_stopped(started: Started, number: signal.Signals) -> None:
    up = started()
    up.until("all serve")
    assert up.end(number) == 0
    assert {f"[{node}] hello from {node}" for node in (1, 2, 3)} <= set(up.lines)
    assert sum(line.endswith("stopping") for line in up.lines) == 3


@pytest.mark.proves("H3")
def test_killed_node_stays_down_and_is_reported(started: Started) -> None:
    up = started()
    served = up.until("all serve, pids")  # awaited first, since the order relative to the nodes' lines varies
    assert str(up.pid_of(2)) in served
    os.kill(up.pid_of(2), signal.SIGKILL)
    line = up.until("node 2 was killed (SIGKILL) and stays down")
    assert line.endswith("node-2.properties")
    assert up.end() == 0
    assert sum(line.endswith("stopping") for line in up.lines) == 2


def test_killed_node_is_restarted_with_restart(started: Started) -> None:
    up = started(restarts=True)
    up.until("all serve")
    for generation in (1, 2):
        os.kill(up.pid_of(3, generation), signal.SIGKILL)
        up.until("node 3 was killed (SIGKILL) and restarts in")
        assert up.pid_of(3, generation + 1) != up.pid_of(3, generation)
    assert up.end() == 0


def test_supervisor_exits_when_no_node_is_left(started: Started) -> None:
    up = started()
    up.until("all serve")
    for node in (1, 2, 3):
        os.kill(up.pid_of(node), signal.SIGKILL)
    assert up.wait() == 1
    assert up.lines[-1] == "error: no node is left"


def test_node_that_cannot_start_stops_the_cluster(started: Started) -> None:
    up = started('if node == "2": sys.exit("the port is taken")')
    assert up.wait() == 1
    assert "[2] the port is taken" in up.lines
    assert up.lines[-1] == "error: node 2 did not start: it exited with code 1"


@pytest.mark.proves("A4", part="reassignment")
def test_slow_node_is_reported_and_awaited(started: Started, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    up = started(f'if node == "3": Path({str(gate)!r}).read_bytes()', late_s=0.1)
    late = up.until("not ready within 0.1 s")
    assert late.startswith("not ready within 0.1 s, still waiting: node ")
    assert late.endswith("3")
    gate.write_bytes(b"go on")
    up.until("all serve")
    assert up.end() == 0
    assert sum(line.endswith("stopping") for line in up.lines) == 3


def test_node_that_does_not_stop_is_killed(started: Started) -> None:
    up = started(
        """
        if node == "1":
            ignored = signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal = lambda *_: None
        """,
        stop_s_max=0.5,
    )
    up.until("all serve")
    assert up.end() == 0
    assert "node 1 did not stop within 0.5 s: killing it" in up.lines


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="only Linux lets us wait for a process that is not ours")
def test_no_node_outlives_a_killed_supervisor(started: Started) -> None:
    up = started()
    up.until("all serve")
    watched = [os.pidfd_open(up.pid_of(node)) for node in (1, 2, 3)]
    up.process.kill()
    for each in watched:
        with os.fdopen(each):
            assert select.select([each], [], [], 30)[0], "the node is still running"


# Layout


def test_only_the_first_three_brokers_are_controllers(tmp_path: Path) -> None:
    cluster = LocalCluster.open(tmp_path, brokers=5, port=9092)
    assert [node.is_controller for node in cluster.nodes] == [True, True, True, False, False]
    assert [node.address.port for node in cluster.nodes] == [9092, 9093, 9094, 9095, 9096]
    assert [each.port for each in cluster.state.controllers] == [19092, 19093, 19094]
    assert cluster.bootstrap_servers.count(",") == 4


@pytest.mark.parametrize(("brokers", "controllers", "replicas", "in_sync"), [(1, 1, 1, 1), (2, 1, 2, 1), (3, 3, 3, 2)])
def test_replication_factor_follows_from_the_number_of_brokers(
    tmp_path: Path, brokers: int, controllers: int, replicas: int, in_sync: int
) -> None:
    cluster = LocalCluster.open(tmp_path, brokers=brokers)
    assert len(cluster.state.controllers) == controllers
    settings = cluster.nodes[0].settings
    assert (settings["default.replication.factor"], settings["min.insync.replicas"]) == (str(replicas), str(in_sync))


@pytest.mark.proves("A4")
def test_second_start_continues_the_same_cluster(tmp_path: Path) -> None:
    first = LocalCluster.open(tmp_path, brokers=3, port=9192)
    identities = [(node.folder / "meta.properties").read_bytes() for node in first.nodes]
    second = LocalCluster.open(tmp_path)
    assert second.state == first.state
    assert [(node.folder / "meta.properties").read_bytes() for node in second.nodes] == identities
    grown = LocalCluster.open(tmp_path, brokers=4)
    assert [node.is_controller for node in grown.nodes] == [True, True, True, False]
    assert len(LocalCluster.open(tmp_path).nodes) == 4


def test_broker_ports_may_change_and_controller_ports_stay(tmp_path: Path) -> None:
    first = LocalCluster.open(tmp_path, port=9092)
    second = LocalCluster.open(tmp_path, port=9292)
    assert second.nodes[0].address.port == 9292
    assert second.state.controllers == first.state.controllers


@pytest.mark.parametrize(("port", "controllers"), [(9092, 19092), (22768, 12768), (30000, 20000), (60000, 50000)])
def test_controllers_listen_below_the_ephemeral_ports(tmp_path: Path, port: int, controllers: int) -> None:
    assert LocalCluster.open(tmp_path, port=port).state.controllers[0].port == controllers


@pytest.mark.parametrize(("port", "metrics"), [(9092, 9404), (9192, 9504), (65_400, 65_088)])
def test_metrics_ports_follow_from_the_port_of_the_first_broker(tmp_path: Path, port: int, metrics: int) -> None:
    nodes = LocalCluster.open(tmp_path, port=port).nodes
    listeners = [node.settings["moldau.metrics.listener"] for node in nodes]
    assert listeners == [f"localhost:{metrics + index}" for index in range(3)]


def test_settings_of_the_user_override_defaults(tmp_path: Path) -> None:
    cluster = LocalCluster.open(tmp_path, settings={"min.insync.replicas": "1", "log.retention.hours": "1"})
    text = cluster.nodes[2].settings_file.read_text()
    assert "min.insync.replicas=1\n" in text
    assert "log.retention.hours=1\n" in text


def test_directory_of_another_cluster_is_rejected(tmp_path: Path) -> None:
    LocalCluster.open(tmp_path / "one")
    other = LocalCluster.open(tmp_path / "other")
    state_file = tmp_path / "one" / "cluster.json"
    state_file.write_text(json.dumps({**json.loads(state_file.read_text()), "cluster_id": other.state.cluster_id}))
    with pytest.raises(CommandError, match="belongs to node 1 of cluster"):
        LocalCluster.open(tmp_path / "one")


def test_fewer_brokers_than_controllers_are_rejected(tmp_path: Path) -> None:
    LocalCluster.open(tmp_path, brokers=3)
    result = CliRunner().invoke(app, ["up", "--data", str(tmp_path), "--brokers", "2"])
    assert result.exit_code == 2
    assert "has 3 controllers" in result.stderr


@pytest.mark.proves("A4", part="reassignment")
def test_rejected_port_is_not_saved(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["up", "--data", str(tmp_path / "new"), "--port", "65534"])
    assert result.exit_code == 2
    assert "--port 65534 leaves no room for 3 brokers" in result.stderr
    assert not (tmp_path / "new").exists()
    first = LocalCluster.open(tmp_path / "known", port=9192)
    assert CliRunner().invoke(app, ["up", "--data", str(tmp_path / "known"), "--port", "65534"]).exit_code == 2
    assert LocalCluster.open(tmp_path / "known").state == first.state


@pytest.mark.proves("A4", part="reassignment")
def test_running_cluster_keeps_its_settings_on_second_start(tmp_path: Path) -> None:
    first = LocalCluster.open(tmp_path, brokers=3, port=9192)
    files = [tmp_path / "cluster.json", *(node.settings_file for node in first.nodes)]
    before = [each.read_bytes() for each in files]
    node = LogDir.open(SystemDisk(Capabilities.detect()), str(first.nodes[1].folder))
    result = CliRunner().invoke(app, ["up", "--data", str(tmp_path), "--port", "9292", "-c", "num.partitions=7"])
    node.close()
    assert result.exit_code == 1
    assert f"the cluster in {tmp_path} is running (node 2 holds its lock)" in result.stderr
    assert [each.read_bytes() for each in files] == before


@pytest.mark.proves("A4", part="reassignment")
@pytest.mark.parametrize("taken", ["broker", "controller"])
def test_no_cluster_is_created_with_ports_in_use(tmp_path: Path, taken: str) -> None:
    """The ports of controllers are permanent, and --port does not change them."""
    first = free_ports(3).start
    alike = LocalCluster.open(tmp_path / "alike", port=first)
    port = alike.nodes[2].address.port if taken == "broker" else alike.state.controllers[2].port
    with socket.create_server(("localhost", port)):
        result = CliRunner().invoke(app, ["up", "--data", str(tmp_path / "new"), "--port", str(first)])
    assert result.exit_code == 1
    assert f"localhost:{port} is in use: is another cluster running? choose another --port" in result.stderr
    assert not (tmp_path / "new").exists()


def test_controller_port_in_use_is_reported(tmp_path: Path) -> None:
    with socket.create_server(("localhost", 0)) as listener:
        port = listener.getsockname()[1]
        LocalCluster.open(tmp_path, port=free_ports(3).start, controller_port=port)
        result = CliRunner().invoke(app, ["up", "--data", str(tmp_path)])
    assert result.exit_code == 1
    assert f"localhost:{port} is in use: stop the process that listens there" in result.stderr


def test_invalid_cluster_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text("[]")
    result = CliRunner().invoke(app, ["up", "--data", str(tmp_path)])
    assert result.exit_code == 1
    assert "is this the directory of a cluster?" in result.stderr

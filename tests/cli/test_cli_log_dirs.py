"""`moldau log-dirs` on a broker with two log dirs."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from moldau.cli.cluster_client import connect
from moldau.cli.main import app
from moldau.testing import Broker
from moldau.wire.messages import AlterReplicaLogDirsRequest

pytestmark = pytest.mark.proves("A4", part="cluster state")

LogDirs = Callable[..., Any]
SLOW = 1000  # bytes per second of a move, so that it is observed
LINE = "x" * 1000
RECORDS = 2000


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    return [str(tmp_path / "first"), str(tmp_path / "second")]


@pytest.fixture
def broker(paths: list[str]) -> Iterator[Broker]:
    with Broker(data=",".join(paths), replica_alter_log_dirs_io_max_bytes_per_second=SLOW) as running:
        yield running


@pytest.fixture
def moldau(broker: Broker) -> LogDirs:
    def run(*arguments: str, text: str = "", code: int = 0) -> Any:
        environment = {**os.environ, "MOLDAU_BOOTSTRAP_SERVERS": broker.bootstrap_servers}
        done = CliRunner().invoke(app, arguments, input=text, env=environment)
        assert done.exit_code == code, f"{done.output}{done.exception!r}"
        return done.stderr if code else json.loads(done.stdout) if "--json" in arguments else done.output

    return run


def test_log_dirs_shows_space_partitions_and_moves(broker: Broker, moldau: LogDirs, paths: list[str]) -> None:
    moldau("topic", "create", "orders", "--partitions", "2")
    moldau("produce", "orders", "--partition", "0", "--batch-bytes", "16384", text=f"{LINE}\n" * RECORDS)
    first, second = moldau("log-dirs", "--topic", "orders", "--json")
    assert [first["log_dir"], second["log_dir"]] == paths
    for each in (first, second):
        assert each["broker"] == 1
        assert 0 < each["free_bytes"] < each["total_bytes"]
        assert not each["is_offline"]
    held = {
        (log_dir["log_dir"], each["partition"]): each for log_dir in (first, second) for each in log_dir["partitions"]
    }
    assert sorted(partition for _, partition in held) == [0, 1]
    (source,) = (path for path, partition in held if partition == 0)
    assert held[source, 0]["size_bytes"] > RECORDS * len(LINE)
    (target,) = set(paths) - {source}
    move_first_partition(broker, target)
    copies = [each for each in moldau("log-dirs", "--topic", "orders", "--json") if each["log_dir"] == target]
    (future,) = (each for each in copies[0]["partitions"] if each["is_future"])
    assert (future["topic"], future["partition"]) == ("orders", 0)
    assert future["lag"] > 0
    header, *rows = moldau("log-dirs", "--topic", "orders").splitlines()
    assert header.split() == "BROKER LOG DIR STATE TOTAL FREE SIZE PARTITIONS FUTURES".split()
    (row,) = (each.split() for each in rows if target in each)
    assert (row[0], row[2], row[-2:]) == ("1", "online", ["1", "1"])


def move_first_partition(broker: Broker, target: str) -> None:
    request = AlterReplicaLogDirsRequest
    topic = request.AlterReplicaLogDirTopic(name="orders", partitions=[0])
    with connect(broker.bootstrap_servers) as client:
        response = client.send(request(dirs=[request.AlterReplicaLogDir(path=target, topics=[topic])]))
    assert response.results[0].partitions[0].error_code == 0


def test_log_dirs_shows_a_log_dir_that_is_offline(broker: Broker, moldau: LogDirs, paths: list[str]) -> None:
    broker.stop()
    lost = Path(paths[1])
    lost.rename(lost.with_suffix(".moved"))
    lost.write_bytes(b"")
    broker.start()
    states = {each["log_dir"]: each for each in moldau("log-dirs", "--json")}
    assert not states[paths[0]]["is_offline"]
    assert (states[paths[1]]["is_offline"], states[paths[1]]["error"]) == (True, "KAFKA_STORAGE_ERROR")
    assert f"log dir {lost} of broker 1 is offline: KAFKA_STORAGE_ERROR" in moldau("log-dirs")


def test_log_dirs_rejects_unknown_brokers_and_topics(moldau: LogDirs) -> None:
    assert moldau("log-dirs", "--broker", "7", code=1) == "error: there is no broker 7; the brokers are 1\n"
    assert "payments" in moldau("log-dirs", "--topic", "payments", code=1)

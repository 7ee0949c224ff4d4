"""A cluster of Apache Kafka: three combined nodes, and further nodes added later."""

import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import confluent_kafka
from apache_kafka import CLUSTER_ID, READY_S_MAX, STOP_S_MAX, free_ports, java, run
from confluent_kafka import admin

DIRECTORIES: Final = ("", "QmVpZGUgVWZlciBkZXIgTQ", "V2Fzc2VyIGRlciBNb2xkYQ", "U3Ryb21zY2huZWxsZW4gSg")
VOTERS: Final = (1, 2, 3)


class ApacheCluster:
    """`with ApacheCluster(folder) as cluster:`"""

    def __init__(self, folder: Path, nodes_max: int = 5) -> None:
        self.folder = folder
        self._ports = free_ports(2 * nodes_max)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"localhost:{self.port(node)}" for node in VOTERS)

    def port(self, node: int) -> int:
        return self._ports[2 * (node - 1)]

    def controller_port(self, node: int) -> int:
        return self._ports[2 * (node - 1) + 1]

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        voters = ",".join(f"{node}@localhost:{self.controller_port(node)}:{DIRECTORIES[node]}" for node in VOTERS)
        for node in VOTERS:
            self._format(node, "broker,controller", ["--initial-controllers", voters])
            self.start(node)
        self.wait_for_brokers(len(VOTERS))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with ExitStack() as ends:
            for node in list(self._processes):
                ends.callback(self.kill, node)

    def add(self, node: int, roles: str) -> None:
        self._format(node, roles, ["--no-initial-controllers"])
        self.start(node)

    def start(self, node: int) -> None:
        with (self.folder / f"{node}.log").open("ab") as log:
            command = java("kafka.Kafka", str(self._settings(node)))
            self._processes[node] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def stop(self, node: int) -> None:
        process = self._processes.pop(node)
        process.terminate()
        try:
            process.wait(STOP_S_MAX)
        finally:
            process.kill()

    def kill(self, node: int) -> None:
        process = self._processes.pop(node)
        process.kill()
        process.wait()

    def wait_for_brokers(self, count: int) -> None:
        client = admin.AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        deadline_s = time.monotonic() + READY_S_MAX
        while time.monotonic() < deadline_s:
            try:
                if len(client.list_topics(timeout=1).brokers) == count:
                    return
            except confluent_kafka.KafkaException:
                continue
        said = "\n".join((self.folder / f"{node}.log").read_text()[-2000:] for node in self._processes)
        raise AssertionError(f"not {count} brokers. Logs:\n{said}")

    def _settings(self, node: int) -> Path:
        return self.folder / f"{node}.properties"

    def _format(self, node: int, roles: str, options: list[str]) -> None:
        self._settings(node).write_text(self._settings_text(node, roles))
        where = ["-t", CLUSTER_ID, "-c", str(self._settings(node))]
        run(java("kafka.tools.StorageTool", "format", *where, *options))

    def _settings_text(self, node: int, roles: str) -> str:
        listeners = [f"PLAINTEXT://localhost:{self.port(node)}"] if "broker" in roles else []
        if "controller" in roles:
            listeners.append(f"CONTROLLER://localhost:{self.controller_port(node)}")
        settings = {
            "process.roles": roles,
            "node.id": node,
            "controller.quorum.bootstrap.servers": ",".join(
                f"localhost:{self.controller_port(each)}" for each in VOTERS
            ),
            "listeners": ",".join(listeners),
            "advertised.listeners": ",".join(listeners),
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": self.folder / str(node),
            "offsets.topic.num.partitions": 1,
            "broker.session.timeout.ms": 3000,
            "broker.heartbeat.interval.ms": 500,
            "auto.leader.rebalance.enable": "false",
            "group.initial.rebalance.delay.ms": 0,
        }
        return "".join(f"{name}={value}\n" for name, value in settings.items())

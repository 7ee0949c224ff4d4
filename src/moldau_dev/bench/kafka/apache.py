"""Apache Kafka, with the JVM flags and the settings that its own scripts have by default."""

import socket
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from moldau.cli.bench import processes
from moldau.cli.bench.streams import Address
from moldau.cli.errors import CommandError
from moldau.wire.framing import RequestHeader, frame_request
from moldau.wire.messages import MetadataRequest
from moldau_dev.bench.growth.lines import Line

LIBRARIES: Final = Path(__file__).parents[4] / "extra/java/target/lib"
CLUSTER_ID: Final = "TW9sZGF1IG1lZXRzIGthZg"
READY_S_MAX: Final = 90.0
READY_CHECK_S: Final = 0.02
STOP_S_MAX: Final = 30.0
METADATA_VERSION: Final = 9

# Those of kafka-server-start.sh and kafka-run-class.sh.
JVM_FLAGS: Final = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
TOOL_FLAGS: Final = ("-Xmx512M",)
QUIET: Final = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",)

# Those of config/server.properties that differ from the defaults in the code, and times that outlast a SIGSTOP.
SETTINGS: Final = {
    "num.network.threads": 3,
    "num.io.threads": 8,
    "socket.send.buffer.bytes": 102400,
    "socket.receive.buffer.bytes": 102400,
    "group.initial.rebalance.delay.ms": 0,
    "broker.session.timeout.ms": 1_200_000,
    "log.retention.check.interval.ms": 5000,
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
}


def java(main_class: str, *arguments: str, flags: Sequence[str] = TOOL_FLAGS) -> list[str]:
    return ["java", *flags, *QUIET, "-cp", f"{LIBRARIES}/*", main_class, *arguments]


def require_kafka() -> None:
    if not list(LIBRARIES.glob("kafka_2.13-*.jar")):
        raise CommandError("Apache Kafka is not in extra/java/target/lib; `make bench-kafka` fetches it with Maven")


class ApacheNode:
    """One node. The first of a cluster is its controller too."""

    metrics: str | None = None

    def __init__(self, folder: Path, node_id: int, ports: Sequence[int], replicas: int) -> None:
        self._folder = folder
        self._node_id = node_id
        self._port, self._controller_port = ports[node_id], ports[0]
        self._replicas = replicas
        self._process: subprocess.Popen[bytes] | None = None
        self.started_in_s = 0.0

    @property
    def address(self) -> Address:
        return "127.0.0.1", self._port

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "it runs"
        return self._process.pid

    def cpu_s(self) -> float:
        return processes.cpu_s(self.pid)

    def format(self) -> None:
        """Write the settings and format the data directory."""
        self._folder.mkdir(parents=True)
        (self._folder / "server.properties").write_text(self._settings())
        kind = ["--standalone"] if self._node_id == 1 else []
        command = java(
            "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(self._folder / "server.properties"), *kind
        )
        done = subprocess.run(command, capture_output=True, text=True, timeout=READY_S_MAX, check=False)
        if done.returncode:
            raise CommandError(f"Apache Kafka cannot be formatted: {done.stdout[-500:]}{done.stderr[-500:]}")

    def start(self) -> None:
        started_s = time.monotonic()
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                java("kafka.Kafka", str(self._folder / "server.properties"), flags=JVM_FLAGS),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        while not self._is_ready():
            if time.monotonic() - started_s > READY_S_MAX or self._process.poll() is not None:
                self.stop()
                log_text = (self._folder / "server.log").read_text(errors="replace")
                raise CommandError(f"Apache Kafka did not start. Its output:\n{log_text[-2000:]}")
            time.sleep(READY_CHECK_S)
        self.started_in_s = time.monotonic() - started_s

    def _is_ready(self) -> bool:
        header = RequestHeader(MetadataRequest.API_KEY, METADATA_VERSION, 0, "moldau-bench")
        request = b"".join(frame_request(header, MetadataRequest(topics=[])))  # type: ignore[arg-type]
        try:
            with Line(self.address) as line:
                line.send(request)
                line.receive()
        except OSError:
            return False
        return True

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def _settings(self) -> str:
        listeners = f"PLAINTEXT://{self.bootstrap_servers}"
        if self._node_id == 1:
            listeners += f",CONTROLLER://127.0.0.1:{self._controller_port}"
        settings = {
            **SETTINGS,
            "process.roles": "broker,controller" if self._node_id == 1 else "broker",
            "node.id": self._node_id,
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{self._controller_port}",
            "listeners": listeners,
            "advertised.listeners": listeners,
            "log.dirs": self._folder / "data",
            "offsets.topic.replication.factor": self._replicas,
            "transaction.state.log.replication.factor": self._replicas,
            "transaction.state.log.min.isr": 1,
        }
        return "".join(f"{name}={value}\n" for name, value in settings.items())


class ApacheCluster:
    """One node, or several. `with ApacheCluster(folder, 3) as kafka:` formats and starts them."""

    metrics: str | None = None

    def __init__(self, folder: Path, brokers: int) -> None:
        require_kafka()
        ports = free_ports(brokers + 1)
        self.nodes = [ApacheNode(folder / f"kafka-{each}", each, ports, brokers) for each in range(1, brokers + 1)]
        self._stack = ExitStack()

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(node.bootstrap_servers for node in self.nodes)

    @property
    def address(self) -> Address:
        return self.nodes[0].address

    @property
    def started_in_s(self) -> float:
        return max(node.started_in_s for node in self.nodes)

    def cpu_s(self) -> float:
        return sum(node.cpu_s() for node in self.nodes)

    def __enter__(self) -> Self:
        with ThreadPoolExecutor(len(self.nodes)) as threads:
            list(threads.map(ApacheNode.format, self.nodes))
        for node in self.nodes:
            self._stack.callback(node.stop)
            try:
                node.start()
            except BaseException:
                self._stack.close()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]

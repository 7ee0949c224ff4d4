"""Apache Kafka itself, from the jars that Maven fetched: a broker in a process of its own, and its dump tool."""

import shutil
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import confluent_kafka
from confluent_kafka import admin

HERE: Final = Path(__file__).parent
LIBRARIES: Final = HERE / "target/lib"
CLASSES: Final = HERE / "target/classes"
CLUSTER_ID: Final = "TW9sZGF1IG1lZXRzIGthZg"
READY_S_MAX: Final = 60.0
STOP_S_MAX: Final = 30.0
OPTIONS: Final = ("-Xmx512m", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")

has_java: Final = shutil.which("java") is not None and LIBRARIES.is_dir()


def java(main_class: str, *arguments: str, first: Sequence[Path] = ()) -> list[str]:
    """A command line; the jars in `first` come before those of the same name."""
    path = ":".join([*map(str, first), str(CLASSES), f"{LIBRARIES}/*"])
    return ["java", *OPTIONS, "-cp", path, main_class, *arguments]


def run(command: Sequence[str], *, wait_s: float = 120) -> str:
    """Return the output of a command, which must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=wait_s, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def dump(*files: Path, options: Sequence[str] = ("--print-data-log", "--deep-iteration")) -> str:
    """Return the output of Kafka's dump tool for these files."""
    return run(java("org.apache.kafka.tools.DumpLogSegments", *options, "--files", ",".join(map(str, files))))


class ApacheKafka:
    """One node that is broker and controller. `with ApacheKafka(folder) as kafka:` formats the folder if it is new."""

    def __init__(
        self,
        folder: Path,
        release: str = "4.0",
        settings: Mapping[str, object] | None = None,
        *,
        has_sasl: bool = False,
    ) -> None:
        self.data = folder
        self.release = release
        self.port, self._controller_port, self._sasl_port = free_ports(3)
        self._has_sasl = has_sasl
        self._more_settings = settings or {}
        self._settings = folder.with_name(f"{folder.name}.properties")
        self._log = folder.with_name(f"{folder.name}.log")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap_servers(self) -> str:
        return f"localhost:{self.port}"

    @property
    def sasl_servers(self) -> str:
        """The address of the listener SASL_PLAINTEXT, which `has_sasl` adds."""
        return f"localhost:{self._sasl_port}"

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def __enter__(self) -> Self:
        self._settings.write_text(self._settings_text())
        if not (self.data / "meta.properties").exists():
            options = ["--standalone", "--release-version", self.release, "-t", CLUSTER_ID, "-c", str(self._settings)]
            run(java("kafka.tools.StorageTool", "format", *options))
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                java("kafka.Kafka", str(self._settings)), stdout=log, stderr=subprocess.STDOUT
            )
        self._wait_until_it_serves(self._process)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process, self._process = self._process, None
        assert process is not None
        process.terminate()
        try:
            process.wait(STOP_S_MAX)
        finally:
            process.kill()

    def _wait_until_it_serves(self, process: "subprocess.Popen[bytes]") -> None:
        client = admin.AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        deadline_s = time.monotonic() + READY_S_MAX
        while time.monotonic() < deadline_s and process.poll() is None:
            try:
                if client.list_topics(timeout=1).brokers:
                    return
            except confluent_kafka.KafkaException:
                continue
        process.kill()
        process.wait()
        raise AssertionError(f"Apache Kafka is not ready. Its log:\n{self.log[-4000:]}")

    def _settings_text(self) -> str:
        client, controller = f"PLAINTEXT://localhost:{self.port}", f"CONTROLLER://localhost:{self._controller_port}"
        if self._has_sasl:
            client += f",SASL_PLAINTEXT://{self.sasl_servers}"
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.bootstrap.servers": f"localhost:{self._controller_port}",
            "listeners": f"{client},{controller}",
            "advertised.listeners": f"{client},{controller}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
            "log.dirs": self.data,
            "log.index.interval.bytes": 200,
            "log.index.size.max.bytes": 4096,
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.num.partitions": 1,
            "transaction.state.log.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            **self._more_settings,
        }
        return "".join(f"{name}={value}\n" for name, value in settings.items())


def free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        servers = [held.enter_context(socket.create_server(("localhost", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in servers]

"""A real broker for a test: its own process, its own data directory, a free port.

    with Broker(log_segment_bytes=1_048_576) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})

It runs `moldau start` with two internal options, one pipe each:

--announce-fd N   the broker writes one line of JSON to it once it is ready, `{"bootstrap_servers": "127.0.0.1:1234",
                  "metrics": "http://127.0.0.1:2345/metrics"}` (metrics may be null), and closes it
--lifeline-fd N   the broker shuts down, as on SIGTERM, when the other end of the pipe is closed: so it never
                  outlives the test process, however that ends
"""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from moldau.cli.files import read_identity, write_private
from moldau.node.properties import format_properties

if TYPE_CHECKING:
    from moldau.testing.security import BrokerSecurity

# A free port for metrics, since several brokers run side by side. A group's first rebalance starts at once: Kafka's
# default delay of 3 s, which waits for more members, would be added to every consumer group test.
TEST_SETTINGS: Final = {"moldau.metrics.listener": "127.0.0.1:0", "group.initial.rebalance.delay.ms": "0"}

NODE_ID_DEFAULT: Final = 1
READY_S_MAX: Final = 30.0
STOP_S_MAX: Final = 30.0
ANNOUNCEMENT_BYTES_MAX: Final = 65_536
LOG_LINES_SHOWN: Final = 40


class BrokerFailed(RuntimeError):
    """The broker did not start, or exited with an error; the message contains the end of its log."""


class Broker:
    """Use `with Broker() as broker:`, or `start` and `close`.

    Keyword arguments are Kafka settings with `_` for `.`; `settings` takes them under their Kafka names. Without
    `data` the broker uses a temporary directory, which `close` removes. With `listen=None` the settings decide the
    listeners. `security` is "ssl", "mtls", "scram" or "plain": the broker then has one listener with TLS, without
    authentication, with client certificates, or with the user `tester` and a password. `client_settings`,
    `librdkafka_settings` and `kafka_python_settings` are what a client needs to connect.
    """

    # -P: modules in the working directory, the project under test, must not shadow installed ones.
    command: ClassVar[Sequence[str]] = (sys.executable, "-P", "-m", "moldau.cli.main")

    def __init__(
        self,
        *,
        data: str | Path | None = None,
        listen: str | None = "127.0.0.1:0",
        settings: Mapping[str, object] | None = None,
        security: str | None = None,
        ready_s_max: float = READY_S_MAX,
        stop_s_max: float = STOP_S_MAX,
        **named_settings: object,
    ) -> None:
        self.settings = {**TEST_SETTINGS, **(settings or {}), **setting_names(named_settings)}
        self.security: BrokerSecurity | None = None
        self.ready_s_max, self.stop_s_max = ready_s_max, stop_s_max
        self.metrics: str | None = None
        self._listen = listen
        self._bootstrap_servers = ""
        self._temporary = Path(tempfile.mkdtemp(prefix="moldau-"))
        # Absolute: a test may change the working directory before it restarts the broker.
        self.data = Path(data).absolute() if data is not None else self._temporary / "data"
        self._log_path = self._temporary / "log"
        self._settings_path = self._temporary / "broker.properties"
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline = self._ready_fd = -1
        self._is_stopping = self._is_paused = False
        self._owner = os.getpid()
        if security is not None:
            self._secure(security)

    def _secure(self, kind: str) -> None:
        from moldau.testing.security import BrokerSecurity

        self.security = BrokerSecurity.create(kind, self._temporary / "certificates")
        listener = f"{self.security.listener}://{self._listen}"
        defaults = {"listeners": listener, "inter.broker.listener.name": self.security.listener}
        self.settings = {**defaults, **self.security.broker_settings, **self.settings}
        self._listen = None

    @property
    def client_settings(self) -> dict[str, str]:
        """The security settings of a client, under the names of Kafka's Java clients."""
        return {} if self.security is None else dict(self.security.client_settings)

    @property
    def librdkafka_settings(self) -> dict[str, str]:
        """The security settings of a client on librdkafka, such as confluent-kafka."""
        return {} if self.security is None else dict(self.security.librdkafka_settings)

    @property
    def kafka_python_settings(self) -> dict[str, str]:
        """The security settings of kafka-python; aiokafka has the same but for `ssl_cafile`."""
        return {} if self.security is None else self.security.kafka_python_settings

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients, `host:port`. A restart keeps it."""
        if not self._bootstrap_servers:
            raise BrokerFailed("The broker has not been started.")
        return self._bootstrap_servers

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def is_paused(self) -> bool:
        """Whether the process is stopped by SIGSTOP."""
        return self._is_paused and self.is_running

    @property
    def log(self) -> str:
        """The output of the broker, over all its starts."""
        with contextlib.suppress(FileNotFoundError):
            return self._log_path.read_text(errors="replace")
        return ""

    def start(self) -> Self:
        """Start the broker and wait until it is ready."""
        return self.launch().wait_until_ready()

    def launch(self) -> Self:
        """Start the broker without waiting: a cluster node becomes ready only once others run."""
        if self.is_running:
            raise BrokerFailed("The broker is running already.")
        self._clear_process()
        self._create_users()
        self._ready_fd, announce = os.pipe()
        lifeline, self._lifeline = os.pipe()
        try:
            self._process = self._spawn(announce, lifeline)
        except BaseException:
            self._clear_process()
            raise
        finally:
            os.close(announce)
            os.close(lifeline)
        return self

    def wait_until_ready(self, wait_s: float | None = None) -> Self:
        """After `launch`: wait until the broker is ready."""
        try:
            self._parse_announcement(self._read_line(self._ready_fd, self.ready_s_max if wait_s is None else wait_s))
        except BaseException:
            self.kill()
            raise
        finally:
            self._close_ready_fd()
        return self

    @property
    def ready_fd(self) -> int:
        """After `launch`: a descriptor that becomes readable once the broker is ready or has exited."""
        return self._ready_fd

    def stop(self, *, may_be_killed: bool = False) -> None:
        """Shut down the broker (SIGTERM) and wait for it.

        Raises `BrokerFailed` if it exits with an error. `may_be_killed` accepts a broker that the test has killed
        with SIGKILL.
        """
        process = self._process
        if process is None:
            return
        self.terminate()
        try:
            code = process.wait(self.stop_s_max)
        except subprocess.TimeoutExpired:
            self.kill()
            raise self._failure(f"The broker did not stop within {self.stop_s_max:g} s") from None
        self._clear_process()
        if code != 0 and not (may_be_killed and code == -signal.SIGKILL):
            raise self._failure(f"The broker exited with code {code}")

    def terminate(self) -> None:
        """Send SIGTERM without waiting."""
        if (
            self.is_running and not self._is_stopping
        ):  # a second SIGTERM would kill a process that has restored the default handler
            self._is_stopping = True
            self.resume()
            self._running().send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the broker (SIGKILL)."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._clear_process()

    def restart(self) -> Self:
        """Stop the broker if it runs, and start it on the same data and port. It may have been killed before."""
        self.stop(may_be_killed=True)
        return self.start()

    def pause(self) -> None:
        """Freeze the broker (SIGSTOP): connections stay open, requests time out."""
        self._running().send_signal(signal.SIGSTOP)
        self._is_paused = True

    def resume(self) -> None:
        self._running().send_signal(signal.SIGCONT)
        self._is_paused = False

    def close(self) -> None:
        """Stop the broker and remove its temporary directory."""
        try:
            self.stop()
        finally:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def create_topic(self, name: str, partitions: int = 1, **config: object) -> str:
        """Create a topic and return its name. Keyword arguments are topic settings with `_` for `.`."""
        with self.client() as client:
            client.create_topic(name, partitions=partitions, replication_factor=1, configs=texts(setting_names(config)))
        return name

    def create_queue(self, name: str, partitions: int = 1, *, group: str | None = None, **config: object) -> str:
        """Create a topic, and the configs of the share group that reads it as a queue; return its name.

        The group has the same name, and starts at the earliest record. Keyword arguments are group configs with `_` for
        `.` (`share_delivery_count_limit=3`).
        """
        from moldau.client.queues import create_queue

        with self.client() as client:
            create_queue(client, name, group or name, texts(setting_names(config)), partitions=partitions)
        return name

    def client(self) -> Any:
        """Return a blocking client for this broker, for use in a `with` statement."""
        from moldau.testing.client import SocketClient

        return SocketClient(self.bootstrap_servers, security=self.client_settings)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            shutil.rmtree(self._temporary, ignore_errors=True)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if os.getpid() != self._owner:
            return  # a forked child leaves the block: the broker belongs to the parent
        if error is not None:
            if isinstance(error, BaseException):  # confluent-kafka's `KafkaError`, raised in callbacks, is not one
                error.add_note(f"The broker's log:\n{self.log_tail}")
            self.kill()
        self.close()

    def _create_users(self) -> None:
        """Format a new data directory with the users of a secured broker."""
        if self.security is None or not self.security.scram_users or read_identity(self.data) is not None:
            return
        from moldau.cli.local.layout import format_data_directory

        node_id = int(str(self.settings.get("node.id", NODE_ID_DEFAULT)))
        format_data_directory(self.data, node_id, None, scram_users=self.security.scram_users)

    def _spawn(self, announce: int, lifeline: int) -> subprocess.Popen[bytes]:
        options = ["start", "--data", str(self.data)]
        if self._listen is not None:
            options += ["--listen", self._listen]
        options += ["--announce-fd", str(announce), "--lifeline-fd", str(lifeline)]
        # A file that only its owner may read: other users can see the arguments of a process.
        write_private(self._settings_path, format_properties(texts(self.settings)))
        options += ["--config", str(self._settings_path)]
        with self._log_path.open("ab") as log:
            return subprocess.Popen(
                [*self.command, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(announce, lifeline),
                start_new_session=True,  # Ctrl-C in the test must not reach the broker before the teardown does
                env={**os.environ, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"},
            )

    def _parse_announcement(self, line: bytes) -> None:
        announcement = json.loads(line)
        self._bootstrap_servers = announcement["bootstrap_servers"]
        self.metrics = announcement.get("metrics")
        if self._listen is not None:
            self._listen = self._bootstrap_servers.split(",")[0]
        elif self.security is not None:
            self.settings["listeners"] = f"{self.security.listener}://{self._bootstrap_servers}"

    def _read_line(self, ready_fd: int, wait_s: float) -> bytes:
        deadline = time.monotonic() + wait_s
        line = b""
        poll = select.poll()  # `select.select` fails for descriptors above 1023
        poll.register(ready_fd, select.POLLIN)
        while not line.endswith(b"\n") and len(line) < ANNOUNCEMENT_BYTES_MAX:
            left_s = max(deadline - time.monotonic(), 0.0)
            if not poll.poll(left_s * 1000):
                raise self._failure(f"The broker was not ready within {self.ready_s_max:g} s")
            part = os.read(ready_fd, 4096)
            if not part:
                code = self._running().wait(self.stop_s_max)
                raise self._failure(f"The broker exited with code {code} before it was ready")
            line += part
        return line

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise BrokerFailed("The broker is not running.")
        return self._process

    def _clear_process(self) -> None:
        self._process = None
        self._is_stopping = self._is_paused = False
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        self._close_ready_fd()

    def _close_ready_fd(self) -> None:
        if self._ready_fd >= 0:
            os.close(self._ready_fd)
            self._ready_fd = -1

    def _failure(self, what: str) -> BrokerFailed:
        return BrokerFailed(f"{what}. Its output:\n{self.log_tail}")

    @property
    def log_tail(self) -> str:
        """The last lines of `log`."""
        return "\n".join(self.log.splitlines()[-LOG_LINES_SHOWN:]) or "(empty)"


def setting_names(named: Mapping[str, object]) -> dict[str, object]:
    """Convert keyword names to Kafka names: `log_segment_bytes` to `log.segment.bytes`."""
    return {name.replace("_", "."): value for name, value in named.items()}


def texts(settings: Mapping[str, object]) -> dict[str, str]:
    """Format values as in a properties file."""
    return {name: _text(value) for name, value in settings.items()}


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(map(_text, value))
    return str(value)

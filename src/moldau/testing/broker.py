"""A real broker for a test: its own process, its own folder, any free port.

    with Broker(log_segment_bytes=1_048_576) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})

It runs `moldau start` with two pipes that only this file and the command line know of:

--announce-fd N   the broker writes one line of JSON there once it serves, `{"bootstrap_servers": "127.0.0.1:1234",
                  "metrics": "http://127.0.0.1:2345/metrics"}` (metrics may be null), and closes it
--lifeline-fd N   the broker ends, as after SIGTERM, when the other end of that pipe is closed: so it never
                  outlives the test, however the test dies
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
from typing import Any, ClassVar, Final, Self

# Any free port for metrics, since several brokers run side by side; and a group's first rebalance starts at once, where
# Kafka's default of 3 s waits for more members and adds that time to every test of a consumer group.
TEST_SETTINGS: Final = {"moldau.metrics.listener": "127.0.0.1:0", "group.initial.rebalance.delay.ms": "0"}

READY_S_MAX: Final = 30.0
STOP_S_MAX: Final = 30.0
ANNOUNCEMENT_BYTES_MAX: Final = 65_536
LOG_LINES_SHOWN: Final = 40


class BrokerFailed(RuntimeError):
    """The broker did not start, or did not end well; the message has its own last words."""


class Broker:
    """`with Broker() as broker:`, or `start` and `stop` by hand.

    Keyword arguments are Kafka's settings with `_` for `.`; `settings` takes them by their own names. Without `data`
    the broker keeps its data in a temporary folder that goes when it is closed. `listen=None` leaves the ports to the
    settings.
    """

    # -P: a file of the project under test is not taken for a module of that name, though tests run in its folder.
    command: ClassVar[Sequence[str]] = (sys.executable, "-P", "-m", "moldau.cli.main")

    def __init__(
        self,
        *,
        data: str | Path | None = None,
        listen: str | None = "127.0.0.1:0",
        settings: Mapping[str, object] | None = None,
        ready_s_max: float = READY_S_MAX,
        stop_s_max: float = STOP_S_MAX,
        **named_settings: object,
    ) -> None:
        self.settings = {**TEST_SETTINGS, **(settings or {}), **setting_names(named_settings)}
        self.ready_s_max, self.stop_s_max = ready_s_max, stop_s_max
        self.metrics: str | None = None
        self._listen = listen
        self._bootstrap_servers = ""
        self._folder = Path(tempfile.mkdtemp(prefix="moldau-"))
        # Absolute, because a test may go to another folder before it starts the broker again.
        self.data = Path(data).absolute() if data is not None else self._folder / "data"
        self._log_path = self._folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline = self._announced = -1
        self._is_ending = self._is_paused = False
        self._owner = os.getpid()

    @property
    def bootstrap_servers(self) -> str:
        """Where clients connect: `host:port`. It stays the same over a restart."""
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
        """It runs, but is frozen."""
        return self._is_paused and self.is_running

    @property
    def log(self) -> str:
        """All it has printed, over all its starts."""
        with contextlib.suppress(FileNotFoundError):
            return self._log_path.read_text(errors="replace")
        return ""

    def start(self) -> Self:
        """Start it and wait until it serves."""
        return self.launch().wait_until_ready()

    def launch(self) -> Self:
        """Start it without waiting: one node of a cluster serves when others do."""
        if self.is_running:
            raise BrokerFailed("The broker is running already.")
        self._forget_process()
        self._announced, announce = os.pipe()
        lifeline, self._lifeline = os.pipe()
        try:
            self._process = self._spawn(announce, lifeline)
        except BaseException:
            self._forget_process()
            raise
        finally:
            os.close(announce)
            os.close(lifeline)
        return self

    def wait_until_ready(self, wait_s: float | None = None) -> Self:
        """After `launch`: until it serves."""
        try:
            self._take_announcement(self._read_line(self._announced, self.ready_s_max if wait_s is None else wait_s))
        except BaseException:
            self.kill()
            raise
        finally:
            self._close_announced()
        return self

    @property
    def announced(self) -> int:
        """After `launch`, a descriptor that can be read once it serves or has ended."""
        return self._announced

    def stop(self, *, may_be_killed: bool = False) -> None:
        """Ask it to end (SIGTERM) and wait until it has, which must be without error: that the test itself has killed
        it (`os.kill`) is none if it may be."""
        process = self._process
        if process is None:
            return
        self.terminate()
        try:
            code = process.wait(self.stop_s_max)
        except subprocess.TimeoutExpired:
            self.kill()
            raise self._failure(f"The broker did not stop within {self.stop_s_max:g} s") from None
        self._forget_process()
        if code != 0 and not (may_be_killed and code == -signal.SIGKILL):
            raise self._failure(f"The broker ended with code {code}")

    def terminate(self) -> None:
        """Ask it to end, and do not wait: `stop` does."""
        if self.is_running and not self._is_ending:  # a second signal might hit a process that listens no more
            self._is_ending = True
            self.resume()
            self._running().send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it without warning (SIGKILL)."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._forget_process()

    def restart(self) -> Self:
        """Stop it if it runs, whoever may have killed it before, and start it again on the same folder and port."""
        self.stop(may_be_killed=True)
        return self.start()

    def pause(self) -> None:
        """Freeze it (SIGSTOP): its connections stay open and nothing answers."""
        self._running().send_signal(signal.SIGSTOP)
        self._is_paused = True

    def resume(self) -> None:
        self._running().send_signal(signal.SIGCONT)
        self._is_paused = False

    def close(self) -> None:
        """Stop it and remove its temporary folder."""
        try:
            self.stop()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def create_topic(self, name: str, partitions: int = 1, **config: object) -> str:
        """Create a topic; keyword arguments are its settings with `_` for `.`. The name comes back."""
        with self.client() as client:
            client.create_topic(name, partitions=partitions, replication_factor=1, configs=texts(setting_names(config)))
        return name

    def client(self) -> Any:
        """A blocking client of this broker, to use in a `with`."""
        from moldau.testing.client import AskingClient

        return AskingClient(self.bootstrap_servers)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if os.getpid() != self._owner:
            return  # a process that was forked in the block leaves it: the broker is not its own
        if error is not None:
            if isinstance(error, BaseException):  # confluent-kafka raises a `KafkaError`, which is none, in callbacks
                error.add_note(f"The broker's log:\n{self.last_words}")
            self.kill()
        self.close()

    def _spawn(self, announce: int, lifeline: int) -> subprocess.Popen[bytes]:
        options = ["start", "--data", str(self.data)]
        if self._listen is not None:
            options += ["--listen", self._listen]
        options += ["--announce-fd", str(announce), "--lifeline-fd", str(lifeline)]
        for name, text in texts(self.settings).items():
            options += ["-c", f"{name}={text}"]
        with self._log_path.open("ab") as log:
            return subprocess.Popen(
                [*self.command, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(announce, lifeline),
                start_new_session=True,  # an interrupt of the test must not reach the broker before its teardown does
                env={**os.environ, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"},
            )

    def _take_announcement(self, line: bytes) -> None:
        announcement = json.loads(line)
        self._bootstrap_servers = announcement["bootstrap_servers"]
        self.metrics = announcement.get("metrics")
        if self._listen is not None:
            self._listen = self._bootstrap_servers.split(",")[0]

    def _read_line(self, announced: int, wait_s: float) -> bytes:
        deadline = time.monotonic() + wait_s
        line = b""
        watched = select.poll()  # `select.select` refuses a descriptor above 1023
        watched.register(announced, select.POLLIN)
        while not line.endswith(b"\n") and len(line) < ANNOUNCEMENT_BYTES_MAX:
            left_s = max(deadline - time.monotonic(), 0.0)
            if not watched.poll(left_s * 1000):
                raise self._failure(f"The broker was not ready within {self.ready_s_max:g} s")
            part = os.read(announced, 4096)
            if not part:
                code = self._running().wait(self.stop_s_max)
                raise self._failure(f"The broker ended with code {code} before it was ready")
            line += part
        return line

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise BrokerFailed("The broker is not running.")
        return self._process

    def _forget_process(self) -> None:
        self._process = None
        self._is_ending = self._is_paused = False
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        self._close_announced()

    def _close_announced(self) -> None:
        if self._announced >= 0:
            os.close(self._announced)
            self._announced = -1

    def _failure(self, what: str) -> BrokerFailed:
        return BrokerFailed(f"{what}. It said:\n{self.last_words}")

    @property
    def last_words(self) -> str:
        """The end of its log."""
        return "\n".join(self.log.splitlines()[-LOG_LINES_SHOWN:]) or "(nothing)"


def setting_names(named: Mapping[str, object]) -> dict[str, object]:
    """`log_segment_bytes` is `log.segment.bytes`."""
    return {name.replace("_", "."): value for name, value in named.items()}


def texts(settings: Mapping[str, object]) -> dict[str, str]:
    """Values as a settings file has them."""
    return {name: _text(value) for name, value in settings.items()}


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(map(_text, value))
    return str(value)

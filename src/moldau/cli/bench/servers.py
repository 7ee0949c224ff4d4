"""The server processes under test: embedded brokers, and the baselines.

Each has two pipes: it writes a JSON line with its address to one when it listens, and exits when the other is closed,
so that it never outlives the benchmark.
"""

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from moldau.cli.bench import processes
from moldau.cli.errors import CommandError

READY_S_MAX: Final = 60.0
STOP_S_MAX: Final = 60.0
ANNOUNCEMENT_BYTES_MAX: Final = 65_536
LOG_CHARACTERS_SHOWN: Final = 4_000


class MeasuredServer(Protocol):
    """A server whose CPU time is measured: one process or several."""

    @property
    def metrics(self) -> str | None: ...

    @property
    def bootstrap_servers(self) -> str: ...

    @property
    def address(self) -> tuple[str, int]: ...

    def cpu_s(self) -> float:
        """Return the CPU seconds used so far."""
        ...


class Server:
    """`with Server(...) as server:` runs a server program and stops it at the end of the block."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self.name = name
        self.metrics: str | None = None
        self.bootstrap_servers = ""
        self.started_in_s = 0.0
        self._command = command
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline = -1

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server runs"
        return self._process.pid

    def cpu_s(self) -> float:
        """Return the CPU seconds used so far."""
        return processes.cpu_s(self.pid)

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.bootstrap_servers.split(",")[0].rpartition(":")
        return host, int(port)

    def __enter__(self) -> Self:
        started = time.monotonic()
        announced, announce = os.pipe()
        lifeline, self._lifeline = os.pipe()
        try:
            self._process = self._spawn(announce, lifeline)
        finally:
            os.close(announce)
            os.close(lifeline)
        try:
            self._take(self._read_line(announced))
        except BaseException:
            self.stop()
            raise
        finally:
            os.close(announced)
        self.started_in_s = time.monotonic() - started
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _spawn(self, announce: int, lifeline: int) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [*self._command, "--announce-fd", str(announce), "--lifeline-fd", str(lifeline)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(announce, lifeline),
                start_new_session=True,  # Ctrl-C must not reach it: it exits when its lifeline is closed
            )

    def _read_line(self, announced: int) -> bytes:
        deadline = time.monotonic() + READY_S_MAX
        line = b""
        while not line.endswith(b"\n") and len(line) < ANNOUNCEMENT_BYTES_MAX:
            readable, _, _ = select.select([announced], [], [], max(deadline - time.monotonic(), 0.0))
            part = os.read(announced, 4096) if readable else b""
            if not part:
                raise CommandError(f"{self.name} did not start. Its output:\n{self._output_tail()}")
            line += part
        return line

    def _take(self, line: bytes) -> None:
        announcement = json.loads(line)
        self.bootstrap_servers = announcement["bootstrap_servers"]
        self.metrics = announcement.get("metrics")

    def stop(self) -> None:
        if self._process is None:
            return
        os.close(self._lifeline)
        try:
            self._process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _output_tail(self) -> str:
        with contextlib.suppress(FileNotFoundError):
            return self._log.read_text(errors="replace")[-LOG_CHARACTERS_SHOWN:]
        return "(nothing)"


def broker(folder: Path, settings: Mapping[str, str]) -> Server:
    """Return an embedded broker on a free port of this machine, with its data in `folder`."""
    command = [sys.executable, "-m", "moldau.cli.main", "start", "--data", str(folder / "data")]
    command += ["--listen", "127.0.0.1:0"]
    for name, text in settings.items():
        command += ["-c", f"{name}={text}"]
    return Server("the broker", command, folder / "broker.log")


class Servers:
    """Servers that start together, with their total CPU time."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self.all = servers
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ThreadPoolExecutor(len(self.all)) as threads:
            starts = [threads.submit(self._stack.enter_context, server) for server in self.all]
        try:
            for start in starts:
                start.result()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with ThreadPoolExecutor(len(self.all)) as threads:
            list(threads.map(Server.stop, self.all))

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(server.bootstrap_servers for server in self.all)

    @property
    def address(self) -> tuple[str, int]:
        return self.all[0].address

    @property
    def metrics(self) -> str | None:
        return self.all[0].metrics

    def cpu_s(self) -> float:
        return sum(server.cpu_s() for server in self.all)


def node(settings_file: Path, log: Path) -> Server:
    """Return one node of an embedded cluster."""
    command = [sys.executable, "-m", "moldau.cli.main", "start", "--config", str(settings_file)]
    return Server(f"the node of {settings_file}", command, log)


def baseline(script: str, logs: Path, scripts: Path, **options: object) -> Server:
    command = [sys.executable, str(scripts / f"{script}.py")]
    for name, value in options.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    return Server(f"the baseline {script}", command, logs / f"{script}.log")

"""The supervisor of `moldau up`: starts every node as a process, passes on its log lines, and stops it at the end.

A node and its supervisor share two pipes. On the announcement pipe the node writes one JSON line when it is ready.
Nothing is written to the lifeline pipe: it reaches end of file when the supervisor dies for any reason, and the node
shuts down. So no node outlives its supervisor.
"""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from moldau.cli.errors import CommandError
from moldau.cli.local.layout import LocalCluster, LocalNode

LATE_S: Final = 60.0  # a slower start is reported, but not aborted
STOP_S_MAX: Final = 30.0
PAUSE_S_FIRST: Final = 0.5  # before a node is restarted
PAUSE_S_MAX: Final = 30.0
STEADY_S: Final = 60.0  # after this uptime the restart pause is reset to the first one
LINE_BYTES_MAX: Final = 1 << 20
ANNOUNCEMENT_BYTES_MAX: Final = 65_536
PROGRAM: Final = (sys.executable, "-m", "moldau.cli.main")

Print = Callable[[str], None]


class RunningNode(NamedTuple):
    """A node that is ready; `metrics` is the URL of its metrics, if it has one."""

    node: LocalNode
    pid: int
    metrics: str | None


@dataclass(slots=True)
class _NodeProcess:
    """One process of a node, and our end of its lifeline."""

    process: Process
    lifeline: int
    started_s: float
    metrics: str | None = None


class Supervisor:
    """`run` starts all nodes, and returns after SIGTERM or SIGINT when all of them have stopped."""

    def __init__(
        self,
        cluster: LocalCluster,
        *,
        note: Print,
        log: Print,
        restarts: bool = False,
        program: Sequence[str] = PROGRAM,
    ) -> None:
        """`note` prints messages of the supervisor, `log` the nodes' own log lines."""
        self._cluster = cluster
        self._note, self._log = note, log
        self._restarts = restarts
        self._program = program
        self._processes: dict[int, _NodeProcess] = {}
        self._starting = {node.node_id for node in cluster.nodes}
        self._stopping = asyncio.Event()
        self._failure: CommandError | None = None

    async def run(self, announce: Callable[[list[RunningNode]], None]) -> None:
        """Call `announce` once all nodes are ready. Raise if a node cannot start, or if none is left."""
        self._announce = announce
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        reminder = loop.call_later(LATE_S, self._report_late_nodes)
        supervision = asyncio.gather(*(self._supervise(node) for node in self._cluster.nodes))
        stopping = loop.create_task(self._stopping.wait())
        either: set[asyncio.Future[Any]] = {supervision, stopping}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            is_requested = self._stopping.is_set()
        finally:
            reminder.cancel()
            self._stopping.set()
            await self._stop_all(supervision)
            stopping.cancel()
        if self._failure is not None or not is_requested:
            raise self._failure or CommandError("no node is left")

    # ── One node ──

    async def _supervise(self, node: LocalNode) -> None:
        """Run the node's process; with `restarts`, start another one whenever it exits."""
        pause_s = PAUSE_S_FIRST
        while True:
            running = await self._start(node)
            code = await self._pass_on_log(node, running)
            if self._stopping.is_set():
                return
            if node.node_id in self._starting:
                self._fail(CommandError(f"node {node.node_id} did not start: it {_describe_exit(code)}"))
                return
            exited = f"node {node.node_id} {_describe_exit(code)}"
            if not self._restarts:
                self._note(f"{exited} and stays down. To restart it: moldau start --config {node.settings_file}")
                return
            is_steady = asyncio.get_running_loop().time() - running.started_s > STEADY_S
            pause_s = PAUSE_S_FIRST if is_steady else pause_s
            self._note(f"{exited} and restarts in {pause_s:g} s")
            if await self._is_stopped_within(pause_s):
                return
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    async def _start(self, node: LocalNode) -> _NodeProcess:
        announced, announce = os.pipe()
        lifeline, ours = os.pipe()
        try:
            process = await self._spawn(node, announce, lifeline)
        finally:
            os.close(announce)
            os.close(lifeline)
        loop = asyncio.get_running_loop()
        running = self._processes[node.node_id] = _NodeProcess(process, ours, loop.time())
        loop.add_reader(announced, self._on_announcement, node, running, announced)
        if self._stopping.is_set():  # requested while the process was being started
            _send(process, signal.SIGTERM)
        return running

    async def _spawn(self, node: LocalNode, announce: int, lifeline: int) -> Process:
        options = ["start", "--config", str(node.settings_file)]
        options += ["--announce-fd", str(announce), "--lifeline-fd", str(lifeline)]
        return await asyncio.create_subprocess_exec(
            *self._program,
            *options,
            stdin=DEVNULL,
            stdout=DEVNULL,  # the node's announcement; the supervisor prints one for all nodes
            stderr=PIPE,
            pass_fds=(announce, lifeline),
            start_new_session=True,  # Ctrl-C reaches the supervisor alone, which then stops the nodes
            limit=LINE_BYTES_MAX,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )

    async def _pass_on_log(self, node: LocalNode, running: _NodeProcess) -> int:
        """Print the node's log lines until it exits; return its exit code."""
        lines = running.process.stderr
        assert lines is not None
        while True:
            try:
                line = await lines.readline()
            except ValueError:
                continue  # longer than LINE_BYTES_MAX
            if not line:
                break
            self._log(f"[{node.node_id}] {line.decode(errors='replace').rstrip()}")
        code = await running.process.wait()
        os.close(running.lifeline)
        del self._processes[node.node_id]
        return code

    def _on_announcement(self, node: LocalNode, running: _NodeProcess, descriptor: int) -> None:
        line = os.read(descriptor, ANNOUNCEMENT_BYTES_MAX)
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)
        if not line:
            return  # it exited before it was ready
        running.metrics = json.loads(line)["metrics"]
        if node.node_id not in self._starting:
            self._note(f"node {node.node_id} serves again (pid {running.process.pid})")
            return
        self._starting.discard(node.node_id)
        if not self._starting and not self._stopping.is_set():
            self._announce(self._running_nodes())

    def _running_nodes(self) -> list[RunningNode]:
        return [
            RunningNode(node, running.process.pid, running.metrics)
            for node in self._cluster.nodes
            if (running := self._processes.get(node.node_id)) is not None
        ]

    def _report_late_nodes(self) -> None:
        """Recovery after a crash may take long; a node that cannot start exits by itself."""
        if self._starting:
            late = ", ".join(map(str, sorted(self._starting)))
            self._note(f"not ready within {LATE_S:g} s, still waiting: node {late}")

    async def _is_stopped_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return False
        return True

    # ── Shutdown ──

    def _on_signal(self) -> None:
        if self._stopping.is_set():  # the second Ctrl-C
            for running in self._processes.values():
                _send(running.process, signal.SIGKILL)
        self._stopping.set()

    def _fail(self, failure: CommandError) -> None:
        self._failure = self._failure or failure
        self._stopping.set()

    async def _stop_all(self, supervision: "asyncio.Future[list[None]]") -> None:
        """Send SIGTERM to all nodes, and SIGKILL to those that have not stopped in time."""
        for running in self._processes.values():
            _send(running.process, signal.SIGTERM)
        _, late = await asyncio.wait({supervision}, timeout=STOP_S_MAX)
        for node_id, running in self._processes.items() if late else ():
            self._note(f"node {node_id} did not stop within {STOP_S_MAX:g} s: killing it")
            _send(running.process, signal.SIGKILL)
        await supervision


def _send(process: Process, number: signal.Signals) -> None:
    if process.returncode is None:
        process.send_signal(number)


def _describe_exit(code: int) -> str:
    return f"exited with code {code}" if code >= 0 else f"was killed ({signal.Signals(-code).name})"

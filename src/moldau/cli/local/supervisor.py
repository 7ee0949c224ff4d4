"""Runs the nodes of a local cluster as processes: their log lines come out here, and they end when it ends."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from moldau.cli.errors import CommandError
from moldau.cli.local.layout import LocalCluster, LocalNode

LATE_S: Final = 60.0  # a node that takes longer to serve is told of, and waited for
STOP_S_MAX: Final = 30.0
PAUSE_S_FIRST: Final = 0.5  # before a node is started again
PAUSE_S_MAX: Final = 30.0
STEADY_S: Final = 60.0  # a node that lived this long begins with the first pause again
LINE_BYTES_MAX: Final = 1 << 20
ANNOUNCEMENT_BYTES_MAX: Final = 65_536
PROGRAM: Final = (sys.executable, "-m", "moldau.cli.main")

Say = Callable[[str], None]


@dataclass(slots=True)
class _Life:
    """One process of a node, and the pipe whose end ends it if we die."""

    process: Process
    lifeline: int
    began_s: float


class Supervisor:
    """`run` starts all nodes and returns when it was told to end (SIGTERM, SIGINT) and all of them have."""

    def __init__(
        self, cluster: LocalCluster, *, say: Say, log: Say, restarts: bool = False, program: Sequence[str] = PROGRAM
    ) -> None:
        """`say` is for what the supervisor has to tell, `log` for the nodes' own lines."""
        self._cluster = cluster
        self._say, self._log = say, log
        self._restarts = restarts
        self._program = program
        self._lives: dict[int, _Life] = {}
        self._awaited = {node.node_id for node in cluster.nodes}
        self._ending = asyncio.Event()
        self._failure: CommandError | None = None

    async def run(self, announce: Callable[[], None]) -> None:
        """`announce` is called once all nodes serve. Raises if they cannot, or when none is left."""
        self._announce = announce
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._interrupted)
        reminder = loop.call_later(LATE_S, self._tell_who_is_late)
        keeping = asyncio.gather(*(self._keep(node) for node in self._cluster.nodes))
        ending = loop.create_task(self._ending.wait())
        either: set[asyncio.Future[Any]] = {keeping, ending}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            was_told = self._ending.is_set()
        finally:
            reminder.cancel()
            self._ending.set()
            await self._stop_all(keeping)
            ending.cancel()
        if self._failure is not None or not was_told:
            raise self._failure or CommandError("no node is left")

    # The lives of one node

    async def _keep(self, node: LocalNode) -> None:
        """One life after the other, if that is wanted; otherwise one."""
        pause_s = PAUSE_S_FIRST
        while True:
            life = await self._begin(node)
            code = await self._live(node, life)
            if self._ending.is_set():
                return
            if node.node_id in self._awaited:
                self._fail(CommandError(f"node {node.node_id} did not start: it {_how(code)}"))
                return
            if not self._restarts:
                self._say(f"{_ended(node, code)} and stays down. To have it back: {_by_hand(node)}")
                return
            is_steady = asyncio.get_running_loop().time() - life.began_s > STEADY_S
            pause_s = PAUSE_S_FIRST if is_steady else pause_s
            self._say(f"{_ended(node, code)} and is started again in {pause_s:g} s")
            if await self._is_told_within(pause_s):
                return
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    async def _begin(self, node: LocalNode) -> _Life:
        announced, announce = os.pipe()
        lifeline, ours = os.pipe()
        try:
            process = await self._spawn(node, announce, lifeline)
        finally:
            os.close(announce)
            os.close(lifeline)
        loop = asyncio.get_running_loop()
        life = self._lives[node.node_id] = _Life(process, ours, loop.time())
        loop.add_reader(announced, self._announced, node, announced)
        if self._ending.is_set():  # told while it was being started
            _send(process, signal.SIGTERM)
        return life

    async def _spawn(self, node: LocalNode, announce: int, lifeline: int) -> Process:
        options = ["start", "--config", str(node.settings_file)]
        options += ["--announce-fd", str(announce), "--lifeline-fd", str(lifeline)]
        return await asyncio.create_subprocess_exec(
            *self._program,
            *options,
            stdin=DEVNULL,
            stdout=DEVNULL,  # what it says there, we say for all of them
            stderr=PIPE,
            pass_fds=(announce, lifeline),
            start_new_session=True,  # Ctrl-C is for us: it is we who stop the nodes
            limit=LINE_BYTES_MAX,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )

    async def _live(self, node: LocalNode, life: _Life) -> int:
        """Pass on what it says until it ends."""
        lines = life.process.stderr
        assert lines is not None
        while True:
            try:
                line = await lines.readline()
            except ValueError:
                continue  # longer than any line should be
            if not line:
                break
            self._log(f"[{node.node_id}] {line.decode(errors='replace').rstrip()}")
        code = await life.process.wait()
        os.close(life.lifeline)
        del self._lives[node.node_id]
        return code

    def _announced(self, node: LocalNode, descriptor: int) -> None:
        line = os.read(descriptor, ANNOUNCEMENT_BYTES_MAX)
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)
        if not line:
            return  # it ended before it served
        if node.node_id not in self._awaited:
            self._say(f"node {node.node_id} serves again")
            return
        self._awaited.discard(node.node_id)
        if not self._awaited and not self._ending.is_set():
            self._announce()

    def _tell_who_is_late(self) -> None:
        """After a crash a node may have much to read again; one that cannot serve ends by itself."""
        if self._awaited:
            late = ", ".join(map(str, sorted(self._awaited)))
            self._say(f"not ready within {LATE_S:g} s, still waiting: node {late}")

    async def _is_told_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._ending.wait(), seconds)
        except TimeoutError:
            return False
        return True

    # The end

    def _interrupted(self) -> None:
        if self._ending.is_set():  # asked twice: no more patience
            for life in self._lives.values():
                _send(life.process, signal.SIGKILL)
        self._ending.set()

    def _fail(self, failure: CommandError) -> None:
        self._failure = self._failure or failure
        self._ending.set()

    async def _stop_all(self, keeping: "asyncio.Future[list[None]]") -> None:
        """Ask all nodes to end, and do not wait for ever."""
        for life in self._lives.values():
            _send(life.process, signal.SIGTERM)
        _, late = await asyncio.wait({keeping}, timeout=STOP_S_MAX)
        for node_id, life in self._lives.items() if late else ():
            self._say(f"node {node_id} did not end within {STOP_S_MAX:g} s and is killed")
            _send(life.process, signal.SIGKILL)
        await keeping


def _send(process: Process, number: signal.Signals) -> None:
    if process.returncode is None:
        process.send_signal(number)


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    return f"was killed ({signal.Signals(-code).name})"


def _ended(node: LocalNode, code: int) -> str:
    return f"node {node.node_id} {_how(code)}"


def _by_hand(node: LocalNode) -> str:
    return f"moldau start --config {node.settings_file}"

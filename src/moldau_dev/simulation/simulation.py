"""A world of simulated hosts: programs run on them, crash, lose power and restart, all from one seed.

def script(simulation: Simulation) -> Coroutine[Any, Any, None]: ...
outcome = replay(script, seed=7)            # runs twice; the traces must be equal
outcome.check()                             # a run without faults or acknowledged writes is inconclusive
"""

import contextvars
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from moldau.model.ports import Ports
from moldau.storage.files import SyncFailed
from moldau.testing.clock import SimulatedClock
from moldau.testing.disk import SimulatedDisk
from moldau.testing.network import SimulatedNetwork
from moldau.testing.trace import Trace
from moldau_dev.simulation.executor import SimulatedExecutor
from moldau_dev.simulation.log_capture import LogCapture
from moldau_dev.simulation.loop import START_S, SimulatedLoop, SimulationFailed
from moldau_dev.simulation.process import SimulatedProcess, process_in

Result = TypeVar("Result")

# Minimums for a conclusive run.
VIRTUAL_S_MIN: Final = 60.0
ACKNOWLEDGED_MIN: Final = 200
FAULTS_MIN: Final = 3

EVENTS_SHOWN: Final = 40


class Inconclusive(SimulationFailed):
    """The run proves nothing: it could not have failed."""


Program = Callable[[Ports], Coroutine[Any, Any, Any]]
Script = Callable[["Simulation"], Coroutine[Any, Any, None]]


class Host:
    """A machine: its disk and name outlive its processes, which run one at a time."""

    def __init__(self, simulation: "Simulation", name: str) -> None:
        self.name = name
        self.disk = SimulatedDisk(simulation.rng(f"{name} disk"), trace=simulation.trace, name=name)
        self.disk.on_crash = self._died_in_io
        self.clock = SimulatedClock(simulation.loop.now_ms)
        self.starts = 0
        self.slowness = 1.0  # factor for the duration of disk and thread work
        self._simulation = simulation
        self._process: SimulatedProcess | None = None
        self._program: Program | None = None
        self._running: Any = None  # the result of the program

    @property
    def is_up(self) -> bool:
        return self._process is not None and self._process.is_alive

    async def start(self, program: Program) -> Any:
        """Run a program until it returns; a server returns once it is ready, and its tasks keep running.

        Raises `Crashed` if the process is killed first.
        """
        if self.is_up:
            raise RuntimeError(f"{self.name} is already running")
        self._program = program
        self.starts += 1
        self._process = SimulatedProcess(f"{self.name}#{self.starts}")
        self._simulation.trace.record("start", self._process.name)
        self._running = await self._simulation.loop.run_as(self._process, program(self._ports()))
        return self._running

    async def restart(self) -> Any:
        """Run the same program again, as a new process."""
        if self._program is None:
            raise RuntimeError(f"{self.name} has no program to restart")
        return await self.start(self._program)

    async def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine in the process, such as the `stop` of a node."""
        if self._process is None:
            raise RuntimeError(f"no process runs on {self.name}")
        return await self._simulation.loop.run_as(self._process, work)

    async def stop(self) -> None:
        """Shut down the process by the `stop` of what its program returned, at most once per process."""
        if self._process is None or not self._process.is_alive or self._process.is_stopping:
            raise RuntimeError(f"{self.name} is not running or already stopping")
        self._process.is_stopping = True
        await self.run(self._running.stop())
        self.exit()

    def crash(self) -> None:
        """Kill the process like kill -9: its writes stay."""
        if self.is_up:
            self._simulation.count("crash", self.name)
            self._end()
            self.disk.crash()
            self._simulation.network.crash(self.name)

    def power_loss(self) -> None:
        """Cut the power of the machine: unsynced writes may be lost, and peers get no reset."""
        if self.is_up:
            self._simulation.count("power loss", self.name)
            self._end()
            self.disk.power_loss()
            self._simulation.network.crash(self.name, silently=True)

    def pause(self) -> None:
        """Freeze the process like SIGSTOP: its connections stay open, requests time out."""
        if self.is_up and self._process is not None and self._process.held is None:
            self._simulation.count("pause", self.name)
            self._simulation.loop.pause(self._process)

    def resume(self) -> None:
        if self._process is not None:
            self._simulation.loop.resume(self._process)

    @property
    def is_paused(self) -> bool:
        return self._process is not None and self._process.held is not None

    @property
    def is_stopping(self) -> bool:
        return self.is_up and self._process is not None and self._process.is_stopping

    def exit(self) -> None:
        """End the process normally, after its shutdown."""
        if self.is_up:
            self._end()
            self.disk.crash()
            self._simulation.network.crash(self.name)

    def _ports(self) -> Ports:
        rng = self._simulation.rng(f"{self.name} process {self.starts}")
        disk = self.disk.mount()
        executor_rng = self._simulation.rng(f"{self.name} executor {self.starts}")
        executor = SimulatedExecutor(
            self._simulation.loop, executor_rng, disk, lambda: self.slowness, lambda: self.disk.is_hanging
        )
        return Ports(self.clock, rng, executor, disk, self._simulation.network.host(self.name))

    def _end(self) -> None:
        if self._process is not None:
            self._simulation.loop.kill(self._process)

    def _died_in_io(self, loses_power: bool) -> None:
        self._simulation.count("power loss in I/O" if loses_power else "crash in I/O", self.name)
        self._end()
        self._simulation.network.crash(self.name, silently=loses_power)


class Simulation:
    """One run: everything in it is determined by the seed."""

    def __init__(self, seed: int, *, listener: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.loop = SimulatedLoop()
        self.trace = self.loop.trace = Trace(self.loop.now_ms, listener=listener)
        self.network = SimulatedNetwork(self.loop, self.rng("network"), self.trace)
        self.hosts: dict[str, Host] = {}
        self.acknowledged = 0  # the script counts its acknowledged writes here
        self.disks_fail = False  # set by scripts that break disks: nodes may then log errors and exit
        self.tally: Counter[str] = Counter()  # counts of other events, such as elections and truncations
        self._fired: Counter[str] = Counter()

    def rng(self, purpose: str) -> random.Random:
        """Return a generator of its own for each purpose, so that a draw for one does not change the others.

        The purpose is part of the seed: a renamed purpose makes another run of every seed.
        """
        return random.Random(f"{self.seed} {purpose}")

    def host(self, name: str) -> Host:
        if name not in self.hosts:
            self.network.host(name)
            self.hosts[name] = Host(self, name)
        return self.hosts[name]

    @property
    def now_s(self) -> float:
        """Virtual seconds since the start."""
        return self.loop.time() - START_S

    @property
    def fired(self) -> Counter[str]:
        """The number of faults that fired, by name."""
        fired = self._fired + self.network.fired
        for host in self.hosts.values():
            ends = {"crash", "power loss"}  # counted by the host
            fired.update({fault: count for fault, count in host.disk.fired.items() if fault not in ends})
        return fired

    def count(self, fault: str, detail: str) -> None:
        self._fired[fault] += 1
        self.trace.record(fault, detail)

    def fail(self, what: str, error: BaseException | None = None) -> None:
        """Fail the run as soon as the current callback returns. Failures in killed processes are ignored."""
        if not self.is_in_dead_process():
            self.loop.call_exception_handler({"message": what, "exception": error})

    def is_in_dead_process(self) -> bool:
        """Whether the current callback only cleans up a killed process."""
        process = process_in(contextvars.copy_context())
        return process is not None and not process.is_alive

    def is_expected(self, error: BaseException | None) -> bool:
        """Whether a node may log this error: disk errors where disks fail, never bugs."""
        return self.disks_fail and (error is None or isinstance(error, OSError | SyncFailed))

    def run(self, script: Script, *, virtual_s_max: float = 86_400.0) -> "Outcome":
        """Run the script. A failure carries the seed, the last events and the log as notes."""
        log = LogCapture(lambda: self.now_s, self.fail, self.is_expected)
        try:
            with log.capture():
                self.loop.run(script(self), virtual_s_max=virtual_s_max)
        except Exception as error:
            error.add_note(f"seed {self.seed}, after {self.now_s:.3f} virtual seconds; faults: {dict(self.fired)}")
            error.add_note("last events:\n" + "\n".join(list(self.trace.recent)[-EVENTS_SHOWN:]))
            error.add_note("log:\n" + "\n".join(log.lines))
            raise
        return Outcome(
            self.seed,
            self.trace.hash(),
            self.now_s,
            self.trace.event_count,
            self.acknowledged,
            dict(self.fired),
            dict(self.tally),
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run."""

    seed: int
    trace_hash: str
    virtual_s: float
    events: int
    acknowledged: int
    faults: dict[str, int]
    tally: dict[str, int] = field(default_factory=dict)

    def check(
        self,
        *,
        virtual_s_min: float = VIRTUAL_S_MIN,
        acknowledged_min: int = ACKNOWLEDGED_MIN,
        faults_min: int = FAULTS_MIN,
    ) -> None:
        """Raise `Inconclusive` for a run with too little time, too few writes or too few faults."""
        fired = sum(self.faults.values())
        if self.virtual_s < virtual_s_min or self.acknowledged < acknowledged_min or fired < faults_min:
            raise Inconclusive(
                f"seed {self.seed} is inconclusive: {self.virtual_s:.1f} virtual seconds of {virtual_s_min:.0f},"
                f" {self.acknowledged} acknowledged writes of {acknowledged_min}, {fired} faults of {faults_min}"
            )


def replay(script: Script, seed: int, *, virtual_s_max: float = 86_400.0) -> Outcome:
    """Run a seed twice; raise an error with the first difference if the runs differ."""
    first, second = (Simulation(seed).run(script, virtual_s_max=virtual_s_max) for _ in range(2))
    if first != second:
        raise SimulationFailed(f"seed {seed} is not deterministic: {_first_difference(script, seed, virtual_s_max)}")
    return first


def _first_difference(script: Script, seed: int, virtual_s_max: float) -> str:
    runs: list[list[str]] = [[], []]
    for lines in runs:
        Simulation(seed, listener=lines.append).run(script, virtual_s_max=virtual_s_max)
    for number, (one, another) in enumerate(zip(*runs, strict=False)):
        if one != another:
            before = "\n".join(runs[0][max(number - 5, 0) : number])
            return f"event {number}, after\n{before}\nis either\n{one}\nor\n{another}"
    return f"the runs have {len(runs[0])} and {len(runs[1])} events"

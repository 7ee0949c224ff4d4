"""A world of simulated hosts: programs run on them as nodes do, die, lose power and start again, all from one seed.

def script(simulation: Simulation) -> Coroutine[Any, Any, None]: ...
outcome = replay(script, seed=7)            # twice; the traces must agree
outcome.check()                             # a run without faults or acknowledged writes counts for nothing
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
from moldau_dev.simulation.lifetime import Life, life_in
from moldau_dev.simulation.log_capture import Overheard
from moldau_dev.simulation.loop import START_S, SimulatedLoop, SimulationFailed

Result = TypeVar("Result")

# What makes a seed count.
VIRTUAL_S_MIN: Final = 60.0
ACKNOWLEDGED_MIN: Final = 200
FAULTS_MIN: Final = 3

EVENTS_SHOWN: Final = 40


class Unknown(SimulationFailed):
    """The run proves nothing: it could not have failed."""


Program = Callable[[Ports], Coroutine[Any, Any, Any]]
Script = Callable[["Simulation"], Coroutine[Any, Any, None]]


class Host:
    """A machine: its disk and its name outlive the processes that run on it, one at a time."""

    def __init__(self, simulation: "Simulation", name: str) -> None:
        self.name = name
        self.disk = SimulatedDisk(simulation.chance(f"{name} disk"), trace=simulation.trace, name=name)
        self.disk.on_crash = self._died_in_io
        self.clock = SimulatedClock(simulation.loop.now_ms)
        self.starts = 0
        self.slowness = 1.0  # of its disk and its other threads, syncs above all
        self._simulation = simulation
        self._life: Life | None = None
        self._program: Program | None = None
        self._running: Any = None  # what the program returned

    @property
    def is_up(self) -> bool:
        return self._life is not None and self._life.is_alive

    async def start(self, program: Program) -> Any:
        """Run a program until it returns, which for a server means: until it is ready. Its tasks then run on.

        Raises `Crashed` if the process is killed before that.
        """
        if self.is_up:
            raise RuntimeError(f"{self.name} is running already")
        self._program = program
        self.starts += 1
        self._life = Life(f"{self.name}#{self.starts}")
        self._simulation.trace.record("start", self._life.name)
        self._running = await self._simulation.loop.run_as(self._life, program(self._ports()))
        return self._running

    async def restart(self) -> Any:
        """Run the same program again, as a new process."""
        if self._program is None:
            raise RuntimeError(f"{self.name} never ran anything")
        return await self.start(self._program)

    async def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run something more in the process, a node's `stop` for one."""
        if self._life is None:
            raise RuntimeError(f"nothing runs on {self.name}")
        return await self._simulation.loop.run_as(self._life, work)

    async def stop(self) -> None:
        """End the process well: by the `stop` of what its program returned, which is asked for once in a life."""
        if self._life is None or not self._life.is_alive or self._life.is_stopping:
            raise RuntimeError(f"{self.name} does not run, or is stopping already")
        self._life.is_stopping = True
        await self.run(self._running.stop())
        self.exit()

    def crash(self) -> None:
        """Kill the process, as kill -9 does: what it wrote stays."""
        if self.is_up:
            self._simulation.count("crash", self.name)
            self._end()
            self.disk.crash()
            self._simulation.network.crash(self.name)

    def power_loss(self) -> None:
        """The whole machine goes dark: what was not synced may be gone, and nobody is told."""
        if self.is_up:
            self._simulation.count("power loss", self.name)
            self._end()
            self.disk.power_loss()
            self._simulation.network.crash(self.name, silently=True)

    def pause(self) -> None:
        """Freeze the process, as SIGSTOP does: its connections stay open and nothing answers."""
        if self.is_up and self._life is not None and self._life.held is None:
            self._simulation.count("pause", self.name)
            self._simulation.loop.pause(self._life)

    def resume(self) -> None:
        if self._life is not None:
            self._simulation.loop.resume(self._life)

    @property
    def is_paused(self) -> bool:
        return self._life is not None and self._life.held is not None

    @property
    def is_stopping(self) -> bool:
        return self.is_up and self._life is not None and self._life.is_stopping

    def exit(self) -> None:
        """The process ends by itself, after whatever it did to end well."""
        if self.is_up:
            self._end()
            self.disk.crash()
            self._simulation.network.crash(self.name)

    def _ports(self) -> Ports:
        chance = self._simulation.chance(f"{self.name} process {self.starts}")
        disk = self.disk.mount()
        chance_of_executor = self._simulation.chance(f"{self.name} executor {self.starts}")
        executor = SimulatedExecutor(self._simulation.loop, chance_of_executor, disk, lambda: self.slowness)
        return Ports(self.clock, chance, executor, disk, self._simulation.network.host(self.name))

    def _end(self) -> None:
        if self._life is not None:
            self._simulation.loop.kill(self._life)

    def _died_in_io(self, loses_power: bool) -> None:
        self._simulation.count("power loss in I/O" if loses_power else "crash in I/O", self.name)
        self._end()
        self._simulation.network.crash(self.name, silently=loses_power)


class Simulation:
    """Everything that one seed decides."""

    def __init__(self, seed: int, *, listener: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.loop = SimulatedLoop()
        self.trace = self.loop.trace = Trace(self.loop.now_ms, listener=listener)
        self.network = SimulatedNetwork(self.loop, self.chance("network"), self.trace)
        self.hosts: dict[str, Host] = {}
        self.acknowledged = 0  # the script counts its acknowledged writes here
        self.disks_fail = False  # a script that breaks disks says so: then nodes may complain and give up
        self.tally: Counter[str] = Counter()  # what else happened and is worth a number: elections, truncations
        self._fired: Counter[str] = Counter()

    def chance(self, purpose: str) -> random.Random:
        """A source of randomness of its own for each purpose, so that one more draw here changes nothing there."""
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
        """Every fault that struck, by name."""
        fired = self._fired + self.network.fired
        for host in self.hosts.values():
            ends = {"crash", "power loss"}  # the host has counted those
            fired.update({fault: count for fault, count in host.disk.fired.items() if fault not in ends})
        return fired

    def count(self, fault: str, detail: str) -> None:
        self._fired[fault] += 1
        self.trace.record(fault, detail)

    def fail(self, what: str, error: BaseException | None = None) -> None:
        """End the run as a failure, as soon as what runs now has returned. The dead may say what they like."""
        if not self.is_posthumous():
            self.loop.call_exception_handler({"message": what, "exception": error})

    def is_posthumous(self) -> bool:
        """Whether what runs now is only the cleaning up of a process that was killed."""
        life = life_in(contextvars.copy_context())
        return life is not None and not life.is_alive

    def is_expected(self, error: BaseException | None) -> bool:
        """Whether a node may log this as an error: where disks fail it should; a bug is never expected."""
        return self.disks_fail and (error is None or isinstance(error, OSError | SyncFailed))

    def run(self, script: Script, *, virtual_s_max: float = 86_400.0) -> "Outcome":
        """Run the script to its end. What fails says the seed and the last events."""
        overheard = Overheard(lambda: self.now_s, self.fail, self.is_expected)
        try:
            with overheard.listening():
                self.loop.run(script(self), virtual_s_max=virtual_s_max)
        except Exception as error:
            error.add_note(f"seed {self.seed}, after {self.now_s:.3f} virtual seconds; faults: {dict(self.fired)}")
            error.add_note("last events:\n" + "\n".join(list(self.trace.recent)[-EVENTS_SHOWN:]))
            error.add_note("log:\n" + "\n".join(overheard.lines))
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
    """What a run came to."""

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
        """Refuse a run that was too short, too quiet or too harmless to prove anything."""
        fired = sum(self.faults.values())
        if self.virtual_s < virtual_s_min or self.acknowledged < acknowledged_min or fired < faults_min:
            raise Unknown(
                f"seed {self.seed} counts for nothing: {self.virtual_s:.1f} virtual seconds of {virtual_s_min:.0f},"
                f" {self.acknowledged} acknowledged writes of {acknowledged_min}, {fired} faults of {faults_min}"
            )


def replay(script: Script, seed: int, *, virtual_s_max: float = 86_400.0) -> Outcome:
    """Run a seed twice. If the two are not the same run, say where they part."""
    first, second = (Simulation(seed).run(script, virtual_s_max=virtual_s_max) for _ in range(2))
    if first != second:
        raise SimulationFailed(f"seed {seed} is not one run but two: {_parting(script, seed, virtual_s_max)}")
    return first


def _parting(script: Script, seed: int, virtual_s_max: float) -> str:
    runs: list[list[str]] = [[], []]
    for lines in runs:
        Simulation(seed, listener=lines.append).run(script, virtual_s_max=virtual_s_max)
    for number, (one, another) in enumerate(zip(*runs, strict=False)):
        if one != another:
            before = "\n".join(runs[0][max(number - 5, 0) : number])
            return f"event {number}, after\n{before}\nis\n{one}\nor\n{another}"
    return f"one has {len(runs[0])} events, the other {len(runs[1])}"

"""Faults of a cluster, injected into a partition leader, a follower, the active controller, several nodes or all."""

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from moldau.testing.disk import CAPACITY_BYTES, Crashed, DiskFaults, When
from moldau.testing.network import NetworkFaults
from moldau_dev.simulation.faults import IO_POINTS_AHEAD_MAX
from moldau_dev.simulation.loop import SimulationFailed
from moldau_dev.simulation.simulation import Host, Simulation

START_ATTEMPTS_MAX: Final = 50
STOP_S_MAX: Final = 120.0
HELD_APIS: Final = (0, 1, 52, 53, 56, 63)  # Produce, Fetch, Vote, BeginQuorumEpoch, AlterPartition, BrokerHeartbeat
ROOM_BYTES_MAX: Final = 5_000
SLOWNESS: Final = (10.0, 100.0, 400.0)


class ClusterFault(Enum):
    """The kinds of faults of a cluster."""

    CLEAN_RESTART = "clean restart"
    CRASH = "crash"
    CRASH_IN_IO = "crash in I/O"
    CRASH_ALL = "crash of all"
    CRASH_MANY = "crash of many"
    POWER_LOSS = "power loss"
    POWER_LOSS_IN_IO = "power loss in I/O"
    POWER_LOSS_ALL = "power loss of all"
    PAUSE = "pause"
    RESET = "reset"
    CUT_ONE_WAY = "cut one way"
    CUT_BOTH_WAYS = "cut both ways"
    ISOLATE_NODE = "isolate a node"
    SPLIT = "split"
    ISOLATE_ONE_WAY = "isolate one way"
    BLOCK = "block"
    SLOW_NETWORK = "slow network"
    LOSSY_NETWORK = "lossy network"
    HOLD_REQUESTS = "hold requests"
    SHORT_WRITES = "short writes"
    COLD_READS = "cold reads"
    SLOW_DISK = "slow disk"
    CLOCK_JUMP = "clock jump"
    FAILED_SYNC = "failed fsync"
    DISK_FULL = "disk full"


DISK_FAULTS: Final = (ClusterFault.FAILED_SYNC, ClusterFault.DISK_FULL)
POWER_FAULTS: Final = (ClusterFault.POWER_LOSS, ClusterFault.POWER_LOSS_IN_IO, ClusterFault.POWER_LOSS_ALL)
PROCESS_FAULTS: Final = tuple(each for each in ClusterFault if each not in (*DISK_FAULTS, *POWER_FAULTS))
# For contested elections: voters that restart at once, and candidates that cannot reach each other.
ELECTION_FAULTS: Final = (
    ClusterFault.CRASH,
    ClusterFault.CRASH_MANY,
    ClusterFault.CRASH_IN_IO,
    ClusterFault.PAUSE,
    ClusterFault.SLOW_DISK,
    ClusterFault.CUT_ONE_WAY,
    ClusterFault.CUT_BOTH_WAYS,
    ClusterFault.SPLIT,
    ClusterFault.RESET,
    ClusterFault.SLOW_NETWORK,
    ClusterFault.HOLD_REQUESTS,
)


FaultInjector = Callable[[Callable[[], bool]], Coroutine[None, None, None]]
"""Injects further faults while the chaos is active; the nodes it kills are restarted with the others."""


class Target(Enum):
    """The node that a fault is meant for."""

    ANY = "any"
    LEADER = "leader"
    FOLLOWER = "follower"
    CONTROLLER = "controller"


class NodeFinder(Protocol):
    """Finds the host that currently has a role; None if there is none."""

    def find(self, target: Target, rng: random.Random) -> str | None: ...


@dataclass(frozen=True, slots=True)
class FaultMix:
    """The faults of a seed, their rate and their duration."""

    faults: tuple[ClusterFault, ...]
    pause_s_mean: float
    outage_s_max: float
    parallelism: int  # faults injected at the same time

    @classmethod
    def draw(
        cls, rng: random.Random, allowed: Sequence[ClusterFault], always: Sequence[ClusterFault], *, is_rapid: bool
    ) -> "FaultMix":
        kinds = rng.sample(list(allowed), rng.randint(2, len(allowed)))
        faults = tuple(dict.fromkeys((*always, *kinds)))
        if is_rapid:
            return cls(faults, rng.uniform(0.2, 1.0), rng.choice((0.03, 0.2, 1.0)), rng.choice((1, 1, 2)))
        return cls(faults, rng.uniform(0.5, 5.0), rng.choice((0.3, 2.0, 12.0)), rng.choice((1, 1, 2)))


class ClusterChaos:
    """Injects faults into a cluster, and heals everything at the end."""

    def __init__(
        self,
        simulation: Simulation,
        nodes: Sequence[Host],
        finder: NodeFinder,
        allowed: Sequence[ClusterFault],
        always: Sequence[ClusterFault],
        *,
        may_lose_power: Callable[[Host], bool] = lambda _: True,
        is_rapid: bool = False,
    ) -> None:
        self._simulation, self._nodes, self._finder = simulation, list(nodes), finder
        self._rng = simulation.rng("strikes")
        self._may_lose_power = may_lose_power
        self.held_apis: tuple[int, ...] = HELD_APIS
        self.injectors: tuple[FaultInjector, ...] = ()
        self._first = list(always)
        self._starting: dict[str, asyncio.Task[None]] = {}
        self._slowness = {node.name: self._rng.choice((1.0, 1.0, 1.0, 20.0)) for node in nodes}  # without faults
        self.mix = FaultMix.draw(self._rng, allowed, always, is_rapid=is_rapid)

    async def run(self, duration_s: float, is_enough: Callable[[], bool], duration_s_max: float) -> None:
        """Inject faults until the time is over and the clients have done enough; then heal."""
        start_s = self._simulation.now_s

        def is_active() -> bool:
            passed_s = self._simulation.now_s - start_s
            return passed_s < duration_s or (not is_enough() and passed_s < duration_s_max)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(self.mix.parallelism):
                tasks.create_task(self._inject_while(is_active))
            for injector in self.injectors:
                tasks.create_task(injector(is_active))
        await self.heal()

    async def heal(self) -> None:
        """Clear all faults, resume paused nodes and start stopped ones; return when all are up."""
        self._simulation.trace.record("healing")
        self._clear_faults()
        for node in self._nodes:
            node.disk.forget_plans()
            node.resume()
            self.start_if_down(node)
        await asyncio.gather(*self._starting.values())

    async def _inject_while(self, is_active: Callable[[], bool]) -> None:
        while is_active():
            await asyncio.sleep(self._rng.expovariate(1.0) * self.mix.pause_s_mean)
            fault = self._first.pop(0) if self._first else self._rng.choice(self.mix.faults)
            target = self._rng.choice(tuple(Target))
            name = self._finder.find(target, self._rng) or self._rng.choice(self._nodes).name
            node = self._simulation.hosts[name]
            await self._inject(fault, node)
            await asyncio.sleep(self._rng.uniform(0.0, self.mix.outage_s_max))
            if self._rng.random() < 0.75:  # else the next fault adds to this one
                self._clear_faults()
            for each in self._nodes:
                if self._rng.random() < 0.9:
                    each.resume()
                    self.start_if_down(each)

    async def _inject(self, fault: ClusterFault, node: Host) -> None:
        match fault:
            case ClusterFault.CLEAN_RESTART:
                await self._stop(node)
            case ClusterFault.CRASH:
                node.crash()
            case ClusterFault.CRASH_ALL | ClusterFault.CRASH_MANY:
                self._crash_several(fault)
            case ClusterFault.POWER_LOSS | ClusterFault.POWER_LOSS_IN_IO | ClusterFault.POWER_LOSS_ALL:
                self._cut_power(fault, node)
            case ClusterFault.CRASH_IN_IO:
                self._plan_crash(node, loses_power=False)
            case ClusterFault.PAUSE:
                node.pause()
            case ClusterFault.CLOCK_JUMP:
                self._count(fault, node)
                node.clock.skew_ms += self._rng.randint(-60_000, 60_000)
            case (
                ClusterFault.FAILED_SYNC
                | ClusterFault.DISK_FULL
                | ClusterFault.SHORT_WRITES
                | ClusterFault.COLD_READS
                | ClusterFault.SLOW_DISK
            ):
                self._inject_into_disk(fault, node)
            case _:
                self._inject_into_network(fault, node)

    def _crash_several(self, fault: ClusterFault) -> None:
        count = len(self._nodes) if fault is ClusterFault.CRASH_ALL else self._rng.randint(1, len(self._nodes))
        self._simulation.count(fault.value, str(count))
        for node in self._rng.sample(self._nodes, count):
            node.crash()

    def _cut_power(self, fault: ClusterFault, node: Host) -> None:
        if fault is ClusterFault.POWER_LOSS_ALL:
            self._simulation.count(fault.value, "")
            for each in self._nodes:
                each.power_loss()
        elif not self._may_lose_power(node):
            return
        elif fault is ClusterFault.POWER_LOSS:
            node.power_loss()
        else:
            self._plan_crash(node, loses_power=True)

    def _plan_crash(self, node: Host, *, loses_power: bool) -> None:
        when = self._rng.choice(tuple(When))
        number = node.disk.points + self._rng.randint(1, IO_POINTS_AHEAD_MAX)
        node.disk.crash_at(number, when, loses_power=loses_power)

    def _inject_into_disk(self, fault: ClusterFault, node: Host) -> None:
        match fault:
            case ClusterFault.FAILED_SYNC:
                if self._may_lose_power(node):  # unsynced writes may be lost, as in a power loss
                    node.disk.fail("fsync")
            case ClusterFault.DISK_FULL:
                node.disk.capacity_bytes = node.disk.used_bytes + self._rng.randint(0, ROOM_BYTES_MAX)
            case ClusterFault.SHORT_WRITES:
                node.disk.faults.short_write = 0.2
            case ClusterFault.SLOW_DISK:
                self._count(fault, node)
                node.slowness = self._rng.choice(SLOWNESS)
            case _:
                node.disk.faults.cold_read = 0.5

    def _inject_into_network(self, fault: ClusterFault, node: Host) -> None:
        network = self._simulation.network
        others = [name for name in self._simulation.hosts if name != node.name]
        peer = self._rng.choice([each.name for each in self._nodes if each is not node] or others)
        match fault:
            case ClusterFault.RESET:
                network.reset(node.name, peer)
            case ClusterFault.CUT_ONE_WAY:
                network.cut(*self._rng.choice(((node.name, peer), (peer, node.name))))
            case ClusterFault.CUT_BOTH_WAYS:
                network.cut_both(node.name, peer)
            case ClusterFault.ISOLATE_NODE:
                network.isolate(node.name)
            case ClusterFault.SPLIT:
                network.isolate(*self._rng.sample(list(self._simulation.hosts), len(self._simulation.hosts) // 2))
            case ClusterFault.ISOLATE_ONE_WAY:
                self._cut_all_one_way(node, others)
            case ClusterFault.BLOCK:
                network.block(peer, node.name)
            case ClusterFault.SLOW_NETWORK:
                self._count(fault, node)
                network.faults.delay = 0.3
            case ClusterFault.LOSSY_NETWORK:
                network.faults.reset = 0.05
            case _:
                network.delay_requests(self._rng.choice(self.held_apis), self._rng.uniform(0.1, 5.0))

    def _cut_all_one_way(self, node: Host, others: Sequence[str]) -> None:
        """Cut either all incoming or all outgoing packets of a node."""
        is_incoming = self._rng.random() < 0.5
        for other in others:
            self._simulation.network.cut(*((other, node.name) if is_incoming else (node.name, other)))

    async def _stop(self, node: Host) -> None:
        """Shut down a node, which must finish in bounded time whatever the state of the cluster."""
        if not node.is_up or node.is_paused or node.name in self._starting:
            return
        if node.is_stopping:  # by a parallel fault: a second SIGTERM has no effect
            return
        self._count(ClusterFault.CLEAN_RESTART, node)
        try:
            async with asyncio.timeout(STOP_S_MAX):
                with contextlib.suppress(Crashed):  # a planned crash may come first
                    await node.stop()
        except TimeoutError:
            self._simulation.fail(f"{node.name} did not stop within {STOP_S_MAX:.0f} s")
        except Exception as error:
            if not self._simulation.is_expected(error):
                raise
            node.exit()  # its disk failed during the shutdown, and it reported that

    def _clear_faults(self) -> None:
        self._simulation.network.heal()
        self._simulation.network.faults = NetworkFaults()
        for node in self._nodes:
            node.disk.faults = DiskFaults(scatters=node.disk.faults.scatters)
            node.disk.capacity_bytes = CAPACITY_BYTES
            node.slowness = self._slowness[node.name]

    def start_if_down(self, node: Host) -> None:
        """Start a node in the background if it is down. It may wait for others before it is ready."""
        if node.is_up or node.name in self._starting:
            return
        task = asyncio.get_running_loop().create_task(self._start(node))
        self._starting[node.name] = task
        task.add_done_callback(lambda _: self._starting.pop(node.name, None))

    async def _start(self, node: Host) -> None:
        for _ in range(START_ATTEMPTS_MAX):
            if node.is_up:
                return
            try:
                await node.restart()
            except Crashed:
                await asyncio.sleep(self._rng.uniform(0.0, 1.0))
            except Exception as error:
                if not self._simulation.is_expected(error):
                    self._simulation.fail(f"{node.name} does not start", error)
                    return
                node.exit()  # it reported the failed disk, as it should
                node.disk.capacity_bytes = CAPACITY_BYTES
        raise SimulationFailed(f"{node.name} did not start in {START_ATTEMPTS_MAX} attempts")

    def _count(self, fault: ClusterFault, node: Host) -> None:
        self._simulation.count(fault.value, node.name)

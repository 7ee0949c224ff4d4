"""Faults aimed at a cluster: at the leader of a partition, a follower, the active controller, a few or all at once."""

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


class Strike(Enum):
    """What can befall nodes of a cluster."""

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
    DEAF = "deaf"
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


DISK_STRIKES: Final = (Strike.FAILED_SYNC, Strike.DISK_FULL)
POWER_STRIKES: Final = (Strike.POWER_LOSS, Strike.POWER_LOSS_IN_IO, Strike.POWER_LOSS_ALL)
PROCESS_STRIKES: Final = tuple(each for each in Strike if each not in (*DISK_STRIKES, *POWER_STRIKES))
# What makes elections close: voters that are back at once, and rivals that do not hear of each other.
ELECTION_STRIKES: Final = (
    Strike.CRASH,
    Strike.CRASH_MANY,
    Strike.CRASH_IN_IO,
    Strike.PAUSE,
    Strike.SLOW_DISK,
    Strike.CUT_ONE_WAY,
    Strike.CUT_BOTH_WAYS,
    Strike.SPLIT,
    Strike.RESET,
    Strike.SLOW_NETWORK,
    Strike.HOLD_REQUESTS,
)


Accomplice = Callable[[Callable[[], bool]], Coroutine[None, None, None]]
"""Strikes on its own, as long as the chaos goes on; nodes that it kills come back with the others."""


class Aim(Enum):
    """Whom a strike is meant for."""

    ANYBODY = "anybody"
    LEADER = "leader"
    FOLLOWER = "follower"
    CONTROLLER = "controller"


class Sight(Protocol):
    """Who is what at the moment, as far as anybody can see; None if nobody is."""

    def find(self, aim: Aim, chance: random.Random) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Mix:
    """Which strikes a seed has, how often and for how long."""

    strikes: tuple[Strike, ...]
    pause_s_mean: float
    outage_s_max: float
    strikers: int  # at the same time

    @classmethod
    def draw(
        cls, chance: random.Random, allowed: Sequence[Strike], always: Sequence[Strike], *, is_brisk: bool
    ) -> "Mix":
        kinds = chance.sample(list(allowed), chance.randint(2, len(allowed)))
        strikes = tuple(dict.fromkeys((*always, *kinds)))
        if is_brisk:
            return cls(strikes, chance.uniform(0.2, 1.0), chance.choice((0.03, 0.2, 1.0)), chance.choice((1, 1, 2)))
        return cls(strikes, chance.uniform(0.5, 5.0), chance.choice((0.3, 2.0, 12.0)), chance.choice((1, 1, 2)))


class ClusterChaos:
    """Strikes again and again; puts everything right in the end."""

    def __init__(
        self,
        simulation: Simulation,
        nodes: Sequence[Host],
        sight: Sight,
        allowed: Sequence[Strike],
        always: Sequence[Strike],
        *,
        may_lose_power: Callable[[Host], bool] = lambda _: True,
        is_brisk: bool = False,
    ) -> None:
        self._simulation, self._nodes, self._sight = simulation, list(nodes), sight
        self._chance = simulation.chance("strikes")
        self._may_lose_power = may_lose_power
        self.held_apis: tuple[int, ...] = HELD_APIS
        self.accomplices: tuple[Accomplice, ...] = ()
        self._first = list(always)
        self._revivals: dict[str, asyncio.Task[None]] = {}
        self._slowness = {node.name: self._chance.choice((1.0, 1.0, 1.0, 20.0)) for node in nodes}  # in calm times
        self.mix = Mix.draw(self._chance, allowed, always, is_brisk=is_brisk)

    async def run(self, duration_s: float, is_enough: Callable[[], bool], duration_s_max: float) -> None:
        """Until the time is over and the clients have done enough; then heal."""
        start_s = self._simulation.now_s

        def goes_on() -> bool:
            passed_s = self._simulation.now_s - start_s
            return passed_s < duration_s or (not is_enough() and passed_s < duration_s_max)

        async with asyncio.TaskGroup() as strikers:
            for _ in range(self.mix.strikers):
                strikers.create_task(self._strike_on(goes_on))
            for accomplice in self.accomplices:
                strikers.create_task(accomplice(goes_on))
        await self.heal()

    async def heal(self) -> None:
        """What is cut is joined, what is paused goes on, what is down is started; returns when all are up."""
        self._simulation.trace.record("healing")
        self._calm()
        for node in self._nodes:
            node.disk.forget_plans()
            node.resume()
            self.revive(node)
        await asyncio.gather(*self._revivals.values())

    async def _strike_on(self, goes_on: Callable[[], bool]) -> None:
        while goes_on():
            await asyncio.sleep(self._chance.expovariate(1.0) * self.mix.pause_s_mean)
            strike = self._first.pop(0) if self._first else self._chance.choice(self.mix.strikes)
            aim = self._chance.choice(tuple(Aim))
            name = self._sight.find(aim, self._chance) or self._chance.choice(self._nodes).name
            node = self._simulation.hosts[name]
            await self._strike(strike, node)
            await asyncio.sleep(self._chance.uniform(0.0, self.mix.outage_s_max))
            if self._chance.random() < 0.75:  # else the next strike meets what this one left
                self._calm()
            for each in self._nodes:
                if self._chance.random() < 0.9:
                    each.resume()
                    self.revive(each)

    async def _strike(self, strike: Strike, node: Host) -> None:
        match strike:
            case Strike.CLEAN_RESTART:
                await self._stop(node)
            case Strike.CRASH:
                node.crash()
            case Strike.CRASH_ALL | Strike.CRASH_MANY:
                self._crash_several(strike)
            case Strike.POWER_LOSS | Strike.POWER_LOSS_IN_IO | Strike.POWER_LOSS_ALL:
                self._take_power(strike, node)
            case Strike.CRASH_IN_IO:
                self._plan_death(node, loses_power=False)
            case Strike.PAUSE:
                node.pause()
            case Strike.CLOCK_JUMP:
                self._count(strike, node)
                node.clock.skew_ms += self._chance.randint(-60_000, 60_000)
            case Strike.FAILED_SYNC | Strike.DISK_FULL | Strike.SHORT_WRITES | Strike.COLD_READS | Strike.SLOW_DISK:
                self._strike_disk(strike, node)
            case _:
                self._strike_network(strike, node)

    def _crash_several(self, strike: Strike) -> None:
        count = len(self._nodes) if strike is Strike.CRASH_ALL else self._chance.randint(1, len(self._nodes))
        self._simulation.count(strike.value, str(count))
        for node in self._chance.sample(self._nodes, count):
            node.crash()

    def _take_power(self, strike: Strike, node: Host) -> None:
        if strike is Strike.POWER_LOSS_ALL:
            self._simulation.count(strike.value, "")
            for each in self._nodes:
                each.power_loss()
        elif not self._may_lose_power(node):
            return
        elif strike is Strike.POWER_LOSS:
            node.power_loss()
        else:
            self._plan_death(node, loses_power=True)

    def _plan_death(self, node: Host, *, loses_power: bool) -> None:
        when = self._chance.choice(tuple(When))
        number = node.disk.points + self._chance.randint(1, IO_POINTS_AHEAD_MAX)
        node.disk.crash_at(number, when, loses_power=loses_power)

    def _strike_disk(self, strike: Strike, node: Host) -> None:
        match strike:
            case Strike.FAILED_SYNC:
                if self._may_lose_power(node):  # what was not synced may be gone, as without power
                    node.disk.fail("fsync")
            case Strike.DISK_FULL:
                node.disk.capacity_bytes = node.disk.used_bytes + self._chance.randint(0, ROOM_BYTES_MAX)
            case Strike.SHORT_WRITES:
                node.disk.faults.short_write = 0.2
            case Strike.SLOW_DISK:
                self._count(strike, node)
                node.slowness = self._chance.choice(SLOWNESS)
            case _:
                node.disk.faults.cold_read = 0.5

    def _strike_network(self, strike: Strike, node: Host) -> None:
        network = self._simulation.network
        others = [name for name in self._simulation.hosts if name != node.name]
        peer = self._chance.choice([each.name for each in self._nodes if each is not node] or others)
        match strike:
            case Strike.RESET:
                network.reset(node.name, peer)
            case Strike.CUT_ONE_WAY:
                network.cut(*self._chance.choice(((node.name, peer), (peer, node.name))))
            case Strike.CUT_BOTH_WAYS:
                network.cut_both(node.name, peer)
            case Strike.ISOLATE_NODE:
                network.isolate(node.name)
            case Strike.SPLIT:
                network.isolate(*self._chance.sample(list(self._simulation.hosts), len(self._simulation.hosts) // 2))
            case Strike.DEAF:
                self._cut_all_one_way(node, others)
            case Strike.BLOCK:
                network.block(peer, node.name)
            case Strike.SLOW_NETWORK:
                self._count(strike, node)
                network.faults.delay = 0.3
            case Strike.LOSSY_NETWORK:
                network.faults.reset = 0.05
            case _:
                network.delay_requests(self._chance.choice(self.held_apis), self._chance.uniform(0.1, 5.0))

    def _cut_all_one_way(self, node: Host, others: Sequence[str]) -> None:
        """It hears nobody, or nobody hears it."""
        is_deaf = self._chance.random() < 0.5
        for other in others:
            self._simulation.network.cut(*((other, node.name) if is_deaf else (node.name, other)))

    async def _stop(self, node: Host) -> None:
        """A node that is asked to end does so in a bounded time, whatever state the cluster is in."""
        if not node.is_up or node.is_paused or node.name in self._revivals:
            return
        if node.is_stopping:  # another striker asked first, and a process that is asked twice ends once
            return
        self._count(Strike.CLEAN_RESTART, node)
        try:
            async with asyncio.timeout(STOP_S_MAX):
                with contextlib.suppress(Crashed):  # a planned death may come first
                    await node.stop()
        except TimeoutError:
            self._simulation.fail(f"{node.name} did not stop within {STOP_S_MAX:.0f} s")
        except Exception as error:
            if not self._simulation.is_expected(error):
                raise
            node.exit()  # its disk failed at the very end, and it said so

    def _calm(self) -> None:
        self._simulation.network.heal()
        self._simulation.network.faults = NetworkFaults()
        for node in self._nodes:
            node.disk.faults = DiskFaults(scatters=node.disk.faults.scatters)
            node.disk.capacity_bytes = CAPACITY_BYTES
            node.slowness = self._slowness[node.name]

    def revive(self, node: Host) -> None:
        """Begin to start it, if it is down. It may have to wait for others before it is ready."""
        if node.is_up or node.name in self._revivals:
            return
        task = asyncio.get_running_loop().create_task(self._start(node))
        self._revivals[node.name] = task
        task.add_done_callback(lambda _: self._revivals.pop(node.name, None))

    async def _start(self, node: Host) -> None:
        for _ in range(START_ATTEMPTS_MAX):
            if node.is_up:
                return
            try:
                await node.restart()
            except Crashed:
                await asyncio.sleep(self._chance.uniform(0.0, 1.0))
            except Exception as error:
                if not self._simulation.is_expected(error):
                    self._simulation.fail(f"{node.name} does not start", error)
                    return
                node.exit()  # it said that its disk fails, as it should
                node.disk.capacity_bytes = CAPACITY_BYTES
        raise SimulationFailed(f"{node.name} does not come up")

    def _count(self, strike: Strike, node: Host) -> None:
        self._simulation.count(strike.value, node.name)

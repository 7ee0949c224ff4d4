"""Faults drawn from a seed: which kinds, how often, when, and for how long."""

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from moldau.testing.disk import CAPACITY_BYTES, Crashed, DiskFaults, When
from moldau.testing.network import NetworkFaults
from moldau_dev.simulation.simulation import Host, Simulation

IO_POINTS_AHEAD_MAX: Final = 40
ROOM_BYTES_MAX: Final = 5_000
START_ATTEMPTS_MAX: Final = 50


class Fault(Enum):
    """The kinds of faults of one broker."""

    CLEAN_RESTART = "clean restart"
    CRASH = "crash"
    CRASH_IN_IO = "crash in I/O"
    POWER_LOSS = "power loss"
    POWER_LOSS_IN_IO = "power loss in I/O"
    RESET = "reset"
    CUT_ONE_WAY = "cut one way"
    CUT_BOTH_WAYS = "cut both ways"
    SLOW_NETWORK = "slow network"
    LOSSY_NETWORK = "lossy network"
    SHORT_WRITES = "short writes"
    COLD_READS = "cold reads"
    CLOCK_JUMP = "clock jump"
    FAILED_SYNC = "failed fsync"
    DISK_FULL = "disk full"


DISK_FAULTS: Final = (Fault.FAILED_SYNC, Fault.DISK_FULL)
MACHINE_FAULTS: Final = tuple(fault for fault in Fault if fault not in DISK_FAULTS)
PROCESS_FAULTS: Final = tuple(fault for fault in MACHINE_FAULTS if "power" not in fault.value)


@dataclass(frozen=True, slots=True)
class FaultMix:
    """The faults of one seed and their rate: each seed gets a random subset (swarm testing)."""

    faults: tuple[Fault, ...]
    pause_s_mean: float
    outage_s_max: float

    @classmethod
    def draw(cls, rng: random.Random, allowed: Sequence[Fault], always: Sequence[Fault]) -> "FaultMix":
        kinds = rng.sample(list(allowed), rng.randint(1, len(allowed)))
        faults = tuple(dict.fromkeys((*always, *kinds)))
        return cls(faults, rng.uniform(0.2, 5.0), rng.choice((0.2, 1.0, 10.0)))


class Chaos:
    """Inject faults into servers, and heal everything at the end."""

    def __init__(
        self,
        simulation: Simulation,
        servers: Sequence[Host],
        allowed: Sequence[Fault] = MACHINE_FAULTS,
        *,
        always: Sequence[Fault] = (),
    ) -> None:
        self._simulation = simulation
        self._servers = list(servers)
        self._rng = simulation.rng("chaos")
        self._first = list(always)  # injected first, so that each fires
        self.mix = FaultMix.draw(self._rng, allowed, always)

    async def run(self, duration_s: float, is_enough: Callable[[], bool] = lambda: True) -> None:
        """Inject faults until the time is over and the workload has done enough, then heal."""
        end_s = self._simulation.now_s + duration_s
        while self._simulation.now_s < end_s or not is_enough():
            await asyncio.sleep(self._rng.expovariate(1.0) * self.mix.pause_s_mean)
            fault = self._first.pop(0) if self._first else self._rng.choice(self.mix.faults)
            await self._inject(fault, self._rng.choice(self._servers))
        await self.heal()

    async def heal(self) -> None:
        """Clear all faults and start the servers that are down."""
        self._clear_faults()
        for server in self._servers:
            server.disk.forget_plans()
            await self._ensure_started(server)

    async def _inject(self, fault: Fault, server: Host) -> None:
        match fault:
            case Fault.CLEAN_RESTART:
                await self._stop(server)
            case Fault.CRASH:
                server.crash()
            case Fault.POWER_LOSS:
                server.power_loss()
            case Fault.CRASH_IN_IO | Fault.POWER_LOSS_IN_IO:
                self._plan_crash(server, loses_power=fault is Fault.POWER_LOSS_IN_IO)
            case Fault.CLOCK_JUMP:
                self._count(fault, server)
                server.clock.skew_ms += self._rng.randint(-60_000, 60_000)
            case Fault.FAILED_SYNC:
                server.disk.fail("fsync")
            case Fault.DISK_FULL:
                server.disk.capacity_bytes = server.disk.used_bytes + self._rng.randint(0, ROOM_BYTES_MAX)
            case Fault.SHORT_WRITES:
                server.disk.faults.short_write = 0.2
            case Fault.COLD_READS:
                server.disk.faults.cold_read = 0.5
            case _:
                self._inject_into_network(fault, server)
        await asyncio.sleep(self._rng.uniform(0.0, self.mix.outage_s_max))
        self._clear_faults()
        await self._ensure_started(server)

    def _inject_into_network(self, fault: Fault, server: Host) -> None:
        network = self._simulation.network
        peers = [name for name in self._simulation.hosts if name != server.name]
        peer = self._rng.choice(peers)
        match fault:
            case Fault.RESET:
                network.reset(server.name, peer)
            case Fault.CUT_ONE_WAY:
                network.cut(*self._rng.choice(((server.name, peer), (peer, server.name))))
            case Fault.CUT_BOTH_WAYS:
                network.cut_both(server.name, peer)
            case Fault.SLOW_NETWORK:
                self._count(fault, server)
                network.faults.delay = 0.3
            case Fault.LOSSY_NETWORK:
                network.faults.reset = 0.05

    async def _stop(self, server: Host) -> None:
        if server.is_up:
            self._count(Fault.CLEAN_RESTART, server)
            with contextlib.suppress(Crashed):  # a planned crash may come first
                await server.stop()

    def _plan_crash(self, server: Host, *, loses_power: bool) -> None:
        when = self._rng.choice(tuple(When))
        number = server.disk.points + self._rng.randint(1, IO_POINTS_AHEAD_MAX)
        server.disk.crash_at(number, when, loses_power=loses_power)

    def _clear_faults(self) -> None:
        self._simulation.network.heal()
        self._simulation.network.faults = NetworkFaults()
        for server in self._servers:
            server.disk.faults = DiskFaults(scatters=server.disk.faults.scatters)
            server.disk.capacity_bytes = CAPACITY_BYTES

    async def _ensure_started(self, server: Host) -> None:
        """Start the server; a planned crash may happen while it starts."""
        for _ in range(START_ATTEMPTS_MAX):
            if server.is_up:
                return
            try:
                await server.restart()
            except Crashed:
                await asyncio.sleep(self._rng.uniform(0.0, 1.0))
            except Exception as error:
                if not self._simulation.is_expected(error):
                    raise
                server.exit()  # it reported the failed disk, as it should
                self._clear_faults()
        raise AssertionError(f"{server.name} does not start")

    def _count(self, fault: Fault, server: Host) -> None:
        self._simulation.count(fault.value, server.name)

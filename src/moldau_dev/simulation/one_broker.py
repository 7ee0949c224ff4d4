"""One broker and two clients on virtual time: the broker crashes and restarts, and must keep its guarantees."""

import asyncio
import random
from contextvars import Context
from enum import Enum
from typing import Final

from moldau.model.ids import Address
from moldau.model.ports import Ports
from moldau.node.configuration import load_configuration
from moldau.node.node import Node
from moldau_dev.simulation.faults import DISK_FAULTS, MACHINE_FAULTS, PROCESS_FAULTS, Chaos, Fault
from moldau_dev.simulation.simulation import ACKNOWLEDGED_MIN, Host, Program, Script, Simulation
from moldau_dev.simulation.workload import TOPIC, Ledger, NumberProducer, NumberReader, Violation, client

ADDRESS: Final = Address("broker", 9092)
FOLDER: Final = "/data"
CHAOS_S: Final = 60.0
HEALED_S_MAX: Final = 60.0


class FaultProfile(Enum):
    """The faults of a run. Where more than the process fails, the topic is synced before each response.

    STALE_CACHE: after a failed fsync the next process may read cached data that is not durable, before a power loss.
    """

    PROCESS = "process"
    POWER = "power"
    DISK = "disk"
    STALE_CACHE = "stale-cache"


FAULTS: Final = {
    FaultProfile.PROCESS: (PROCESS_FAULTS, (Fault.CRASH, Fault.CRASH_IN_IO)),
    FaultProfile.POWER: (MACHINE_FAULTS, (Fault.POWER_LOSS, Fault.POWER_LOSS_IN_IO)),
    FaultProfile.DISK: ((*MACHINE_FAULTS, *DISK_FAULTS), DISK_FAULTS),
    FaultProfile.STALE_CACHE: ((*MACHINE_FAULTS, Fault.FAILED_SYNC), (Fault.FAILED_SYNC, Fault.POWER_LOSS) * 3),
}


def one_broker(profile: FaultProfile = FaultProfile.PROCESS, *, chaos_s: float = CHAOS_S) -> Script:
    """Return a script with a broker under faults and clients that check its guarantees."""

    async def script(simulation: Simulation) -> None:
        simulation.disks_fail = profile in (FaultProfile.DISK, FaultProfile.STALE_CACHE)
        world = _World(simulation, profile)
        try:
            await world.run(chaos_s)
        except BaseExceptionGroup as group:
            raise first_cause(group) from None

    return script


def node_program(simulation: Simulation, host: Host, settings: dict[str, str]) -> Program:
    """Return a program that runs a real node on simulated ports. Its failure fails the run, unless disks fail."""
    configuration = load_configuration(overrides=[f"{name}={text}" for name, text in settings.items()])

    def on_failure(what: str, error: BaseException) -> None:
        if not simulation.is_expected(error):
            simulation.fail(f"{host.name} failed: {what}", error)
        simulation.count("node failed", f"{host.name} {what}")
        simulation.loop.call_soon(host.exit, context=Context())

    async def program(ports: Ports) -> Node:
        node = Node(configuration, ports, on_failure=on_failure)
        await node.start()
        return node

    return program


class _World:
    def __init__(self, simulation: Simulation, profile: FaultProfile) -> None:
        rng = simulation.rng("workload")
        self._simulation = simulation
        self._broker = simulation.host(ADDRESS.host)
        self._broker.disk.prepare_folder(FOLDER)
        self._broker.disk.faults.scatters = profile is FaultProfile.STALE_CACHE
        self._ledger = Ledger(rng.randint(1, 3), disks_fail=simulation.disks_fail)
        self._topic_settings = _topic_settings(rng, syncs=profile is not FaultProfile.PROCESS)
        faults, always = FAULTS[profile]
        self._chaos = Chaos(simulation, [self._broker], faults, always=always)

    async def run(self, chaos_s: float) -> None:
        """Inject faults, then heal: all clients must finish in bounded time."""
        settings = {"listeners": f"PLAINTEXT://{ADDRESS}", "log.dirs": FOLDER}
        await self._broker.start(node_program(self._simulation, self._broker, settings))
        await self._simulation.host("admin").start(self._create_topic)
        async with asyncio.TaskGroup() as clients:
            producing = clients.create_task(self._simulation.host("producer").start(self._produce))
            reading = clients.create_task(self._simulation.host("reader").start(self._read))
            await self._chaos.run(chaos_s, lambda: self._ledger.batches_acknowledged >= ACKNOWLEDGED_MIN)
            async with asyncio.timeout(HEALED_S_MAX):
                self._producer.should_stop = True
                await producing
                self._reader.producer_is_done = True
                await reading
        self._simulation.acknowledged = self._ledger.batches_acknowledged

    async def _create_topic(self, ports: Ports) -> None:
        async with client(ports, [ADDRESS], "admin") as admin:
            await admin.create_topic(TOPIC, partitions=self._ledger.partitions, configs=self._topic_settings)

    async def _produce(self, ports: Ports) -> None:
        self._producer = NumberProducer(ports, [ADDRESS], self._ledger, self._simulation.rng("producer"))
        await self._producer.run()

    async def _read(self, ports: Ports) -> None:
        self._reader = NumberReader(ports, [ADDRESS], self._ledger, self._simulation.rng("reader"))
        await self._reader.run()


def _topic_settings(rng: random.Random, *, syncs: bool) -> dict[str, str]:
    settings = {
        "segment.bytes": str(rng.choice((16_384, 65_536, 1 << 30))),
        "index.interval.bytes": str(rng.choice((512, 4096))),
        "preallocate": rng.choice(("true", "false")),
    }
    return settings | ({"flush.messages": "1"} if syncs else {})


def first_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return a violation if there is one, since other errors follow from it."""
    violations = group.subgroup(Violation)
    cause: BaseException = violations or group
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    return cause

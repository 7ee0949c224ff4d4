"""One broker and two clients on virtual time: the broker dies and comes back, and keeps its promises."""

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


class Trouble(Enum):
    """What befalls the broker. Where more than its process fails, the topic is synced before each answer.

    DECEIVED: after a failed fsync the next process may be shown what the platter does not have, before the power goes.
    """

    PROCESS = "process"
    POWER = "power"
    DISK = "disk"
    DECEIVED = "deceived"


FAULTS: Final = {
    Trouble.PROCESS: (PROCESS_FAULTS, (Fault.CRASH, Fault.CRASH_IN_IO)),
    Trouble.POWER: (MACHINE_FAULTS, (Fault.POWER_LOSS, Fault.POWER_LOSS_IN_IO)),
    Trouble.DISK: ((*MACHINE_FAULTS, *DISK_FAULTS), DISK_FAULTS),
    Trouble.DECEIVED: ((*MACHINE_FAULTS, Fault.FAILED_SYNC), (Fault.FAILED_SYNC, Fault.POWER_LOSS) * 3),
}


def one_broker(trouble: Trouble = Trouble.PROCESS, *, chaos_s: float = CHAOS_S) -> Script:
    """A broker in trouble, and clients that hold it to its promises."""

    async def script(simulation: Simulation) -> None:
        simulation.disks_fail = trouble in (Trouble.DISK, Trouble.DECEIVED)
        world = _World(simulation, trouble)
        try:
            await world.live_through(chaos_s)
        except BaseExceptionGroup as group:
            raise first_cause(group) from None

    return script


def node_program(simulation: Simulation, host: Host, settings: dict[str, str]) -> Program:
    """A node as it runs for real, but for its ports. That it gives up fails the run, unless its disk gave it reason."""
    configuration = load_configuration(overrides=[f"{name}={text}" for name, text in settings.items()])

    def give_up(what: str, error: BaseException) -> None:
        if not simulation.is_expected(error):
            simulation.fail(f"{host.name} gave up: {what}", error)
        simulation.count("gave up", f"{host.name} {what}")
        simulation.loop.call_soon(host.exit, context=Context())

    async def program(ports: Ports) -> Node:
        node = Node(configuration, ports, on_failure=give_up)
        await node.start()
        return node

    return program


class _World:
    def __init__(self, simulation: Simulation, trouble: Trouble) -> None:
        chance = simulation.chance("workload")
        self._simulation = simulation
        self._broker = simulation.host(ADDRESS.host)
        self._broker.disk.prepare_folder(FOLDER)
        self._broker.disk.faults.scatters = trouble is Trouble.DECEIVED
        self._ledger = Ledger(chance.randint(1, 3), disks_fail=simulation.disks_fail)
        self._topic_settings = _topic_settings(chance, syncs=trouble is not Trouble.PROCESS)
        faults, always = FAULTS[trouble]
        self._chaos = Chaos(simulation, [self._broker], faults, always=always)

    async def live_through(self, chaos_s: float) -> None:
        """First anything may go wrong, then nothing does and all must come to its end in a bounded time."""
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
        self._producer = NumberProducer(ports, [ADDRESS], self._ledger, self._simulation.chance("producer"))
        await self._producer.run()

    async def _read(self, ports: Ports) -> None:
        self._reader = NumberReader(ports, [ADDRESS], self._ledger, self._simulation.chance("reader"))
        await self._reader.run()


def _topic_settings(chance: random.Random, *, syncs: bool) -> dict[str, str]:
    settings = {
        "segment.bytes": str(chance.choice((16_384, 65_536, 1 << 30))),
        "index.interval.bytes": str(chance.choice((512, 4096))),
        "preallocate": chance.choice(("true", "false")),
    }
    return settings | ({"flush.messages": "1"} if syncs else {})


def first_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """A violation if there is one, for the rest follows from it."""
    violations = group.subgroup(Violation)
    cause: BaseException = violations or group
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    return cause

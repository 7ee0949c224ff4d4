"""A cluster and its clients through trouble: first anything may go wrong, then all must come right in bounded time."""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from enum import Enum
from typing import Any, Final

from moldau.client.async_client import AsyncClient
from moldau.model.errors import KafkaError, TopicAlreadyExists
from moldau.model.ports import Ports
from moldau.node.configuration import load_configuration
from moldau.node.node import Node
from moldau_dev.simulation.cluster.acks_one_producer import WHISPERS, Heard, Listener, Whisperer
from moldau_dev.simulation.cluster.administrator import Administrator, furnish
from moldau_dev.simulation.cluster.ambush import OF_REPLICAS, OVERTAKEN, Ambush, Moment
from moldau_dev.simulation.cluster.group_members import GroupLedger, Member
from moldau_dev.simulation.cluster.mover import Mover
from moldau_dev.simulation.cluster.pipelined_producer import PipelinedProducer
from moldau_dev.simulation.cluster.roster import Roster, Seat, format_folder
from moldau_dev.simulation.cluster.strikes import (
    DISK_STRIKES,
    ELECTION_STRIKES,
    POWER_STRIKES,
    PROCESS_STRIKES,
    ClusterChaos,
    Strike,
)
from moldau_dev.simulation.cluster.watch import Watch
from moldau_dev.simulation.one_broker import first_cause
from moldau_dev.simulation.simulation import ACKNOWLEDGED_MIN, Host, Program, Script, Simulation
from moldau_dev.simulation.workload import Ledger, NumberProducer, NumberReader, Violation, client

READY_S_MAX: Final = 60.0
CHAOS_S: Final = 60.0
CHAOS_S_MAX: Final = 150.0
HEALED_S_MAX: Final = 120.0
LOOK_S: Final = 0.5
AMBUSH_S_MEAN: Final = 2.0
RARE_AMBUSH_S_MEAN: Final = 6.0


class Trouble(Enum):
    """What befalls the cluster, and with it what was promised.

    PROCESS: processes die, all at once too. POWER: machines go dark, fewer than `min.insync.replicas` at a time.
    SYNCED: any number of them at once, where topics are synced before each answer. DISK: disks fail, likewise synced.
    ELECTIONS: as PROCESS, with voters that die and come back and lose each other in quick succession. AMBUSH: as
    PROCESS, and leaders are struck when their followers are apart, or when one is about to join. OVERTAKEN: as PROCESS,
    and what is asked or answered is late: whom it names has begun a new life, or somebody else is to be asked.
    MOVED: as PROCESS, and leaderships move to and fro faster than followers hear of it. DECEIVED: as SYNCED, and after
    a failed fsync the next process may be shown what the platter does not have, before the power goes. ADMINISTERED: as
    PROCESS, and an administrator creates and deletes topics, moves replicas, and unregisters brokers that live.
    """

    PROCESS = "process"
    ELECTIONS = "elections"
    POWER = "power"
    SYNCED = "synced"
    DISK = "disk"
    AMBUSH = "ambush"
    OVERTAKEN = "overtaken"
    MOVED = "moved"
    DECEIVED = "deceived"
    ADMINISTERED = "administered"


STRIKES: Final = {
    Trouble.PROCESS: (PROCESS_STRIKES, (Strike.CRASH,)),
    Trouble.ELECTIONS: (ELECTION_STRIKES, (Strike.CRASH, Strike.CUT_BOTH_WAYS)),
    Trouble.POWER: ((*PROCESS_STRIKES, Strike.POWER_LOSS, Strike.POWER_LOSS_IN_IO), (Strike.POWER_LOSS,)),
    Trouble.SYNCED: ((*PROCESS_STRIKES, *POWER_STRIKES), (Strike.POWER_LOSS, Strike.POWER_LOSS_ALL)),
    Trouble.DISK: ((*PROCESS_STRIKES, *DISK_STRIKES), DISK_STRIKES),
    Trouble.AMBUSH: (PROCESS_STRIKES, (Strike.CRASH,)),
    Trouble.OVERTAKEN: (PROCESS_STRIKES, (Strike.CRASH,)),
    Trouble.MOVED: (PROCESS_STRIKES, (Strike.CRASH,)),
    Trouble.ADMINISTERED: (PROCESS_STRIKES, (Strike.CRASH,)),
    Trouble.DECEIVED: (
        (*PROCESS_STRIKES, *POWER_STRIKES, Strike.FAILED_SYNC),
        (Strike.FAILED_SYNC, Strike.POWER_LOSS_ALL) * 2,
    ),
}
SYNCED: Final = (Trouble.SYNCED, Trouble.DISK, Trouble.DECEIVED)
FAILING: Final = (Trouble.DISK, Trouble.DECEIVED)
AMBUSHES: Final = {Trouble.AMBUSH: OF_REPLICAS, Trouble.OVERTAKEN: OVERTAKEN}


def cluster_world(trouble: Trouble = Trouble.PROCESS, *, chaos_s: float = CHAOS_S) -> Script:
    """A cluster in trouble, and clients that hold it to its promises."""

    async def script(simulation: Simulation) -> None:
        simulation.disks_fail = trouble in FAILING
        world = ClusterWorld(simulation, trouble)
        try:
            await world.live_through(chaos_s)
        except BaseExceptionGroup as group:
            raise first_cause(group) from None

    return script


class ClusterWorld:
    """Everything of one run: nodes, clients, ledgers, watch and chaos."""

    def __init__(self, simulation: Simulation, trouble: Trouble) -> None:
        self.simulation, self.trouble = simulation, trouble
        syncs = trouble in SYNCED
        # Fewer machines than `min.insync.replicas` lose power at once, so that must be two for one to.
        min_isr_min = 2 if trouble is Trouble.POWER else 1
        self.roster = self.furnish(
            Roster.draw(
                simulation.chance("roster"), syncs=syncs, min_isr_min=min_isr_min, votes=trouble is Trouble.ELECTIONS
            )
        )
        simulation.trace.record("roster", self.roster.describe())
        self.nodes = {seat.host: simulation.host(seat.host) for seat in self.roster.seats}
        for seat in self.roster.seats:
            format_folder(self.nodes[seat.host], seat)
            self.nodes[seat.host].disk.faults.scatters = trouble is Trouble.DECEIVED
        self.ledger = Ledger(self.roster.partitions, disks_fail=simulation.disks_fail, is_replicated=True)
        self.group, self.heard = GroupLedger(), Heard()
        self.watch = Watch(simulation, self.roster, self.nodes)
        strikes, always = STRIKES[trouble]
        self.chaos = ClusterChaos(
            simulation,
            list(self.nodes.values()),
            self.watch,
            strikes,
            always,
            may_lose_power=self._may_lose_power,
            is_brisk=trouble is Trouble.ELECTIONS,
        )
        if self.moments:
            pause_s_mean = AMBUSH_S_MEAN if trouble in AMBUSHES else RARE_AMBUSH_S_MEAN
            ambush = Ambush(
                simulation,
                self.roster,
                self.nodes,
                self.moments,
                pause_s_mean=pause_s_mean,
                revive=self.chaos.revive,
            )
            self.watch.more = (ambush.look,)
            self.chaos.accomplices = (ambush.lie_in_wait,)
        if trouble is Trouble.MOVED:
            mover = Mover(simulation, self.watch, self.ledger)
            self.chaos.accomplices = (*self.chaos.accomplices, mover.move_on)
        self.administrator: Administrator | None = None
        if trouble is Trouble.ADMINISTERED:
            self.administrator = Administrator(simulation, self.watch, self.ledger)
            self.chaos.accomplices = (*self.chaos.accomplices, self.administrator.work_on)

    @property
    def moments(self) -> tuple[Moment, ...]:
        """At which nodes are struck on purpose."""
        return AMBUSHES.get(self.trouble, ())

    def furnish(self, roster: Roster) -> Roster:
        """What a world of another kind needs besides."""
        if self.trouble is Trouble.ADMINISTERED:
            return furnish(roster, self.simulation.chance("snapshots"))
        return roster

    async def live_through(self, chaos_s: float) -> None:
        await self._come_up()
        await self._run_as("admin", self._create_topics)
        async with asyncio.TaskGroup() as clients:
            tasks = [clients.create_task(self._run_as(name, program)) for name, program in self._clients().items()]
            await self.chaos.run(chaos_s, self._has_done_enough, CHAOS_S_MAX)
            await self._come_right(tasks)
        await self._come_to_rest()
        if self.administrator is not None:
            await self._within("all topics take writes and have what they had", self.administrator.audit())
            await self._come_to_rest()
        self.simulation.acknowledged = self.ledger.batches_acknowledged
        self.watch.close()
        if self.administrator is not None:
            self.administrator.count()

    async def _come_up(self) -> None:
        async with asyncio.timeout(READY_S_MAX):
            await asyncio.gather(*(self._start(seat) for seat in self.roster.seats))

    async def _start(self, seat: Seat) -> None:
        host = self.nodes[seat.host]
        await host.start(self._node_program(host, seat))

    def _node_program(self, host: Host, seat: Seat) -> Program:
        """A node as it runs for real, but for its ports. That it gives up fails the run, unless its disk fails."""
        settings = self.roster.settings_of(seat)
        configuration = load_configuration(overrides=[f"{name}={text}" for name, text in settings.items()])

        def give_up(what: str, error: BaseException) -> None:
            if self.simulation.is_posthumous():
                return
            if not self.simulation.is_expected(error):
                self.simulation.fail(f"{host.name} gave up: {what}", error)
            self.simulation.count("gave up", f"{host.name} {what}")
            self.simulation.loop.call_soon(host.exit, context=Context())

        async def program(ports: Ports) -> Node:
            node = Node(configuration, ports, on_failure=give_up)
            self.watch.begin(host.name, node)
            await node.start()
            return node

        return program

    async def _create_topics(self, ports: Ports) -> None:
        async with client(ports, self.roster.bootstrap, "admin") as admin:
            for topic, partitions in ((self.ledger.topic, self.ledger.partitions), (WHISPERS, 1)):
                await self._create_topic(admin, topic, partitions)

    async def _create_topic(self, admin: AsyncClient, topic: str, partitions: int) -> None:
        """All brokers must have come up first, and a try whose answer was lost may have worked."""
        async with asyncio.timeout(READY_S_MAX):
            while True:
                try:
                    await admin.create_topic(
                        topic,
                        partitions=partitions,
                        replication_factor=self.roster.replicas,
                        configs=self.roster.topic_settings,
                    )
                    return
                except TopicAlreadyExists:
                    return
                except (OSError, KafkaError) as error:
                    await self.ledger.bear(error)

    def _clients(self) -> dict[str, Program]:
        """Every client has a host of its own, so that it can be cut off alone."""
        programs: dict[str, Program] = {
            "producer": self._produce,
            "reader": self._read,
            "whisperer": self._whisper,
            "listener": self._listen,
        }
        self._members: list[Member] = []
        for number in range(1, self.roster.members + 1):
            programs[f"member-{number}"] = self._member(f"member-{number}")
        return programs

    def _member(self, name: str) -> Program:
        async def program(ports: Ports) -> None:
            chance = self.simulation.chance(name)
            member = Member(name, ports, self.roster.bootstrap, self.ledger, self.group, chance)
            self._members.append(member)
            await member.run()

        return program

    async def _produce(self, ports: Ports) -> None:
        chance, bootstrap = self.simulation.chance("producer"), self.roster.bootstrap
        self._producer: NumberProducer | PipelinedProducer
        if self.roster.in_flight == 1:
            self._producer = NumberProducer(ports, bootstrap, self.ledger, chance)
        else:
            self._producer = PipelinedProducer(ports, bootstrap, self.ledger, chance, self.simulation.tally)
        await self._producer.run()

    async def _read(self, ports: Ports) -> None:
        self._reader = NumberReader(ports, self.roster.bootstrap, self.ledger, self.simulation.chance("reader"))
        await self._reader.run()

    async def _whisper(self, ports: Ports) -> None:
        chance = self.simulation.chance("whisperer")
        self._whisperer = Whisperer(ports, self.roster.bootstrap, self.heard, self.ledger, chance)
        await self._whisperer.run()

    async def _listen(self, ports: Ports) -> None:
        chance = self.simulation.chance("listener")
        self._listener = Listener(ports, self.roster.bootstrap, self.heard, self.ledger, chance)
        await self._listener.run()

    async def _run_as(self, name: str, program: Program) -> None:
        await self.simulation.host(name).start(program)

    def _has_done_enough(self) -> bool:
        is_enough = self.ledger.batches_acknowledged >= ACKNOWLEDGED_MIN
        return is_enough and (self.administrator is None or self.administrator.has_done_enough())

    def _may_lose_power(self, host: Host) -> bool:
        """One machine at a time: the next only when all replicas are in sync again (topics that are synced need no
        such mercy)."""
        return self.roster.syncs or self.watch.has_recovered(except_for=host.name)

    # After healing

    async def _come_right(self, tasks: list[asyncio.Task[None]]) -> None:
        """Every client gets its work done."""
        producing, reading, whispering, listening, *members = tasks
        await self._within("every write is accepted", self._finish_writing(producing, whispering))
        self._reader.producer_is_done = self._listener.should_stop = True
        for member in self._members:
            member.producer_is_done = True
        await self._within("all is read", all_done([reading, listening, *members]))

    async def _finish_writing(self, *tasks: asyncio.Task[None]) -> None:
        self._producer.should_stop = self._whisperer.should_stop = True
        await all_done(list(tasks))

    async def _come_to_rest(self) -> None:
        """A leader everywhere, all replicas in sync and equal."""
        await self._within("all replicas are in sync", self._until(self.watch.is_at_rest))
        self.watch.compare_replicas()

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            await asyncio.sleep(LOOK_S)

    async def _within(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            async with asyncio.timeout(HEALED_S_MAX):
                await work
        except TimeoutError:
            raise Violation(f"not within {HEALED_S_MAX:.0f} s of healing: {what}\n{self.watch.describe()}") from None


async def all_done(tasks: list[asyncio.Task[None]]) -> None:
    """Wait without taking them along if patience ends."""
    done, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    for task in done:
        task.result()
    if waiting:
        await asyncio.wait(waiting)

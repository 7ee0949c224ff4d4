"""A cluster and its clients under faults; after healing, everything must work again in bounded time."""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from enum import Enum
from typing import Any, Final

from moldau.broker.internal_topics import INTERNAL
from moldau.client.async_client import AsyncClient
from moldau.model.errors import KafkaError, TopicAlreadyExists
from moldau.model.ports import Ports
from moldau.node.configuration import load_configuration
from moldau.node.node import Node
from moldau_dev.simulation.cluster.acks_one_producer import (
    PRODUCER_HOST,
    READER_HOST,
    AcksOneProducer,
    AcksOneReader,
    ReadValues,
)
from moldau_dev.simulation.cluster.acks_one_producer import TOPIC as ACKS_ONE_TOPIC
from moldau_dev.simulation.cluster.administrator import Administrator, with_frequent_snapshots
from moldau_dev.simulation.cluster.cluster_faults import (
    DISK_FAULTS,
    ELECTION_FAULTS,
    POWER_FAULTS,
    PROCESS_FAULTS,
    ClusterChaos,
    ClusterFault,
)
from moldau_dev.simulation.cluster.group_members import GroupLedger, Member
from moldau_dev.simulation.cluster.intruders import Intruders, SecuredTopology, secured
from moldau_dev.simulation.cluster.leadership_mover import LeadershipMover
from moldau_dev.simulation.cluster.observer import Observer
from moldau_dev.simulation.cluster.pipelined_producer import PipelinedProducer
from moldau_dev.simulation.cluster.targeted_faults import (
    LATE_REQUEST_TRIGGERS,
    REPLICA_TRIGGERS,
    TargetedFaults,
    Trigger,
)
from moldau_dev.simulation.cluster.topology import NodeSpec, Topology, format_folder
from moldau_dev.simulation.one_broker import first_cause
from moldau_dev.simulation.simulation import ACKNOWLEDGED_MIN, Host, Program, Script, Simulation
from moldau_dev.simulation.workload import Ledger, NumberProducer, NumberReader, Violation, client

READY_S_MAX: Final = 60.0
CHAOS_S: Final = 60.0
CHAOS_S_MAX: Final = 150.0
HEALED_S_MAX: Final = 120.0
POLL_S: Final = 0.5
TRIGGER_S_MEAN: Final = 2.0
RARE_TRIGGER_S_MEAN: Final = 6.0


class FaultProfile(Enum):
    """The faults of a run, which decide the guarantees that are checked.

    PROCESS: processes crash, also all at once. POWER: machines lose power, fewer than `min.insync.replicas` at a time.
    POWER_ALL: any number of machines lose power at once; topics are synced before each response. DISK: disks fail;
    topics are synced. ELECTIONS: as PROCESS, with voters that crash, restart and are cut off in quick succession.
    TARGETED: as PROCESS, and leaders fail when their followers diverge or one is about to join the ISR. LATE_REQUESTS:
    as PROCESS, and requests arrive after the brokers they name have restarted or lost their role. LEADER_MOVES: as
    PROCESS, and leaderships move back and forth faster than followers learn of it. STALE_CACHE: as POWER_ALL, and after
    a failed fsync the next process may read cached data that is not durable, before a power loss. ADMIN: as PROCESS,
    and an administrator creates and deletes topics, moves replicas and unregisters live brokers. SECURED: as PROCESS,
    with authentication and ACLs, and intruders that must not change anything.
    """

    PROCESS = "process"
    ELECTIONS = "elections"
    POWER = "power"
    POWER_ALL = "power-all"
    DISK = "disk"
    TARGETED = "targeted"
    LATE_REQUESTS = "late-requests"
    LEADER_MOVES = "leader-moves"
    STALE_CACHE = "stale-cache"
    ADMIN = "admin"
    SECURED = "secured"


FAULTS: Final = {
    FaultProfile.PROCESS: (PROCESS_FAULTS, (ClusterFault.CRASH,)),
    FaultProfile.ELECTIONS: (ELECTION_FAULTS, (ClusterFault.CRASH, ClusterFault.CUT_BOTH_WAYS)),
    FaultProfile.POWER: (
        (*PROCESS_FAULTS, ClusterFault.POWER_LOSS, ClusterFault.POWER_LOSS_IN_IO),
        (ClusterFault.POWER_LOSS,),
    ),
    FaultProfile.POWER_ALL: ((*PROCESS_FAULTS, *POWER_FAULTS), (ClusterFault.POWER_LOSS, ClusterFault.POWER_LOSS_ALL)),
    FaultProfile.DISK: ((*PROCESS_FAULTS, *DISK_FAULTS), DISK_FAULTS),
    FaultProfile.TARGETED: (PROCESS_FAULTS, (ClusterFault.CRASH,)),
    FaultProfile.LATE_REQUESTS: (PROCESS_FAULTS, (ClusterFault.CRASH,)),
    FaultProfile.LEADER_MOVES: (PROCESS_FAULTS, (ClusterFault.CRASH,)),
    FaultProfile.ADMIN: (PROCESS_FAULTS, (ClusterFault.CRASH,)),
    FaultProfile.SECURED: (PROCESS_FAULTS, (ClusterFault.CRASH,)),
    FaultProfile.STALE_CACHE: (
        (*PROCESS_FAULTS, *POWER_FAULTS, ClusterFault.FAILED_SYNC),
        (ClusterFault.FAILED_SYNC, ClusterFault.POWER_LOSS_ALL) * 2,
    ),
}
SYNCED_PROFILES: Final = (FaultProfile.POWER_ALL, FaultProfile.DISK, FaultProfile.STALE_CACHE)
DISK_FAULT_PROFILES: Final = (FaultProfile.DISK, FaultProfile.STALE_CACHE)
TRIGGERS: Final = {FaultProfile.TARGETED: REPLICA_TRIGGERS, FaultProfile.LATE_REQUESTS: LATE_REQUEST_TRIGGERS}


def cluster_world(profile: FaultProfile = FaultProfile.PROCESS, *, chaos_s: float = CHAOS_S) -> Script:
    """Return a script with a cluster under faults and clients that check its guarantees."""

    async def script(simulation: Simulation) -> None:
        simulation.disks_fail = profile in DISK_FAULT_PROFILES
        world = ClusterWorld(simulation, profile)
        try:
            await world.run(chaos_s)
        except BaseExceptionGroup as group:
            raise first_cause(group) from None

    return script


class ClusterWorld:
    """All parts of one run: nodes, clients, ledgers, observer and chaos."""

    def __init__(self, simulation: Simulation, profile: FaultProfile) -> None:
        self.simulation, self.profile = simulation, profile
        syncs = profile in SYNCED_PROFILES
        # Fewer machines than `min.insync.replicas` lose power at once, so for one it must be at least two.
        min_isr_min = 2 if profile is FaultProfile.POWER else 1
        self.topology = self.customize(
            Topology.draw(
                simulation.rng("roster"), syncs=syncs, min_isr_min=min_isr_min, votes=profile is FaultProfile.ELECTIONS
            )
        )
        simulation.trace.record("roster", self.topology.describe())
        self.nodes = {spec.host: simulation.host(spec.host) for spec in self.topology.specs}
        for spec in self.topology.specs:
            format_folder(self.nodes[spec.host], spec)
            self.nodes[spec.host].disk.faults.scatters = profile is FaultProfile.STALE_CACHE
        self.ledger = Ledger(self.topology.partitions, disks_fail=simulation.disks_fail, is_replicated=True)
        self.group, self.acks_one = GroupLedger(), ReadValues()
        self.observer = Observer(simulation, self.topology, self.nodes)
        faults, always = FAULTS[profile]
        self.chaos = ClusterChaos(
            simulation,
            list(self.nodes.values()),
            self.observer,
            faults,
            always,
            may_lose_power=self._may_lose_power,
            is_rapid=profile is FaultProfile.ELECTIONS,
        )
        if self.triggers:
            pause_s_mean = TRIGGER_S_MEAN if profile in TRIGGERS else RARE_TRIGGER_S_MEAN
            targeted = TargetedFaults(
                simulation,
                self.topology,
                self.nodes,
                self.triggers,
                pause_s_mean=pause_s_mean,
                start_if_down=self.chaos.start_if_down,
            )
            self.observer.more = (targeted.check,)
            self.chaos.injectors = (targeted.run,)
        if profile is FaultProfile.LEADER_MOVES:
            leadership_mover = LeadershipMover(simulation, self.observer, self.ledger)
            self.chaos.injectors = (*self.chaos.injectors, leadership_mover.run)
        self.administrator: Administrator | None = None
        if profile is FaultProfile.ADMIN:
            self.administrator = Administrator(simulation, self.observer, self.ledger)
            self.chaos.injectors = (*self.chaos.injectors, self.administrator.run)
        self.intruders: Intruders | None = None
        if isinstance(self.topology, SecuredTopology):
            self.intruders = Intruders(simulation, self.observer, self.topology, self.ledger)
            self.intruders.expect_topics(self.ledger.topic, ACKS_ONE_TOPIC, *INTERNAL)
            self.chaos.injectors = (*self.chaos.injectors, self.intruders.run)

    @property
    def triggers(self) -> tuple[Trigger, ...]:
        """The triggers of targeted faults."""
        return TRIGGERS.get(self.profile, ())

    def customize(self, topology: Topology) -> Topology:
        """Return the topology with the settings of this world."""
        if self.profile is FaultProfile.ADMIN:
            return with_frequent_snapshots(topology, self.simulation.rng("snapshots"))
        if self.profile is FaultProfile.SECURED:
            return secured(topology)
        return topology

    async def run(self, chaos_s: float) -> None:
        await self._start_nodes()
        if self.intruders is not None:
            async with asyncio.timeout(READY_S_MAX):
                await self.intruders.prepare()
        await self._run_as("admin", self._create_topics)
        async with asyncio.TaskGroup() as clients:
            tasks = [clients.create_task(self._run_as(name, program)) for name, program in self._clients().items()]
            await self.chaos.run(chaos_s, self._has_done_enough, CHAOS_S_MAX)
            await self._finish_clients(tasks)
        await self._settle()
        if self.administrator is not None:
            await self._within("all topics accept writes and have all acknowledged records", self.administrator.audit())
            await self._settle()
        if self.intruders is not None:
            await self._within("the guarded topic is read", self.intruders.audit())
        self.simulation.acknowledged = self.ledger.batches_acknowledged
        self.observer.close()
        if self.administrator is not None:
            self.administrator.count()
        if self.intruders is not None:
            self.intruders.count()

    async def _start_nodes(self) -> None:
        async with asyncio.timeout(READY_S_MAX):
            await asyncio.gather(*(self._start(spec) for spec in self.topology.specs))

    async def _start(self, spec: NodeSpec) -> None:
        host = self.nodes[spec.host]
        await host.start(self._node_program(host, spec))

    def _node_program(self, host: Host, spec: NodeSpec) -> Program:
        """Return a program that runs a real node on simulated ports. Its failure fails the run, unless disks fail."""
        settings = self.topology.settings_of(spec)
        configuration = load_configuration(overrides=[f"{name}={text}" for name, text in settings.items()])

        def on_failure(what: str, error: BaseException) -> None:
            if self.simulation.is_in_dead_process():
                return
            if not self.simulation.is_expected(error):
                self.simulation.fail(f"{host.name} failed: {what}", error)
            self.simulation.count("node failed", f"{host.name} {what}")
            self.simulation.loop.call_soon(host.exit, context=Context())

        async def program(ports: Ports) -> Node:
            node = Node(configuration, ports, on_failure=on_failure)
            self.observer.begin(host.name, node)
            await node.start()
            return node

        return program

    async def _create_topics(self, ports: Ports) -> None:
        async with client(ports, self.topology.bootstrap, "admin") as admin:
            for topic, partitions in ((self.ledger.topic, self.ledger.partitions), (ACKS_ONE_TOPIC, 1)):
                await self._create_topic(admin, topic, partitions)

    async def _create_topic(self, admin: AsyncClient, topic: str, partitions: int) -> None:
        """Create a topic with retries: brokers may still be starting, and a lost response may have been a success."""
        async with asyncio.timeout(READY_S_MAX):
            while True:
                try:
                    await admin.create_topic(
                        topic,
                        partitions=partitions,
                        replication_factor=self.topology.replicas,
                        configs=self.topology.topic_settings,
                    )
                    return
                except TopicAlreadyExists:
                    return
                except (OSError, KafkaError) as error:
                    await self.ledger.back_off(error)

    def _clients(self) -> dict[str, Program]:
        """Return the clients by host; each has its own host, so that it can be cut off alone."""
        programs: dict[str, Program] = {
            "producer": self._produce,
            "reader": self._read,
            PRODUCER_HOST: self._produce_with_acks_one,
            READER_HOST: self._read_acks_one,
        }
        self._members: list[Member] = []
        for number in range(1, self.topology.members + 1):
            programs[f"member-{number}"] = self._member(f"member-{number}")
        return programs

    def _member(self, name: str) -> Program:
        async def program(ports: Ports) -> None:
            rng = self.simulation.rng(name)
            member = Member(name, ports, self.topology.bootstrap, self.ledger, self.group, rng)
            self._members.append(member)
            await member.run()

        return program

    async def _produce(self, ports: Ports) -> None:
        rng, bootstrap = self.simulation.rng("producer"), self.topology.bootstrap
        self._producer: NumberProducer | PipelinedProducer
        if self.topology.in_flight == 1:
            self._producer = NumberProducer(ports, bootstrap, self.ledger, rng)
        else:
            self._producer = PipelinedProducer(ports, bootstrap, self.ledger, rng, self.simulation.tally)
        await self._producer.run()

    async def _read(self, ports: Ports) -> None:
        self._reader = NumberReader(ports, self.topology.bootstrap, self.ledger, self.simulation.rng("reader"))
        await self._reader.run()

    async def _produce_with_acks_one(self, ports: Ports) -> None:
        rng = self.simulation.rng(PRODUCER_HOST)
        self._acks_one_producer = AcksOneProducer(ports, self.topology.bootstrap, self.acks_one, self.ledger, rng)
        await self._acks_one_producer.run()

    async def _read_acks_one(self, ports: Ports) -> None:
        rng = self.simulation.rng(READER_HOST)
        self._acks_one_reader = AcksOneReader(ports, self.topology.bootstrap, self.acks_one, self.ledger, rng)
        await self._acks_one_reader.run()

    async def _run_as(self, name: str, program: Program) -> None:
        await self.simulation.host(name).start(program)

    def _has_done_enough(self) -> bool:
        is_enough = self.ledger.batches_acknowledged >= ACKNOWLEDGED_MIN
        others = (each for each in (self.administrator, self.intruders) if each is not None)
        return is_enough and all(each.has_done_enough() for each in others)

    def _may_lose_power(self, host: Host) -> bool:
        """Allow one power loss at a time, unless topics are synced: the next when all replicas are in sync again."""
        return self.topology.syncs or self.observer.has_recovered(except_for=host.name)

    # After healing

    async def _finish_clients(self, tasks: list[asyncio.Task[None]]) -> None:
        """Wait until every client has finished."""
        producing, reading, producing_acks_one, reading_acks_one, *members = tasks
        await self._within("every write is accepted", self._finish_writing(producing, producing_acks_one))
        self._reader.producer_is_done = self._acks_one_reader.should_stop = True
        for member in self._members:
            member.producer_is_done = True
        await self._within("all records are read", all_done([reading, reading_acks_one, *members]))

    async def _finish_writing(self, *tasks: asyncio.Task[None]) -> None:
        self._producer.should_stop = self._acks_one_producer.should_stop = True
        await all_done(list(tasks))

    async def _settle(self) -> None:
        """Wait until every partition has a leader and all replicas in sync, then compare the replicas."""
        await self._within("all replicas are in sync", self._until(self.observer.is_at_rest))
        self.observer.compare_replicas()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(POLL_S)

    async def _within(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            async with asyncio.timeout(HEALED_S_MAX):
                await work
        except TimeoutError:
            raise Violation(
                f"timed out {HEALED_S_MAX:.0f} s after healing: {what}\n{self.observer.describe()}"
            ) from None


async def all_done(tasks: list[asyncio.Task[None]]) -> None:
    """Wait for all tasks without cancelling them at a timeout; raise the first exception."""
    done, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    for task in done:
        task.result()
    if waiting:
        await asyncio.wait(waiting)

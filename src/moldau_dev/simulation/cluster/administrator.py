"""Administration under faults: delete and recreate topics, move replicas away and back, cancel reassignments,
unregister live brokers, add partitions, change topic settings.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Final

from moldau.client.async_client import AsyncClient
from moldau.client.brokers import Brokers
from moldau.client.errors import RETRIABLE, check
from moldau.client.reassignments import Election, Reassignments
from moldau.client.types import Resource, ResourceKind
from moldau.machines.metadata.image import MetadataImage, PartitionImage, TopicImage
from moldau.model.errors import ErrorCode, InvalidRequest, KafkaError, TopicAlreadyExists
from moldau.model.ids import TopicPartition
from moldau.model.ports import Ports
from moldau.wire import messages
from moldau_dev.simulation.cluster.observer import Observer
from moldau_dev.simulation.cluster.recreated_topics import (
    RECREATED_TOPICS,
    RecreatedTopicsLedger,
    RecreatedTopicsWriter,
)
from moldau_dev.simulation.cluster.topology import Topology
from moldau_dev.simulation.simulation import Inconclusive, Simulation
from moldau_dev.simulation.workload import Ledger, Violation, client

PARALLEL_ACTIONS: Final = 2
WRITERS: Final = 2
PAUSE_S_MEAN: Final = 0.7
STEP_DELAY_S_MAX: Final = 2.0  # between two steps of one action
PARTITIONS_MAX: Final = 4
CREATIONS_MAX: Final = 10
ACKNOWLEDGED_MIN: Final = 30

RECREATED: Final = "topic deleted and recreated"
MOVED: Final = "partition moved"
MOVED_BACK: Final = "partition moved away and back"
CANCELLED: Final = "reassignment cancelled"
UNREGISTERED: Final = "live broker unregistered"
PARTITIONS_ADDED: Final = "partitions added"
MIN_ISR: Final = "min.insync.replicas changed"
ELECTED: Final = "preferred leaders elected"
NEEDED: Final = (RECREATED, MOVED, UNREGISTERED)  # without these a run is inconclusive

# Errors that a request may get because the state has changed meanwhile, or too few brokers are up.
EXPECTED_ERRORS: Final = RETRIABLE | {
    ErrorCode.TOPIC_ALREADY_EXISTS,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.INVALID_PARTITIONS,
    ErrorCode.INVALID_REPLICATION_FACTOR,
    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
    ErrorCode.BROKER_ID_NOT_REGISTERED,
    ErrorCode.ELECTION_NOT_NEEDED,
}

# Small, so that starting nodes find a snapshot that lacks recent changes.
SNAPSHOT_BYTES: Final = (2_000, 5_000, 10_000)

Action = Callable[[AsyncClient], Coroutine[Any, Any, None]]


def with_frequent_snapshots(topology: Topology, rng: random.Random) -> Topology:
    """Return the topology with small snapshot intervals."""
    bytes_max = str(rng.choice(SNAPSHOT_BYTES))
    return replace(
        topology, settings={**topology.settings, "metadata.log.max.record.bytes.between.snapshots": bytes_max}
    )


class Administrator:
    """A fault injector with a client on its own host, and writers to the topics that it creates."""

    def __init__(self, simulation: Simulation, observer: Observer, ledger: Ledger) -> None:
        self._simulation, self._observer, self._ledger = simulation, observer, ledger
        self._rng = simulation.rng("administrator")
        self.recreated = RecreatedTopicsLedger()
        observer.replicas.ignored_topics = frozenset(RECREATED_TOPICS)
        self._brokers = [spec.node_id for spec in observer.topology.specs if spec.is_broker]
        self._actions: tuple[tuple[Action, int], ...] = (
            (self._create, 3),
            (self._recreate, 4),
            (self._delete, 1),
            (self._add_partition, 1),
            (self._move, 5),
            (self._move_away_and_back, 3),
            (self._cancel, 2),
            (self._change_min_isr, 1),
            (self._unregister, 2),
            (self._elect, 1),
        )

    def has_done_enough(self) -> bool:
        fired = self._simulation.fired
        return all(fired[each] for each in NEEDED) and self.recreated.acknowledged >= ACKNOWLEDGED_MIN

    async def run(self, is_active: Callable[[], bool]) -> None:
        """Run actions and writers while the chaos is active."""

        async def program(ports: Ports) -> None:
            bootstrap = self._observer.topology.bootstrap
            async with client(ports, bootstrap, "administrator") as admin, asyncio.TaskGroup() as tasks:
                for _ in range(PARALLEL_ACTIONS):
                    tasks.create_task(self._run_actions(admin, is_active))
                for number in range(WRITERS):
                    writer = self._writer(ports, f"errand-writer {number}")
                    tasks.create_task(writer.run(is_active, self._image))

        await self._simulation.host("administrator").start(program)

    async def audit(self) -> None:
        """After healing: check that no acknowledged record is missing."""

        async def program(ports: Ports) -> None:
            await self._writer(ports, "auditor").audit(self._image)

        await self._simulation.host("auditor").start(program)

    def count(self) -> None:
        """Add counts to the tally of the run; raise `Inconclusive` if too little happened."""
        self._simulation.tally["recreated topic writes"] += self.recreated.acknowledged
        if not self.has_done_enough():
            done = {each: self._simulation.fired[each] for each in NEEDED}
            writes = f"{self.recreated.acknowledged} acknowledged writes of {ACKNOWLEDGED_MIN}"
            raise Inconclusive(f"seed {self._simulation.seed} is inconclusive: {done}, {writes}")

    def _writer(self, ports: Ports, name: str) -> RecreatedTopicsWriter:
        rng = self._simulation.rng(name)
        return RecreatedTopicsWriter(ports, self._observer.topology.bootstrap, self.recreated, self._ledger, rng)

    async def _run_actions(self, admin: AsyncClient, is_active: Callable[[], bool]) -> None:
        actions, weights = zip(*self._actions, strict=True)
        while is_active():
            await asyncio.sleep(self._rng.expovariate(1.0) * PAUSE_S_MEAN)
            (action,) = self._rng.choices(actions, weights)
            try:
                await action(admin)
            except (OSError, KafkaError) as error:
                if isinstance(error, KafkaError) and error.code not in EXPECTED_ERRORS:
                    raise Violation(f"An administrator got an unexpected error: {error!r}") from error

    # Topics

    async def _create(self, admin: AsyncClient) -> None:
        missing = [name for name in RECREATED_TOPICS if name not in self._image().topics]
        if missing:
            await self._create_topic(admin, self._rng.choice(missing))

    async def _create_topic(self, admin: AsyncClient, name: str) -> None:
        await admin.create_topic(
            name,
            partitions=self._rng.randint(1, 2),
            replication_factor=self._rng.choice((1, 1, 2, 3, 3)),
            configs={"min.insync.replicas": self._rng.choice(("1", "2"))},
        )

    async def _delete(self, admin: AsyncClient) -> None:
        topic = self._random_topic()
        if topic is not None:
            await self._delete_topic(admin, topic)

    async def _delete_topic(self, admin: AsyncClient, topic: TopicImage) -> None:
        """Delete a topic by id: a late request must not delete a new topic of that name."""
        self.recreated.deleted.add(topic.topic_id)
        whole = messages.DeleteTopicsRequest
        states = [whole.DeleteTopicState(name=None, topic_id=topic.topic_id)]
        timeout_ms = admin.settings.request_timeout_ms
        response = await admin.send_to_controller(whole(topics=states, timeout_ms=timeout_ms))
        check(response.responses[0].error_code, response.responses[0].error_message)

    async def _recreate(self, admin: AsyncClient) -> None:
        topic = self._random_topic()
        if topic is None:
            return
        await self._delete_topic(admin, topic)
        await asyncio.sleep(self._rng.choice((0.0, self._rng.uniform(0.0, STEP_DELAY_S_MAX))))
        for _ in range(CREATIONS_MAX):
            try:
                await self._create_topic(admin, topic.name)
                break
            except TopicAlreadyExists:
                return  # created by a parallel action
            except (OSError, KafkaError) as error:
                if isinstance(error, KafkaError) and error.code not in EXPECTED_ERRORS:
                    raise
        else:
            return
        self._simulation.count(RECREATED, topic.name)

    async def _add_partition(self, admin: AsyncClient) -> None:
        topic = self._random_topic()
        if topic is not None and len(topic.partitions) < PARTITIONS_MAX:
            count = len(topic.partitions) + 1
            (outcome,) = await admin.create_partitions({topic.name: count})
            self._count_if_done(PARTITIONS_ADDED, f"{topic.name} {count}", outcome.error)

    async def _change_min_isr(self, admin: AsyncClient) -> None:
        topic = self._random_topic()
        if topic is not None:
            number = self._rng.choice(("1", "2"))
            await admin.alter_configs(Resource(ResourceKind.TOPIC, topic.name), {"min.insync.replicas": number})
            self._simulation.count(MIN_ISR, f"{topic.name} {number}")

    # Replicas

    async def _move(self, admin: AsyncClient) -> None:
        place, _ = self._random_partition()
        await self._move_to(admin, place, self._random_brokers(place), MOVED)

    async def _move_away_and_back(self, admin: AsyncClient) -> None:
        place, partition = self._random_partition()
        origin = tuple(each for each in partition.replicas if each not in partition.adding_replicas)
        await self._move_to(admin, place, self._random_brokers(place), MOVED)
        await asyncio.sleep(self._rng.uniform(0.0, STEP_DELAY_S_MAX))
        await self._move_to(admin, place, origin, MOVED_BACK)

    async def _move_to(self, admin: AsyncClient, place: TopicPartition, replicas: tuple[int, ...], what: str) -> None:
        outcomes = await Reassignments(admin).alter({place: replicas})
        self._count_if_done(what, f"{place} {replicas}", outcomes[place])

    async def _cancel(self, admin: AsyncClient) -> None:
        moving = [
            TopicPartition(topic.name, index)
            for topic in self._image().topics.values()
            for index, partition in enumerate(topic.partitions)
            if partition.is_moving
        ]
        if moving:
            place = self._rng.choice(moving)
            outcomes = await Reassignments(admin).alter({place: None})
            self._count_if_done(CANCELLED, str(place), outcomes[place])

    async def _elect(self, admin: AsyncClient) -> None:
        await Reassignments(admin).elect(Election.PREFERRED, None)
        self._simulation.count(ELECTED, "")

    # Brokers

    async def _unregister(self, admin: AsyncClient) -> None:
        """Unregister a broker; a live one registers again by itself."""
        broker = self._rng.choice(self._brokers)
        try:
            await Brokers(admin).unregister(broker)
        except InvalidRequest:
            return  # the last registered broker cannot be unregistered
        if self._simulation.hosts[self._observer.topology.host_of(broker)].is_up:
            self._simulation.count(UNREGISTERED, str(broker))

    # Choices

    def _image(self) -> MetadataImage:
        return self._observer.images.newest

    def _random_topic(self) -> TopicImage | None:
        topics = list(self.recreated.existing(self._image()))
        return self._rng.choice(topics) if topics else None

    def _random_partition(self) -> tuple[TopicPartition, PartitionImage]:
        topic = self._rng.choice(list(self._image().topics.values()))
        index = self._rng.randrange(len(topic.partitions))
        return TopicPartition(topic.name, index), topic.partitions[index]

    def _random_brokers(self, place: TopicPartition) -> tuple[int, ...]:
        """Return new replicas; topics of other clients keep at least `min.insync.replicas`."""
        counts = (1, 2, 3, 3) if place.topic in RECREATED_TOPICS else (2, 3, 3)
        return tuple(self._rng.sample(self._brokers, self._rng.choice(counts)))

    def _count_if_done(self, what: str, detail: str, error: KafkaError | None) -> None:
        if error is not None:
            raise error
        self._simulation.count(what, detail)

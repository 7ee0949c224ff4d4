"""Somebody at work while things go wrong: topics are deleted and made again under their names, replicas are moved
away and back, moves called off, brokers that live unregistered; topics get more partitions and other settings.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Final

from moldau.client.async_client import AsyncClient
from moldau.client.brokers import Brokers
from moldau.client.errors import PASSING, check
from moldau.client.reassignments import Election, Reassignments
from moldau.client.types import Resource, ResourceKind
from moldau.machines.metadata.image import MetadataImage, PartitionImage, TopicImage
from moldau.model.errors import ErrorCode, InvalidRequest, KafkaError, TopicAlreadyExists
from moldau.model.ids import TopicPartition
from moldau.model.ports import Ports
from moldau.wire import messages
from moldau_dev.simulation.cluster.recreated_topics import ERRANDS, ErrandLedger, ErrandWriter
from moldau_dev.simulation.cluster.roster import Roster
from moldau_dev.simulation.cluster.watch import Watch
from moldau_dev.simulation.simulation import Simulation, Unknown
from moldau_dev.simulation.workload import Ledger, Violation, client

HANDS: Final = 2  # so many things are done at the same time
WRITERS: Final = 2
PAUSE_S_MEAN: Final = 0.7
APART_S_MAX: Final = 2.0  # between two steps of one thing
PARTITIONS_MAX: Final = 4
CREATIONS_MAX: Final = 10
ACKNOWLEDGED_MIN: Final = 30

RENEWED: Final = "topic deleted and created again"
MOVED: Final = "partition moved"
MOVED_BACK: Final = "partition moved away and back"
CALLED_OFF: Final = "move called off"
UNREGISTERED: Final = "live broker unregistered"
GROWN: Final = "partitions added"
MIN_ISR: Final = "min.insync.replicas changed"
ELECTED: Final = "preferred leaders elected"
NEEDED: Final = (RENEWED, MOVED, UNREGISTERED)  # without these a run proves nothing

# What whoever asks may hear, because meanwhile something has changed, or too few brokers are there.
REFUSALS: Final = PASSING | {
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

# Nodes that start find a snapshot, and much of what has happened is not in it.
SNAPSHOT_BYTES: Final = (2_000, 5_000, 10_000)

Deed = Callable[[AsyncClient], Coroutine[Any, Any, None]]


def furnish(roster: Roster, chance: random.Random) -> Roster:
    """A cluster that has something to administer."""
    bytes_max = str(chance.choice(SNAPSHOT_BYTES))
    return replace(roster, settings={**roster.settings, "metadata.log.max.record.bytes.between.snapshots": bytes_max})


class Administrator:
    """An accomplice of the chaos, with a client on a host of its own, and writers to the topics that it makes."""

    def __init__(self, simulation: Simulation, watch: Watch, ledger: Ledger) -> None:
        self._simulation, self._watch, self._ledger = simulation, watch, ledger
        self._chance = simulation.chance("administrator")
        self.errands = ErrandLedger()
        watch.replicas.renewed = frozenset(ERRANDS)
        self._brokers = [seat.node_id for seat in watch.roster.seats if seat.is_broker]
        self._deeds: tuple[tuple[Deed, int], ...] = (
            (self._create, 3),
            (self._renew, 4),
            (self._delete, 1),
            (self._grow, 1),
            (self._move, 5),
            (self._move_away_and_back, 3),
            (self._call_off, 2),
            (self._change_min_isr, 1),
            (self._unregister, 2),
            (self._elect, 1),
        )

    def has_done_enough(self) -> bool:
        fired = self._simulation.fired
        return all(fired[each] for each in NEEDED) and self.errands.answered >= ACKNOWLEDGED_MIN

    async def work_on(self, goes_on: Callable[[], bool]) -> None:
        """As long as the chaos goes on."""

        async def program(ports: Ports) -> None:
            bootstrap = self._watch.roster.bootstrap
            async with client(ports, bootstrap, "administrator") as admin, asyncio.TaskGroup() as tasks:
                for _ in range(HANDS):
                    tasks.create_task(self._act_on(admin, goes_on))
                for number in range(WRITERS):
                    writer = self._writer(ports, f"errand-writer {number}")
                    tasks.create_task(writer.run(goes_on, self._image))

        await self._simulation.host("administrator").start(program)

    async def audit(self) -> None:
        """When all has healed: whatever was done, nothing that was acknowledged is missing."""

        async def program(ports: Ports) -> None:
            await self._writer(ports, "auditor").audit(self._image)

        await self._simulation.host("auditor").start(program)

    def count(self) -> None:
        """What came of it, for the sum of a sweep; and whether that could have gone wrong."""
        self._simulation.tally["errands acknowledged"] += self.errands.answered
        if not self.has_done_enough():
            done = {each: self._simulation.fired[each] for each in NEEDED}
            told = f"{self.errands.answered} errands acknowledged of {ACKNOWLEDGED_MIN}"
            raise Unknown(f"seed {self._simulation.seed} counts for nothing: {done}, {told}")

    def _writer(self, ports: Ports, name: str) -> ErrandWriter:
        chance = self._simulation.chance(name)
        return ErrandWriter(ports, self._watch.roster.bootstrap, self.errands, self._ledger, chance)

    async def _act_on(self, admin: AsyncClient, goes_on: Callable[[], bool]) -> None:
        deeds, weights = zip(*self._deeds, strict=True)
        while goes_on():
            await asyncio.sleep(self._chance.expovariate(1.0) * PAUSE_S_MEAN)
            (deed,) = self._chance.choices(deeds, weights)
            try:
                await deed(admin)
            except (OSError, KafkaError) as error:
                if isinstance(error, KafkaError) and error.code not in REFUSALS:
                    raise Violation(f"An administrator was told: {error!r}") from error

    # Topics

    async def _create(self, admin: AsyncClient) -> None:
        missing = [name for name in ERRANDS if name not in self._image().topics]
        if missing:
            await self._create_topic(admin, self._chance.choice(missing))

    async def _create_topic(self, admin: AsyncClient, name: str) -> None:
        await admin.create_topic(
            name,
            partitions=self._chance.randint(1, 2),
            replication_factor=self._chance.choice((1, 1, 2, 3, 3)),
            configs={"min.insync.replicas": self._chance.choice(("1", "2"))},
        )

    async def _delete(self, admin: AsyncClient) -> None:
        topic = self._an_errand()
        if topic is not None:
            await self._delete_topic(admin, topic)

    async def _delete_topic(self, admin: AsyncClient, topic: TopicImage) -> None:
        """By its id: a request that is late must not hit who has got its name since."""
        self.errands.given_up.add(topic.topic_id)
        whole = messages.DeleteTopicsRequest
        states = [whole.DeleteTopicState(name=None, topic_id=topic.topic_id)]
        timeout_ms = admin.settings.request_timeout_ms
        answer = await admin.send_to_controller(whole(topics=states, timeout_ms=timeout_ms))
        check(answer.responses[0].error_code, answer.responses[0].error_message)

    async def _renew(self, admin: AsyncClient) -> None:
        topic = self._an_errand()
        if topic is None:
            return
        await self._delete_topic(admin, topic)
        await asyncio.sleep(self._chance.choice((0.0, self._chance.uniform(0.0, APART_S_MAX))))
        for _ in range(CREATIONS_MAX):
            try:
                await self._create_topic(admin, topic.name)
                break
            except TopicAlreadyExists:
                return  # somebody else was faster
            except (OSError, KafkaError) as error:
                if isinstance(error, KafkaError) and error.code not in REFUSALS:
                    raise
        else:
            return
        self._simulation.count(RENEWED, topic.name)

    async def _grow(self, admin: AsyncClient) -> None:
        topic = self._an_errand()
        if topic is not None and len(topic.partitions) < PARTITIONS_MAX:
            count = len(topic.partitions) + 1
            (outcome,) = await admin.create_partitions({topic.name: count})
            self._done(GROWN, f"{topic.name} {count}", outcome.error)

    async def _change_min_isr(self, admin: AsyncClient) -> None:
        topic = self._an_errand()
        if topic is not None:
            number = self._chance.choice(("1", "2"))
            await admin.alter_configs(Resource(ResourceKind.TOPIC, topic.name), {"min.insync.replicas": number})
            self._simulation.count(MIN_ISR, f"{topic.name} {number}")

    # Replicas

    async def _move(self, admin: AsyncClient) -> None:
        place, _ = self._a_place()
        await self._move_to(admin, place, self._some_brokers(place), MOVED)

    async def _move_away_and_back(self, admin: AsyncClient) -> None:
        place, partition = self._a_place()
        origin = tuple(each for each in partition.replicas if each not in partition.adding_replicas)
        await self._move_to(admin, place, self._some_brokers(place), MOVED)
        await asyncio.sleep(self._chance.uniform(0.0, APART_S_MAX))
        await self._move_to(admin, place, origin, MOVED_BACK)

    async def _move_to(self, admin: AsyncClient, place: TopicPartition, replicas: tuple[int, ...], what: str) -> None:
        outcomes = await Reassignments(admin).alter({place: replicas})
        self._done(what, f"{place} {replicas}", outcomes[place])

    async def _call_off(self, admin: AsyncClient) -> None:
        moving = [
            TopicPartition(topic.name, index)
            for topic in self._image().topics.values()
            for index, partition in enumerate(topic.partitions)
            if partition.is_moving
        ]
        if moving:
            place = self._chance.choice(moving)
            outcomes = await Reassignments(admin).alter({place: None})
            self._done(CALLED_OFF, str(place), outcomes[place])

    async def _elect(self, admin: AsyncClient) -> None:
        await Reassignments(admin).elect(Election.PREFERRED, None)
        self._simulation.count(ELECTED, "")

    # Brokers

    async def _unregister(self, admin: AsyncClient) -> None:
        """One that lives comes back by itself."""
        broker = self._chance.choice(self._brokers)
        try:
            await Brokers(admin).unregister(broker)
        except InvalidRequest:
            return  # the others have not come back yet, and the last one may not go
        if self._simulation.hosts[self._watch.roster.host_of(broker)].is_up:
            self._simulation.count(UNREGISTERED, str(broker))

    # Choices

    def _image(self) -> MetadataImage:
        return self._watch.images.newest

    def _an_errand(self) -> TopicImage | None:
        topics = list(self.errands.living(self._image()))
        return self._chance.choice(topics) if topics else None

    def _a_place(self) -> tuple[TopicPartition, PartitionImage]:
        topic = self._chance.choice(list(self._image().topics.values()))
        index = self._chance.randrange(len(topic.partitions))
        return TopicPartition(topic.name, index), topic.partitions[index]

    def _some_brokers(self, place: TopicPartition) -> tuple[int, ...]:
        """What others write to keeps as many replicas as must be in sync."""
        counts = (1, 2, 3, 3) if place.topic in ERRANDS else (2, 3, 3)
        return tuple(self._chance.sample(self._brokers, self._chance.choice(counts)))

    def _done(self, what: str, detail: str, error: KafkaError | None) -> None:
        if error is not None:
            raise error
        self._simulation.count(what, detail)

"""A shard with consumer groups, changing topics, and well-behaved consumers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from groups_scene import WALL_AHEAD_MS, Scene

from moldau.machines.decision import Decision, Ticket
from moldau.machines.groups import Caller, GroupSettings, GroupsMachine, Record
from moldau.machines.groups.consumer.consumer_protocol import read_assignment
from moldau.machines.groups.consumer.group import ConsumerGroup
from moldau.machines.groups.consumer.groups import can_describe_all
from moldau.machines.groups.consumer.member import Member
from moldau.machines.groups.consumer.partitions import Assignment, CurrentAssignment
from moldau.machines.metadata.image import MetadataImage, PartitionImage, Resource, ResourceType, TopicImage
from moldau.model.errors import ErrorCode, KafkaError
from moldau.model.ids import TopicId
from moldau.wire import messages
from moldau.wire.data_records import decode_group_record, encode_data

SESSION_TIMEOUT_MS = 45_000
HEARTBEAT_MS = 5_000
UNSETTLED_MS = 1_000
REBALANCE_TIMEOUT_MS = 30_000

REQUESTER = Caller("client", "/10.0.0.1", 1)
JOIN: dict[str, Any] = {"rebalance_timeout_ms": 1_000, "subscribed_topic_names": ["a"], "topic_partitions": []}
PARTITION = PartitionImage((1,), (1,), 1, 0, 0)


def topic_id(name: str, incarnation: int = 0) -> TopicId:
    return TopicId(f"{name}:{incarnation}".encode().ljust(16, b"\0"))


class Prefixes:
    """Matches patterns of one form, a prefix and a star."""

    def check_pattern(self, pattern: str) -> None:
        if "(" in pattern:
            raise ValueError("missing )")

    def matching(self, pattern: str, names: Iterable[str]) -> Sequence[str]:
        return [name for name in names if name.startswith(pattern.removesuffix("*"))]


class ConsumerScene(Scene):
    """Topics are keyword arguments with their partition counts."""

    def __init__(self, settings: GroupSettings | None = None, **topics: int) -> None:
        self.image = MetadataImage(offset=0)
        self.names: dict[TopicId, str] = {}  # of all topics ever
        self.set_topics(**topics)
        super().__init__(settings)

    def elect(self) -> None:
        self.machine, self.shadow = self._replayed(), self._replayed()
        self.timers.clear()
        self.waiting.clear()
        self.run(lambda: self.machine.decide_elected(self.now_ms))

    def _replayed(self) -> GroupsMachine:
        machine = GroupsMachine(
            self.settings, wall_offset_ms=WALL_AHEAD_MS, image=lambda: self.image, matcher=Prefixes()
        )
        for offset, (key, value) in enumerate(self.log):
            machine.apply(decode_group_record(key, value), offset)
        return machine

    def run(self, decide: Callable[[], Decision[Record, Any]], ticket: Ticket | None = None) -> Any:
        """Raise a response that is an error, as a driver does."""
        response = super().run(decide, ticket)
        if isinstance(response, KafkaError):
            raise response
        return response

    # Topics

    def set_topics(self, **counts: int) -> None:
        """Replace the existing topics by these."""
        topics = {}
        for name, count in counts.items():
            old = self.image.topics.get(name)
            if old is not None and len(old.partitions) == count:
                topics[name] = old
            else:
                identity = old.topic_id if old is not None else topic_id(name, self.image.offset)
                topics[name] = TopicImage(name, identity, (PARTITION,) * count)
        by_id = {topic.topic_id: topic for topic in topics.values()}
        self.names.update({each: topic.name for each, topic in by_id.items()})
        self.image = MetadataImage(self.image.offset + 1, 0, topics, by_id, self.image.configs)

    def add_topics(self, **counts: int) -> None:
        self.set_topics(**{name: len(topic.partitions) for name, topic in self.image.topics.items()} | counts)

    def drop_topic(self, name: str) -> None:
        self.set_topics(**{each: len(topic.partitions) for each, topic in self.image.topics.items() if each != name})

    def set_group_config(self, group_id: str = "g", **values: str) -> None:
        configs = {
            Resource(ResourceType.GROUP, group_id): {key.replace("_", "."): value for key, value in values.items()}
        }
        self.image = MetadataImage(self.image.offset + 1, 0, self.image.topics, self.image.topics_by_id, configs)

    def id_of(self, name: str) -> TopicId:
        return self.image.topics[name].topic_id

    # Groups

    def consumer_group(self, group_id: str = "g") -> ConsumerGroup:
        return self.machine.state.consumer[group_id]

    def member(self, member_id: str, group_id: str = "g") -> Member:
        return self.consumer_group(group_id).members[member_id]

    # Requests

    def beat(
        self,
        member_id: str,
        epoch: int,
        *,
        group_id: str = "g",
        version: int = 1,
        client_id: str = "client",
        host: str = "/10.0.0.1",
        owned: Mapping[str, Iterable[int]] | None = None,
        **fields: Any,
    ) -> messages.ConsumerGroupHeartbeatResponse:
        """Send one heartbeat, with owned partitions by topic name; raise its error."""
        if owned is not None:
            fields["topic_partitions"] = as_owned({self.id_of(name): indexes for name, indexes in owned.items()})
        request = messages.ConsumerGroupHeartbeatRequest(
            group_id=group_id,
            member_id=member_id,
            member_epoch=epoch,
            **{"rebalance_timeout_ms": -1, **fields},
        )
        return self.send_heartbeat(request, Caller(client_id, host, version))

    def send_heartbeat(
        self,
        request: messages.ConsumerGroupHeartbeatRequest,
        caller: Caller = REQUESTER,
        can_describe: Callable[[str], bool] = can_describe_all,
    ) -> messages.ConsumerGroupHeartbeatResponse:
        randomness = self.random_bytes()
        response = self.run(
            lambda: self.machine.decide_consumer_heartbeat(
                request, caller, now=self.now, randomness=randomness, can_describe=can_describe
            )
        )
        assert isinstance(response, messages.ConsumerGroupHeartbeatResponse)
        return response

    def append(self, key: Any, value: Any) -> None:
        """Append a record that another writer wrote."""
        self._append((key, value))

    @property
    def records(self) -> list[tuple[Any, Any]]:
        return [decode_group_record(key, value) for key, value in self.log]

    def join_consumer(self, member_id: str, *topics: str, **options: Any) -> messages.ConsumerGroupHeartbeatResponse:
        """Send the first heartbeat of a member."""
        return self.beat(
            member_id,
            0,
            **{
                "rebalance_timeout_ms": REBALANCE_TIMEOUT_MS,
                "subscribed_topic_names": list(topics),
                "owned": {},
                **options,
            },
        )

    def rejection(self, member_id: str, epoch: int, **options: Any) -> tuple[ErrorCode, str]:
        """Return the error of a heartbeat."""
        try:
            self.beat(member_id, epoch, **options)
        except KafkaError as error:
            return error.code, error.message
        return ErrorCode.NONE, ""

    def named(self, response: messages.ConsumerGroupHeartbeatResponse) -> dict[str, list[int]] | None:
        """Return the assignment of a response by topic name; None if it has none."""
        if response.assignment is None:
            return None
        return {
            self.names[TopicId(each.topic_id)]: list(each.partitions) for each in response.assignment.topic_partitions
        }


class Consumer:
    """A well-behaved member: it revokes partitions and acknowledges that, then takes its new assignment."""

    def __init__(self, scene: ConsumerScene, member_id: str, *topics: str, **options: Any) -> None:
        self.scene = scene
        self.member_id = member_id
        self.topics = topics
        self.options = options  # sent with every heartbeat
        self.epoch = 0
        self.held: dict[TopicId, list[int]] = {}
        self.interval_ms = 0
        self._must_report = True

    def join(self, **options: Any) -> "Consumer":
        self.epoch, self.held = 0, {}
        self.take(self.scene.join_consumer(self.member_id, *self.topics, **self.options, **options))
        return self

    def beat(self, **options: Any) -> bool:
        """Send one heartbeat; return whether it changed anything."""
        before = self.epoch, self.held
        owned = {"topic_partitions": as_owned(self.held)} if self._must_report else {}
        self._must_report = False
        self.take(self.scene.beat(self.member_id, self.epoch, **{**self.options, **owned, **options}))
        return (self.epoch, self.held) != before

    def take(self, response: messages.ConsumerGroupHeartbeatResponse) -> None:
        """Apply a response."""
        self.epoch, self.interval_ms = response.member_epoch, response.heartbeat_interval_ms
        if response.assignment is not None:
            new = {TopicId(each.topic_id): list(each.partitions) for each in response.assignment.topic_partitions}
            self._must_report = self._must_report or new != self.held
            self.held = new

    @property
    def owned(self) -> dict[str, list[int]]:
        """Return the owned partitions by topic name."""
        return {self.scene.names[topic_id]: indexes for topic_id, indexes in self.held.items()}

    @property
    def count(self) -> int:
        return sum(map(len, self.held.values()))


def each_partition(assignment: Assignment | CurrentAssignment) -> list[tuple[TopicId, int]]:
    """Yield the partitions in an order that does not depend on the construction of the sets."""
    return [(topic_id, index) for topic_id in sorted(assignment) for index in sorted(assignment[topic_id])]


def as_owned(held: Mapping[TopicId, Iterable[int]]) -> list[messages.ConsumerGroupHeartbeatRequest.TopicPartitions]:
    return [
        messages.ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=topic_id, partitions=sorted(indexes))
        for topic_id, indexes in held.items()
    ]


class ClassicConsumer:
    """A member with a client of the classic protocol: it joins on a rebalance, and then syncs."""

    def __init__(self, scene: ConsumerScene, *topics: str, instance_id: str | None = None, **options: Any) -> None:
        self.scene = scene
        self.topics = topics
        self.instance_id = instance_id
        self.options = options
        self.member_id = ""
        self.generation = -1
        self.owned: dict[str, list[int]] = {}
        self.is_cooperative = options.pop("is_cooperative", True)

    def send_join(self) -> Ticket:
        if not self.is_cooperative:
            self.owned = {}
        protocols = (("range", owned_subscription(*self.topics, owned=self.owned)),)
        return self.scene.send_join(
            self.member_id, protocols=protocols, instance_id=self.instance_id, **{"version": 9, **self.options}
        )

    def join(self) -> "ClassicConsumer":
        """Join a group with a server-side assignor: no other member is waited for."""
        ticket = self.send_join()
        if self.scene.error(ticket) == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = self.scene.responses[ticket].member_id
            ticket = self.send_join()
        response = self.scene.responses[ticket]
        assert response.error_code == ErrorCode.NONE
        self.member_id, self.generation = response.member_id, response.generation_id
        return self

    def sync(self) -> ErrorCode:
        ticket = self.scene.send_sync(self.member_id, self.generation, instance_id=self.instance_id)
        response = self.scene.responses[ticket]
        if response.error_code == ErrorCode.NONE:
            parts = read_assignment(response.assignment).assigned_partitions
            self.owned = {each.topic: list(each.partitions) for each in parts}
        return ErrorCode(response.error_code)

    def beat(self) -> bool:
        """Send a heartbeat and what it calls for; return whether anything changed."""
        before = self.generation, self.owned
        error = self.scene.heartbeat(self.member_id, self.generation, instance_id=self.instance_id)
        if error == ErrorCode.REBALANCE_IN_PROGRESS:
            self.join()
            self.sync()
        else:
            assert error == ErrorCode.NONE
        return (self.generation, self.owned) != before


class Beating(Protocol):
    """Sends heartbeats, in either protocol."""

    def beat(self) -> bool: ...


def settle(*consumers: Beating, rounds: int = 20) -> int:
    """Send heartbeats in turn until nothing changes; return the number of rounds."""
    for number in range(rounds):
        if not any([each.beat() for each in consumers]):  # noqa: C419  # all of them beat
            return number
    raise AssertionError("the group does not settle")


def owned_subscription(*topics: str, owned: Mapping[str, Iterable[int]] | None = None, version: int = 3) -> bytes:
    """Return the subscription of a classic consumer with its owned partitions."""
    held = [
        messages.ConsumerProtocolSubscription.TopicPartition(topic=name, partitions=sorted(indexes))
        for name, indexes in (owned or {}).items()
    ]
    message = messages.ConsumerProtocolSubscription(topics=list(topics), owned_partitions=held)
    return version.to_bytes(2, "big") + encode_data(message, version)

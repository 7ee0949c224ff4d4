"""Group members, each a real client in its own thread, behind one interface."""

import asyncio
import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, ClassVar, Final, NamedTuple, Self

import aiokafka
import confluent_kafka
import kafka
from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AioRange
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor as AioRoundRobin
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor as AioSticky
from aiokafka.errors import KafkaError
from kafka.coordinator.assignors.range import RangePartitionAssignor as PythonRange
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor as PythonRoundRobin
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor as PythonSticky

WAIT_S: Final = 30.0
SESSION_MS: Final = 6_000
HEARTBEAT_MS: Final = 200
POLL_S: Final = 0.05
AUTO_COMMIT_MS: Final = 200


class Seen(NamedTuple):
    """One record as read by a member."""

    partition: int
    offset: int
    value: bytes


class GroupConsumer(ABC):
    """A member that reads until it is stopped; its records and partitions can be inspected meanwhile."""

    flavours: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self, servers: str, group_id: str, topic: str, flavour: str, *, instance_id: str | None = None
    ) -> None:
        self.servers, self.group_id, self.topic, self.flavour = servers, group_id, topic, flavour
        self.instance_id = instance_id
        self.seen: list[Seen] = []
        self.owned: set[int] = set()
        self.revoked: list[set[int]] = []  # the revoked partitions of each rebalance
        self.failure: BaseException | None = None
        self._should_stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Commit, and leave the group unless the member is static."""
        self._should_stop.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), "the member did not end"
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            self._read()
        except BaseException as error:
            self.failure = error

    def _add(self, partitions: Iterable[int]) -> None:
        self.owned |= set(partitions)

    def _remove(self, partitions: Iterable[int]) -> None:
        gone = set(partitions) & self.owned
        if gone:
            self.revoked.append(gone)
        self.owned -= gone

    @abstractmethod
    def _read(self) -> None:
        """Subscribe, poll until `_should_stop`, commit, close."""


class ConfluentMember(GroupConsumer):
    flavours = ("range", "roundrobin", "cooperative-sticky", "consumer")

    def _read(self) -> None:
        consumer = confluent_kafka.Consumer(self._options())
        consumer.subscribe([self.topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke)
        while not self._should_stop.is_set():
            messages: list[Any] = consumer.consume(100, POLL_S)
            self.seen += [
                Seen(each.partition(), each.offset(), each.value()) for each in messages if each.error() is None
            ]
        consumer.close()

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {
            "bootstrap.servers": self.servers,
            "group.id": self.group_id,
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": AUTO_COMMIT_MS,
            "topic.metadata.refresh.interval.ms": 500,
            "log_level": 0,
        }
        if self.instance_id is not None:
            options["group.instance.id"] = self.instance_id
        if self.flavour == "consumer":
            return {**options, "group.protocol": "consumer"}
        return {
            **options,
            "partition.assignment.strategy": self.flavour,
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": HEARTBEAT_MS,
        }

    def _on_assign(self, consumer: confluent_kafka.Consumer, partitions: list[Any]) -> None:  # noqa: ARG002
        self._add(each.partition for each in partitions)

    def _on_revoke(self, consumer: confluent_kafka.Consumer, partitions: list[Any]) -> None:  # noqa: ARG002
        self._remove(each.partition for each in partitions)


class KafkaPythonMember(GroupConsumer):
    assignors: ClassVar[dict[str, Any]] = {
        "range": PythonRange,
        "roundrobin": PythonRoundRobin,
        "sticky": PythonSticky,
    }
    flavours = tuple(assignors)

    def _read(self) -> None:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=self.servers,
            group_id=self.group_id,
            group_instance_id=self.instance_id,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=AUTO_COMMIT_MS,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            partition_assignment_strategy=[self.assignors[self.flavour]],
        )
        member = self

        class Listener(kafka.ConsumerRebalanceListener):
            def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
                member._add(each.partition for each in assigned)

            def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
                member._remove(each.partition for each in revoked)

        consumer.subscribe([self.topic], listener=Listener())
        while not self._should_stop.is_set():
            for records in consumer.poll(timeout_ms=int(POLL_S * 1000)).values():
                self.seen += [Seen(each.partition, each.offset, each.value) for each in records]
        consumer.close()


class AioKafkaMember(GroupConsumer):
    assignors: ClassVar[dict[str, Any]] = {"range": AioRange, "roundrobin": AioRoundRobin, "sticky": AioSticky}
    flavours = tuple(assignors)

    def _read(self) -> None:
        asyncio.run(self._read_all())

    async def _read_all(self) -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=self.servers,
            group_id=self.group_id,
            group_instance_id=self.instance_id,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=AUTO_COMMIT_MS,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            partition_assignment_strategy=(self.assignors[self.flavour],),
        )
        member = self

        class Listener(aiokafka.ConsumerRebalanceListener):
            async def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
                member._add(each.partition for each in assigned)

            async def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
                member._remove(each.partition for each in revoked)

        consumer.subscribe([self.topic], listener=Listener())
        await consumer.start()
        try:
            while not self._should_stop.is_set():
                found: dict[Any, list[Any]] = await consumer.getmany(timeout_ms=int(POLL_S * 1000))
                self.seen += [
                    Seen(each.partition, each.offset, each.value) for records in found.values() for each in records
                ]
        finally:
            await self._find_the_coordinator(consumer)
            await self._stop(consumer)

    @staticmethod
    async def _stop(consumer: Any) -> None:
        """Stop an aiokafka consumer, which may raise the cancellation of a waiting fetch and leave its sockets open."""
        try:
            await consumer.stop()
        except asyncio.CancelledError:
            await consumer._client.close()

    @staticmethod
    async def _find_the_coordinator(consumer: Any) -> None:
        """Find the coordinator first: aiokafka never stops if it is stopped during that search."""
        with contextlib.suppress(KafkaError):  # the coordinator does not know the member at the moment
            await consumer.commit()


FLAVOURS: Final = [
    (kind, flavour) for kind in (ConfluentMember, KafkaPythonMember, AioKafkaMember) for flavour in kind.flavours
]


def until(condition: Callable[[], bool], what: str, wait_s: float = WAIT_S) -> None:
    """Wait for a condition that depends on other threads."""
    deadline_s = time.monotonic() + wait_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise AssertionError(f"not in {wait_s} s: {what}")
        time.sleep(0.01)  # polls the state of other threads

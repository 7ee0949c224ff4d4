"""The checks of `moldau self-test`: what clients do with a cluster, once, in a topic and a group of its own."""

import struct
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from moldau.client.async_client import AsyncClient
from moldau.client.coordinators import GROUP_KEY, Coordinator, single_error_code
from moldau.client.groups import Groups
from moldau.client.health import check_health
from moldau.client.transactional_producer import TransactionalProducer
from moldau.client.types import Isolation
from moldau.client.visibility import visible_batches
from moldau.model.errors import ErrorCode, GroupIdNotFound, KafkaError, UnknownTopicOrPartition
from moldau.model.ids import TopicPartition
from moldau.model.ports import Clock
from moldau.model.units import SECOND_MS
from moldau.records.record import iterate_records
from moldau.wire import messages

RECORDS: Final = 10  # per partition and batch
PARTITIONS_MAX: Final = 100  # in a larger cluster, some brokers lead none
SESSION_MS: Final = 10 * SECOND_MS
FETCH_WAIT_MS: Final = 200
JOIN_AT_MOST: Final = 3  # the newest version in which the coordinator names a member without a second request
OFFSET_COMMIT_AT_MOST: Final = 9  # the newest version with names of topics
PROTOCOL: Final = "range"
EXPECTED: Final = (KafkaError, OSError)  # also timeouts; anything else is a bug


class CheckFailed(Exception):
    """The cluster responded, but not with what was written."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The outcome of one check; `detail` says what was checked, or what is wrong."""

    name: str
    is_passed: bool
    elapsed_ms: int
    detail: str


@dataclass(slots=True)
class RoundTrip:
    """Runs the checks in order until one fails, and removes what they made.

    `name` is that of the topic, the group and the transactional id.
    """

    client: AsyncClient
    clock: Clock
    name: str
    timeout_ms: int
    results: list[CheckResult] = field(default_factory=list)
    _partitions: int = 0
    _is_created: bool = False
    _has_group: bool = False

    @property
    def is_passed(self) -> bool:
        return all(each.is_passed for each in self.results)

    async def run(self) -> None:
        checks = (
            ("cluster", self._check_cluster),
            ("topic", self._check_topic),
            ("produce", self._check_produce),
            ("consume", self._check_consume),
            ("transaction", self._check_transactions),
            ("group", self._check_group),
        )
        try:
            for name, check in checks:
                if not await self._passes(name, check):
                    break
        finally:
            await self._passes("cleanup", self._clean_up)

    async def _passes(self, name: str, check: Callable[[], Awaitable[str]]) -> bool:
        begun_ms = self.clock.monotonic_ms()
        try:
            detail, is_passed = await check(), True
        except CheckFailed as error:
            detail, is_passed = str(error), False
        except EXPECTED as error:
            detail, is_passed = str(error) or type(error).__name__, False
        self.results.append(CheckResult(name, is_passed, round(self.clock.monotonic_ms() - begun_ms), detail))
        return is_passed

    async def _check_cluster(self) -> str:
        health = await check_health(self.client)
        self._partitions = min(len(health.cluster.brokers), PARTITIONS_MAX)
        state = "; ".join(health.problems()) or "healthy"
        return f"brokers {len(health.cluster.brokers)}, partitions {health.partitions}: {state}"

    async def _check_topic(self) -> str:
        self._is_created = True  # even a creation that times out may succeed later
        try:
            await self.client.create_topic(self.name, partitions=self._partitions)
        except KafkaError as error:
            self._is_created = error.code == ErrorCode.REQUEST_TIMED_OUT
            raise
        view = await self.client.retry(lambda: self.client.topic(self.name), about=self.name)
        replicas = len(view.partitions[0].replicas)
        return f"{self.name}: partitions {len(view.partitions)}, replicas {replicas}"

    async def _check_produce(self) -> str:
        for partition in range(self._partitions):
            await self.client.produce(self.name, partition, self._records(f"p{partition}"))
        return f"{self._partitions * RECORDS} records with acks=all"

    async def _check_consume(self) -> str:
        for partition in range(self._partitions):
            expected = self._values(f"p{partition}")
            await self._compare(partition, expected, RECORDS, Isolation.READ_UNCOMMITTED)
        return f"{self._partitions * RECORDS} records, in order"

    async def _check_transactions(self) -> str:
        """Commit one transaction over all partitions, abort another one, and read as consumers with read_committed."""
        producer = TransactionalProducer(self.client, self.name, timeout_ms=self.timeout_ms)
        await producer.initialise()
        ends = {}
        for text, is_commit in (("committed", True), ("aborted", False)):
            for partition in range(self._partitions):
                offset = await producer.send(self.name, partition, self._records(f"{text}{partition}"))
                ends[partition] = offset + RECORDS
            await producer.end(is_commit=is_commit)
        for partition, end in ends.items():
            expected = [*self._values(f"p{partition}"), *self._values(f"committed{partition}")]
            await self._compare(partition, expected, end, Isolation.READ_COMMITTED)
        return "the committed one is visible, the aborted one is not"

    async def _check_group(self) -> str:
        """Join a group as its only member, commit as the member, and leave."""
        self._has_group = True
        coordinator = Coordinator(self.client, self.name, GROUP_KEY)
        member, generation = await self._join(coordinator)
        share = messages.SyncGroupRequest.SyncGroupRequestAssignment(member_id=member, assignment=b"")
        sync = messages.SyncGroupRequest(
            group_id=self.name,
            generation_id=generation,
            member_id=member,
            protocol_type="consumer",
            protocol_name=PROTOCOL,
            assignments=[share],
        )
        await coordinator.send(sync, single_error_code)
        heartbeat = messages.HeartbeatRequest(group_id=self.name, generation_id=generation, member_id=member)
        await coordinator.send(heartbeat, single_error_code)
        await coordinator.send(
            self._commit_request(member, generation), _commit_codes, version_at_most=OFFSET_COMMIT_AT_MOST
        )
        committed = await Groups(self.client).offsets(self.name)
        if committed != {TopicPartition(self.name, partition): RECORDS for partition in range(self._partitions)}:
            raise CheckFailed(f"committed offset {RECORDS} of {self._partitions} partitions, found {committed}")
        leaver = messages.LeaveGroupRequest.MemberIdentity(member_id=member)
        await coordinator.send(messages.LeaveGroupRequest(group_id=self.name, members=[leaver]), single_error_code)
        return "joined, committed, left"

    async def _join(self, coordinator: Coordinator) -> tuple[str, int]:
        topic = self.name.encode()
        subscription = struct.pack(f">hih{len(topic)}si", 0, 1, len(topic), topic, -1)  # version 0, without user data
        request = messages.JoinGroupRequest(
            group_id=self.name,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=SESSION_MS,
            member_id="",
            protocol_type="consumer",
            protocols=[messages.JoinGroupRequest.JoinGroupRequestProtocol(name=PROTOCOL, metadata=subscription)],
        )
        response = await coordinator.send(request, single_error_code, version_at_most=JOIN_AT_MOST)
        return response.member_id, response.generation_id

    def _commit_request(self, member: str, generation: int) -> messages.OffsetCommitRequest:
        whole = messages.OffsetCommitRequest
        partitions = [
            whole.OffsetCommitRequestPartition(
                partition_index=partition, committed_offset=RECORDS, committed_metadata=""
            )
            for partition in range(self._partitions)
        ]
        return whole(
            group_id=self.name,
            generation_id_or_member_epoch=generation,
            member_id=member,
            topics=[whole.OffsetCommitRequestTopic(name=self.name, partitions=partitions)],
        )

    async def _clean_up(self) -> str:
        """Delete group and topic. A transactional id has no deletion: the cluster lets it expire."""
        if self._is_created:
            with suppress(UnknownTopicOrPartition):  # its creation timed out
                await self.client.delete_topic(self.name)
        if self._has_group:
            with suppress(GroupIdNotFound):  # it did not form
                await Groups(self.client).delete(self.name)
        return "topic and group are deleted"

    def _values(self, text: str) -> list[bytes]:
        return [f"{text}-{number}".encode() for number in range(RECORDS)]

    def _records(self, text: str) -> list[Any]:
        now_ms = self.clock.wall_ms()
        return [(now_ms, value, value, ()) for value in self._values(text)]

    async def _compare(self, partition: int, expected: Sequence[bytes], end: int, isolation: Isolation) -> None:
        """Read up to the end offset, and compare what is visible."""
        deadline_ms = self.clock.monotonic_ms() + self.timeout_ms
        position, values = 0, list[bytes | None]()
        while position < end:
            if self.clock.monotonic_ms() > deadline_ms:
                raise CheckFailed(f"partition {partition} could be read up to offset {position} only, not to {end}")
            fetched = await self.client.fetch(
                self.name, partition, position, max_wait_ms=FETCH_WAIT_MS, isolation=isolation
            )
            for header, batch, is_visible in visible_batches(fetched.records, fetched.aborted, isolation):
                position = header.last_offset + 1
                values += [record.value for record in iterate_records(batch)] if is_visible else []
        if values != list(expected):
            raise CheckFailed(f"partition {partition} has {len(values)} records, not the {len(expected)} written ones")


def _commit_codes(response: Any) -> list[int]:
    return [each.error_code for topic in response.topics for each in topic.partitions]

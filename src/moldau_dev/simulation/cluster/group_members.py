"""Members of a consumer group that read and commit the numbers, and check the group coordinator."""

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from moldau.client.async_client import AsyncClient
from moldau.client.errors import check
from moldau.client.groups import FETCH_AT_MOST, Groups, decode_assignment
from moldau.model.errors import ErrorCode, KafkaError
from moldau.model.ids import Address
from moldau.model.ports import Ports
from moldau.records.record import iterate_batches, iterate_records
from moldau.wire import messages
from moldau.wire.data_records import encode_versioned
from moldau_dev.simulation.workload import Ledger, Violation, client

GROUP: Final = "readers"
SESSION_MS: Final = 6_000
REBALANCE_MS: Final = 8_000
JOIN_MS_MAX: Final = 12_000
HEARTBEAT_S: Final = 0.5
COMMIT_AT_MOST: Final = 8
FETCH_BYTES_MAX: Final = 10_000
LAST_FETCH_BYTES_MAX: Final = 200_000  # once the producer is done
JOIN_ATTEMPTS_MAX: Final = 3

# The member has to rejoin, for most of these with a new member id.
_REJOIN: Final = (
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_INSTANCE_ID,
)


@dataclass(slots=True)
class GroupLedger:
    """The progress of the group, per partition."""

    owners: dict[tuple[int, int], str] = field(default_factory=dict)  # by generation and partition
    committed: dict[int, int] = field(default_factory=dict)  # acknowledged commits
    frontier: dict[int, int] = field(default_factory=dict)  # end of what members have read
    generations: int = 0

    def own(self, member: str, generation: int, partitions: list[int]) -> None:
        self.generations = max(self.generations, generation)
        for partition in partitions:
            owner = self.owners.setdefault((generation, partition), member)
            if owner != member:
                raise Violation(
                    f"{GROUP}: partition {partition} has two owners in generation {generation}: {owner} and {member}"
                )

    def resume(self, partition: int, offset: int, floor: int) -> None:
        """Check the offset at which a member resumes: at least the last acknowledged commit, at most what was read."""
        if offset < floor:
            raise Violation(f"{GROUP}: partition {partition}: {offset} was fetched, but {floor} was committed before")
        if offset > self.frontier.get(partition, 0):
            read = self.frontier.get(partition, 0)
            raise Violation(f"{GROUP}: partition {partition}: {offset} was fetched, but only {read} records were read")

    def read(self, partition: int, end_offset: int) -> None:
        self.frontier[partition] = max(self.frontier.get(partition, 0), end_offset)

    def commit(self, partition: int, offset: int) -> None:
        self.committed[partition] = max(self.committed.get(partition, 0), offset)


class Member:
    """Joins, reads its partitions and commits; sometimes leaves the group or vanishes without leaving."""

    def __init__(
        self,
        name: str,
        ports: Ports,
        bootstrap: list[Address],
        ledger: Ledger,
        group: GroupLedger,
        rng: random.Random,
    ) -> None:
        self.producer_is_done = False
        self._ledger, self._group, self._rng = ledger, group, rng
        self._client: AsyncClient = client(ports, bootstrap, name)
        self._groups = Groups(self._client)
        self._member_id = ""
        self._generation = -1
        self._coordinator = -1

    async def run(self) -> None:
        """Run until the group has read and committed all acknowledged numbers."""
        async with self._client:
            while not self._is_done():
                try:
                    partitions = await self._join()
                    await self._work(partitions)
                except (OSError, KafkaError) as error:
                    await self._handle_error(error)

    def _is_done(self) -> bool:
        ends = self._ledger.acknowledged
        return self.producer_is_done and all(
            self._group.committed.get(partition, 0) >= end for partition, end in enumerate(ends)
        )

    async def _handle_error(self, error: OSError | KafkaError) -> None:
        if isinstance(error, KafkaError) and error.code in _REJOIN:
            if error.code != ErrorCode.REBALANCE_IN_PROGRESS:
                self._member_id = ""
            return
        await self._ledger.back_off(error)

    # Joining

    async def _join(self) -> list[int]:
        self._coordinator = await self._groups.coordinator(GROUP)
        joined = await self._send_join()
        self._member_id, self._generation = joined.member_id, joined.generation_id
        assignments = (
            self._assignments([each.member_id for each in joined.members]) if joined.leader == self._member_id else {}
        )
        response = await self._send(
            messages.SyncGroupRequest(
                group_id=GROUP,
                generation_id=self._generation,
                member_id=self._member_id,
                protocol_type="consumer",
                protocol_name="range",
                assignments=[
                    messages.SyncGroupRequest.SyncGroupRequestAssignment(member_id=member, assignment=assignment)
                    for member, assignment in assignments.items()
                ],
            ),
            timeout_ms=JOIN_MS_MAX,
        )
        check(response.error_code)
        partitions = sorted(place.partition for place in decode_assignment(response.assignment))
        self._group.own(self._member_id, self._generation, partitions)
        return partitions

    async def _send_join(self) -> Any:
        for _ in range(JOIN_ATTEMPTS_MAX):
            response = await self._send(self._join_request(), timeout_ms=JOIN_MS_MAX)
            if response.error_code != ErrorCode.MEMBER_ID_REQUIRED:
                break
            self._member_id = response.member_id
        check(response.error_code)
        return response

    def _join_request(self) -> messages.JoinGroupRequest:
        topics = messages.ConsumerProtocolSubscription(topics=[self._ledger.topic])
        protocol = messages.JoinGroupRequest.JoinGroupRequestProtocol(
            name="range", metadata=encode_versioned(topics, 0)
        )
        return messages.JoinGroupRequest(
            group_id=GROUP,
            member_id=self._member_id,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            protocol_type="consumer",
            protocols=[protocol],
        )

    def _assignments(self, members: list[str]) -> Mapping[str, bytes]:
        """As the group leader: assign the partitions round robin."""
        assignment = messages.ConsumerProtocolAssignment
        assignments = {}
        for number, member in enumerate(sorted(members)):
            indexes = list(range(number, self._ledger.partitions, len(members)))
            assigned = [assignment.TopicPartition(topic=self._ledger.topic, partitions=indexes)]
            assignments[member] = encode_versioned(assignment(assigned_partitions=assigned), 0)
        return assignments

    # Reading

    async def _work(self, partitions: list[int]) -> None:
        positions = await self._resume(partitions)
        while not self._is_done():
            await self._heartbeat()
            for partition in partitions:
                positions[partition] = await self._read(partition, positions[partition])
            await self._commit(positions)
            await asyncio.sleep(self._rng.uniform(0.0, HEARTBEAT_S))
            if self._rng.random() < 0.02:
                self._member_id = ""  # vanish: the session times out
                return
        await self._leave()

    async def _resume(self, partitions: list[int]) -> dict[int, int]:
        floors = {partition: self._group.committed.get(partition, 0) for partition in partitions}
        if not partitions:
            return {}
        whole = messages.OffsetFetchRequest
        topics = [whole.OffsetFetchRequestTopic(name=self._ledger.topic, partition_indexes=partitions)]
        response = await self._send(whole(group_id=GROUP, topics=topics), version_at_most=FETCH_AT_MOST)
        check(response.error_code)
        positions = {}
        for each in response.topics[0].partitions:
            check(each.error_code)
            positions[each.partition_index] = max(each.committed_offset, 0)
            self._group.resume(each.partition_index, positions[each.partition_index], floors[each.partition_index])
        return positions

    async def _heartbeat(self) -> None:
        request = messages.HeartbeatRequest(group_id=GROUP, generation_id=self._generation, member_id=self._member_id)
        check((await self._send(request)).error_code)

    async def _read(self, partition: int, offset: int) -> int:
        max_bytes = LAST_FETCH_BYTES_MAX if self.producer_is_done else FETCH_BYTES_MAX
        fetched = await self._client.fetch(self._ledger.topic, partition, offset, max_bytes=max_bytes, max_wait_ms=100)
        for _, batch in iterate_batches(fetched.records):
            for record in iterate_records(batch):
                if record.offset >= offset:
                    self._ledger.check_record(partition, offset, record.offset, int((record.key or b"-1").decode()))
                    offset = record.offset + 1
        self._group.read(partition, offset)
        return offset

    async def _commit(self, positions: dict[int, int]) -> None:
        if not positions:
            return
        whole = messages.OffsetCommitRequest
        parts = [
            whole.OffsetCommitRequestPartition(
                partition_index=partition, committed_offset=offset, committed_metadata=""
            )
            for partition, offset in positions.items()
        ]
        request = whole(
            group_id=GROUP,
            generation_id_or_member_epoch=self._generation,
            member_id=self._member_id,
            topics=[whole.OffsetCommitRequestTopic(name=self._ledger.topic, partitions=parts)],
        )
        try:
            response = await self._send(request, version_at_most=COMMIT_AT_MOST)
        except OSError:
            # The commit may still arrive: with a new member id, it is rejected.
            await self._leave()
            raise
        codes = {each.partition_index: each.error_code for each in response.topics[0].partitions}
        for partition, code in codes.items():
            if code == ErrorCode.NONE:
                self._group.commit(partition, positions[partition])
        for code in codes.values():
            if code not in (ErrorCode.NONE, *_REJOIN):
                await self._leave()
            check(code)

    async def _leave(self) -> None:
        member_id, self._member_id = self._member_id, ""
        identity = messages.LeaveGroupRequest.MemberIdentity(member_id=member_id)
        try:
            await self._send(messages.LeaveGroupRequest(group_id=GROUP, members=[identity], member_id=member_id))
        except (OSError, KafkaError):
            return  # the session times out instead

    async def _send(self, request: Any, *, timeout_ms: int | None = None, version_at_most: int | None = None) -> Any:
        return await self._client.send(
            request, node=self._coordinator, timeout_ms=timeout_ms, version_at_most=version_at_most
        )

"""Members of groups on the simulated broker: what a client library does, request by request."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from broker_scene import Scene, Talker

from moldau.model.errors import ErrorCode
from moldau.wire import messages
from moldau.wire.data_records import decode_versioned, encode_versioned

TOPIC = "t"
SESSION_MS = 10_000
REBALANCE_MS = 30_000


async def find_coordinator(talker: Talker, group_id: str = "g", version: int = 2) -> Any:
    return await talker.ask(version, messages.FindCoordinatorRequest(key=group_id, key_type=0))


def subscription(*topics: str) -> bytes:
    return encode_versioned(messages.ConsumerProtocolSubscription(topics=list(topics)), 0)


def assignment(partitions: Mapping[str, Sequence[int]]) -> bytes:
    assigned = [
        messages.ConsumerProtocolAssignment.TopicPartition(topic=topic, partitions=list(indexes))
        for topic, indexes in partitions.items()
    ]
    return encode_versioned(messages.ConsumerProtocolAssignment(assigned_partitions=assigned), 0)


def assigned(raw: bytes) -> dict[str, list[int]]:
    read = decode_versioned("ConsumerProtocolAssignment", raw)
    return {each.topic: list(each.partitions) for each in read.assigned_partitions}


def join_request(group_id: str = "g", member_id: str = "", **fields: Any) -> messages.JoinGroupRequest:
    protocols = fields.pop("protocols", {"range": subscription(TOPIC)})
    return messages.JoinGroupRequest(
        group_id=group_id,
        member_id=member_id,
        session_timeout_ms=fields.pop("session_timeout_ms", SESSION_MS),
        rebalance_timeout_ms=fields.pop("rebalance_timeout_ms", REBALANCE_MS),
        protocol_type=fields.pop("protocol_type", "consumer"),
        protocols=[
            messages.JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=metadata)
            for name, metadata in protocols.items()
        ],
        **fields,
    )


def sync_request(member: "Member", assignments: Mapping[str, bytes] | None = None) -> messages.SyncGroupRequest:
    return messages.SyncGroupRequest(
        group_id=member.group_id,
        generation_id=member.generation,
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        protocol_type="consumer",
        protocol_name=member.protocol,
        assignments=[
            messages.SyncGroupRequest.SyncGroupRequestAssignment(member_id=member_id, assignment=raw)
            for member_id, raw in (assignments or {}).items()
        ],
    )


class Member:
    """A member of a classic group, with a connection of its own."""

    def __init__(self, talker: Talker, group_id: str = "g", instance_id: str | None = None) -> None:
        self.talker = talker
        self.group_id = group_id
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1
        self.protocol: str | None = None
        self.partitions: dict[str, list[int]] = {}
        self.last_join: Any = None

    async def join(self, version: int = 9, **fields: Any) -> Any:
        """Join, if need be a second time with the assigned id; return the response once the generation starts."""
        while True:
            request = join_request(self.group_id, self.member_id, group_instance_id=self.instance_id, **fields)
            response = await self.talker.ask(version, request)
            if response.error_code != ErrorCode.MEMBER_ID_REQUIRED:
                break
            self.member_id = response.member_id
        if not response.error_code:
            self.member_id, self.generation = response.member_id, response.generation_id
            self.protocol = response.protocol_name
        self.last_join = response
        return response

    @property
    def is_leader(self) -> bool:
        return bool(self.last_join.leader == self.member_id)

    async def sync(self, assignments: Mapping[str, bytes] | None = None, version: int = 5) -> Any:
        response = await self.talker.ask(version, sync_request(self, assignments))
        if not response.error_code:
            self.partitions = assigned(response.assignment) if response.assignment else {}
        return response

    async def settle(self, partitions: int, version: int = 9) -> None:
        """Join and sync until the group is stable; the leader assigns the partitions round-robin."""
        while True:
            response = await self.join(version)
            assert response.error_code == 0, response
            deal = _round_robin([each.member_id for each in response.members], partitions) if self.is_leader else {}
            if (await self.sync(deal, version=min(version, 5))).error_code == 0:
                return

    async def heartbeat(self, version: int = 4) -> ErrorCode:
        response = await self.talker.ask(
            version,
            messages.HeartbeatRequest(
                group_id=self.group_id,
                generation_id=self.generation,
                member_id=self.member_id,
                group_instance_id=self.instance_id,
            ),
        )
        return ErrorCode(response.error_code)

    async def leave(self, version: int = 4) -> Any:
        identity = messages.LeaveGroupRequest.MemberIdentity(
            member_id=self.member_id, group_instance_id=self.instance_id
        )
        return await self.talker.ask(
            version,
            messages.LeaveGroupRequest(group_id=self.group_id, members=[identity], member_id=self.member_id),
        )

    async def commit(self, offsets: Mapping[int, int], topic: str = TOPIC, version: int = 8) -> list[ErrorCode]:
        return await commit(
            self.talker,
            offsets,
            self.group_id,
            topic=topic,
            version=version,
            generation_id_or_member_epoch=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
        )


def _round_robin(member_ids: Sequence[str], partitions: int) -> dict[str, bytes]:
    shares: dict[str, list[int]] = {member_id: [] for member_id in member_ids}
    for index in range(partitions):
        shares[member_ids[index % len(member_ids)]].append(index)
    return {member_id: assignment({TOPIC: share}) for member_id, share in shares.items()}


async def members(scene: Scene, count: int, group_id: str = "g") -> list[Member]:
    return [Member(await scene.connect(), group_id) for _ in range(count)]


async def settle(joining: Iterable[Member], partitions: int) -> None:
    """Join all of them at once and give each its assignment."""
    await asyncio.gather(*(member.settle(partitions) for member in joining))


async def commit(
    talker: Talker,
    offsets: Mapping[int, int],
    group_id: str = "g",
    *,
    topic: str = TOPIC,
    version: int = 8,
    metadata: str | None = "",
    topic_id: bytes = bytes(16),
    **fields: Any,
) -> list[ErrorCode]:
    """Return the error codes of the partitions, in the order of the offsets."""
    request = messages.OffsetCommitRequest
    partitions = [
        request.OffsetCommitRequestPartition(
            partition_index=index, committed_offset=offset, committed_leader_epoch=0, committed_metadata=metadata
        )
        for index, offset in offsets.items()
    ]
    topics = [request.OffsetCommitRequestTopic(topic_id=topic_id, name=topic, partitions=partitions)]
    response = await talker.ask(version, request(group_id=group_id, topics=topics, **fields))
    codes = {each.partition_index: ErrorCode(each.error_code) for each in response.topics[0].partitions}
    return [codes[index] for index in offsets]


async def committed(
    talker: Talker, indexes: Sequence[int] | None, group_id: str = "g", *, topic: str = TOPIC, version: int = 8
) -> dict[int, int]:
    """Return the offsets of one topic by partition (all partitions without indexes), once they are loaded."""
    request = messages.OffsetFetchRequest
    topics = None
    if indexes is not None:
        topics = [request.OffsetFetchRequestTopics(name=topic, partition_indexes=list(indexes))]
    requested = request.OffsetFetchRequestGroup(group_id=group_id, topics=topics)
    while True:
        (group,) = (await talker.ask(version, request(groups=[requested]))).groups
        if group.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            break
        await asyncio.sleep(0.01)
    assert group.error_code == 0, group
    return {
        each.partition_index: each.committed_offset
        for found in group.topics
        if found.name == topic
        for each in found.partitions
    }

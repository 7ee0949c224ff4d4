"""Administration of consumer groups: listing, members, committed offsets."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, Protocol

from moldau.client.async_client import AsyncClient
from moldau.client.broadcast import broadcast
from moldau.client.coordinators import GROUP_KEY, Coordinator, single_error_code
from moldau.client.errors import HasErrorCode, check
from moldau.model.errors import ErrorCode, GroupIdNotFound, KafkaError, UnsupportedVersion
from moldau.model.ids import TopicPartition
from moldau.wire import messages
from moldau.wire.codec import Malformed, data_decoder

# The newest versions with topic names and a single group, which every cluster supports.
FIND_AT_MOST: Final = 3
FETCH_AT_MOST: Final = 7
COMMIT_AT_MOST: Final = 9

SHARE: Final = "share"  # the protocol of share groups


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """A group as its coordinator lists it."""

    group: str
    state: str
    protocol: str  # classic, consumer or share


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A group member and its assignment."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    """A group with its members."""

    group: str
    state: str
    protocol: str
    assignor: str
    coordinator: int
    members: tuple[GroupMember, ...] = field(default=())

    @property
    def is_live(self) -> bool:
        return bool(self.members)

    @property
    def is_share_group(self) -> bool:
        """Whether it is a share group, whose members share partitions and which has start offsets instead."""
        return self.protocol == SHARE

    def owner(self, topic_partition: TopicPartition) -> GroupMember | None:
        return next((member for member in self.members if topic_partition in member.partitions), None)


class Groups:
    """Administers consumer groups."""

    def __init__(self, client: AsyncClient) -> None:
        self.client = client

    async def all(self) -> list[ListedGroup]:
        """List the groups of all brokers, because each lists only those it coordinates."""
        found, failures = await self.list_reachable()
        for error in failures.values():
            raise error
        return found

    async def list_reachable(self, timeout_ms: float | None = None) -> tuple[list[ListedGroup], dict[int, Exception]]:
        """List the groups of the brokers that respond in time; return the failures of the others."""
        result = await broadcast(self.client, messages.ListGroupsRequest(), timeout_ms=timeout_ms)
        found = {
            each.group_id: ListedGroup(each.group_id, each.group_state or "-", (each.group_type or "classic").lower())
            for response in result.responses.values()
            for each in response.groups
        }
        return [found[name] for name in sorted(found)], result.failures

    async def coordinator(self, group: str) -> int:
        async def attempt() -> int:
            request = messages.FindCoordinatorRequest(key=group, key_type=GROUP_KEY)
            response = await self.client.send(request, version_at_most=FIND_AT_MOST)
            check(response.error_code, response.error_message)
            return int(response.node_id)

        await self.client.refresh([])
        return await self.client.retry(attempt)

    async def describe(self, group: str) -> DescribedGroup:
        """Describe a group of any protocol; `GroupIdNotFound` if it does not exist."""
        coordinator = Coordinator(self.client, group, GROUP_KEY)
        response = await coordinator.send(messages.DescribeGroupsRequest(groups=[group]), _found_codes)
        (found,) = response.groups
        if found.error_code != ErrorCode.GROUP_ID_NOT_FOUND and found.group_state != "Dead":
            return _classic(found, await coordinator.find())
        return await self._describe_consumer(group, coordinator)

    async def _describe_consumer(self, group: str, coordinator: Coordinator) -> DescribedGroup:
        try:
            request = messages.ConsumerGroupDescribeRequest(group_ids=[group])
            response = await coordinator.send(request, _found_codes)
        except UnsupportedVersion:  # an older cluster supports only classic groups
            raise GroupIdNotFound(f"Group {group} does not exist.") from None
        (found,) = response.groups
        if found.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            return await self._describe_share(group, coordinator)
        node = await coordinator.find()
        members = tuple(
            GroupMember(each.member_id, each.instance_id, each.client_id, each.client_host, _assigned(each))
            for each in found.members
        )
        return DescribedGroup(group, found.group_state, "consumer", found.assignor_name, node, members)

    async def _describe_share(self, group: str, coordinator: Coordinator) -> DescribedGroup:
        try:
            response = await coordinator.send(messages.ShareGroupDescribeRequest(group_ids=[group]), _found_codes)
        except UnsupportedVersion:  # a cluster without share groups
            raise GroupIdNotFound(f"Group {group} does not exist.") from None
        (found,) = response.groups
        if found.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            raise GroupIdNotFound(f"Group {group} does not exist.")
        members = tuple(
            GroupMember(each.member_id, None, each.client_id, each.client_host, _assigned(each))
            for each in found.members
        )
        return DescribedGroup(group, found.group_state, SHARE, found.assignor_name, await coordinator.find(), members)

    async def offsets(self, group: str) -> dict[TopicPartition, int]:
        """Return the committed offsets of a group."""
        request = messages.OffsetFetchRequest(group_id=group, topics=None)

        async def attempt() -> "messages.OffsetFetchResponse":
            node = await self.coordinator(group)
            response = await self.client.send(request, node=node, version_at_most=FETCH_AT_MOST)
            check(response.error_code)
            return response

        response = await self.client.retry(attempt)
        committed: dict[TopicPartition, int] = {}
        for topic in response.topics:
            for each in topic.partitions:
                check(each.error_code)
                if each.committed_offset >= 0:
                    committed[TopicPartition(topic.name, each.partition_index)] = each.committed_offset
        return committed

    async def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set offsets administratively; the coordinator rejects it while the group has members."""
        part, whole = messages.OffsetCommitRequest.OffsetCommitRequestPartition, messages.OffsetCommitRequest
        topics = [
            whole.OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    part(partition_index=each.partition, committed_offset=offsets[each], committed_metadata="")
                    for each in topic_partitions
                ],
            )
            for topic, topic_partitions in _by_topic(offsets)
        ]
        request = whole(group_id=group, topics=topics)
        coordinator = Coordinator(self.client, group, GROUP_KEY)
        await coordinator.send(request, _committed_codes, version_at_most=COMMIT_AT_MOST)

    async def delete_offsets(
        self, group: str, topic_partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, KafkaError]:
        """Delete offsets; return the errors by partition."""
        whole = messages.OffsetDeleteRequest
        topics = [
            whole.OffsetDeleteRequestTopic(
                name=topic,
                partitions=[whole.OffsetDeleteRequestPartition(partition_index=each.partition) for each in chosen],
            )
            for topic, chosen in _by_topic(topic_partitions)
        ]
        response = await Coordinator(self.client, group, GROUP_KEY).send(
            whole(group_id=group, topics=topics), single_error_code
        )
        return {
            TopicPartition(topic.name, each.partition_index): error
            for topic in response.topics
            for each in topic.partitions
            if (error := _error(each.error_code)) is not None
        }

    async def delete(self, group: str) -> None:
        """Delete a group without members, with its offsets."""
        # Not idempotent: a retry after a lost connection would fail with GroupIdNotFound.
        await Coordinator(self.client, group, GROUP_KEY).send(
            messages.DeleteGroupsRequest(groups_names=[group]), _deleted_codes, is_idempotent=False
        )


class _Groups(Protocol):
    """A response that describes groups."""

    @property
    def groups(self) -> Sequence[HasErrorCode]: ...


def _found_codes(response: _Groups) -> list[int]:
    """Ignore GROUP_ID_NOT_FOUND: the group may use the other protocol."""
    return [each.error_code for each in response.groups if each.error_code != ErrorCode.GROUP_ID_NOT_FOUND]


def _committed_codes(response: "messages.OffsetCommitResponse") -> list[int]:
    return [each.error_code for topic in response.topics for each in topic.partitions]


def _deleted_codes(response: "messages.DeleteGroupsResponse") -> list[int]:
    return [each.error_code for each in response.results]


def _error(code: int) -> KafkaError | None:
    try:
        check(code)
    except KafkaError as error:
        return error
    return None


def _by_topic(topic_partitions: Iterable[TopicPartition]) -> list[tuple[str, list[TopicPartition]]]:
    ordered = sorted(topic_partitions)
    return [(topic, list(chosen)) for topic, chosen in groupby(ordered, key=lambda each: each.topic)]


def _classic(found: "messages.DescribeGroupsResponse.DescribedGroup", node: int) -> DescribedGroup:
    members = tuple(
        GroupMember(
            each.member_id,
            each.group_instance_id,
            each.client_id,
            each.client_host,
            decode_assignment(each.member_assignment) if found.protocol_type == "consumer" else (),
        )
        for each in found.members
    )
    return DescribedGroup(found.group_id, found.group_state, "classic", found.protocol_data, node, members)


def _assigned(
    member: "messages.ConsumerGroupDescribeResponse.Member | messages.ShareGroupDescribeResponse.Member",
) -> tuple[TopicPartition, ...]:
    return tuple(
        TopicPartition(topic.topic_name, index)
        for topic in member.assignment.topic_partitions
        for index in topic.partitions
    )


def decode_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """Decode an assignment of the consumer protocol; empty if malformed, because clients write it."""
    try:
        # Every later version begins like the first; a two-byte version precedes it.
        assignment, _ = data_decoder("ConsumerProtocolAssignment", 0)(memoryview(data), 2)
    except Malformed:
        return ()
    return tuple(
        TopicPartition(each.topic, index) for each in assignment.assigned_partitions for index in each.partitions
    )

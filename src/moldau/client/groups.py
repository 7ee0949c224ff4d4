"""Consumer groups from outside: which there are, who is in them, how far they are, and setting that right."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final

from moldau.client.async_client import AsyncClient
from moldau.client.broadcast import ask_everybody
from moldau.client.coordinators import GROUP_KEY, Coordinator, one_code
from moldau.client.errors import check
from moldau.model.errors import ErrorCode, GroupIdNotFound, KafkaError, UnsupportedVersion
from moldau.model.ids import TopicPartition
from moldau.wire import messages
from moldau.wire.codec import Malformed, data_decoder

# The newest versions that name topics by name and ask for one group at a time: every cluster has them.
FIND_AT_MOST: Final = 3
FETCH_AT_MOST: Final = 7
COMMIT_AT_MOST: Final = 9


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """A group as its coordinator lists it."""

    group: str
    state: str
    protocol: str  # classic or consumer


@dataclass(frozen=True, slots=True)
class GroupMember:
    """Somebody in a group, and what it reads."""

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

    def owner(self, place: TopicPartition) -> GroupMember | None:
        return next((member for member in self.members if place in member.partitions), None)


class Groups:
    """What a client may ask about groups."""

    def __init__(self, client: AsyncClient) -> None:
        self.client = client

    async def all(self) -> list[ListedGroup]:
        """From every broker, because each knows only those it coordinates."""
        found, silent = await self.told()
        for error in silent.values():
            raise error
        return found

    async def told(self, patience_ms: float | None = None) -> tuple[list[ListedGroup], dict[int, Exception]]:
        """Those of the brokers that answer in time, and the brokers that do not."""
        heard = await ask_everybody(self.client, messages.ListGroupsRequest(), patience_ms=patience_ms)
        found = {
            each.group_id: ListedGroup(each.group_id, each.group_state or "-", (each.group_type or "classic").lower())
            for answer in heard.answers.values()
            for each in answer.groups
        }
        return [found[name] for name in sorted(found)], heard.silent

    async def coordinator(self, group: str) -> int:
        async def ask() -> int:
            request = messages.FindCoordinatorRequest(key=group, key_type=GROUP_KEY)
            answer = await self.client.send(request, version_at_most=FIND_AT_MOST)
            check(answer.error_code, answer.error_message)
            return int(answer.node_id)

        await self.client.refresh([])
        return await self.client.persist(ask)

    async def describe(self, group: str) -> DescribedGroup:
        """By whichever protocol the group speaks; `GroupIdNotFound` if there is no such group."""
        coordinator = Coordinator(self.client, group, GROUP_KEY)
        answer = await coordinator.ask(messages.DescribeGroupsRequest(groups=[group]), _found_codes)
        (found,) = answer.groups
        if found.error_code != ErrorCode.GROUP_ID_NOT_FOUND and found.group_state != "Dead":
            return _classic(found, await coordinator.find())
        return await self._describe_consumer(group, coordinator)

    async def _describe_consumer(self, group: str, coordinator: Coordinator) -> DescribedGroup:
        try:
            request = messages.ConsumerGroupDescribeRequest(group_ids=[group])
            answer = await coordinator.ask(request, _found_codes)
        except UnsupportedVersion:  # an older cluster has only the one kind
            raise GroupIdNotFound(f"There is no group {group}.") from None
        (found,) = answer.groups
        if found.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            raise GroupIdNotFound(f"There is no group {group}.")
        node = await coordinator.find()
        members = tuple(
            GroupMember(each.member_id, each.instance_id, each.client_id, each.client_host, _assigned(each))
            for each in found.members
        )
        return DescribedGroup(group, found.group_state, "consumer", found.assignor_name, node, members)

    async def offsets(self, group: str) -> dict[TopicPartition, int]:
        """What the group has committed."""
        request = messages.OffsetFetchRequest(group_id=group, topics=None)

        async def ask() -> Any:
            node = await self.coordinator(group)
            answer = await self.client.send(request, node=node, version_at_most=FETCH_AT_MOST)
            check(answer.error_code)
            return answer

        answer = await self.client.persist(ask)
        committed: dict[TopicPartition, int] = {}
        for topic in answer.topics:
            for each in topic.partitions:
                check(each.error_code)
                if each.committed_offset >= 0:
                    committed[TopicPartition(topic.name, each.partition_index)] = each.committed_offset
        return committed

    async def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set offsets from outside; the coordinator refuses while the group has members."""
        part, whole = messages.OffsetCommitRequest.OffsetCommitRequestPartition, messages.OffsetCommitRequest
        topics = [
            whole.OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    part(partition_index=each.partition, committed_offset=offsets[each], committed_metadata="")
                    for each in places
                ],
            )
            for topic, places in _by_topic(offsets)
        ]
        request = whole(group_id=group, topics=topics)
        coordinator = Coordinator(self.client, group, GROUP_KEY)
        await coordinator.ask(request, _committed_codes, version_at_most=COMMIT_AT_MOST)

    async def delete_offsets(self, group: str, places: Iterable[TopicPartition]) -> dict[TopicPartition, KafkaError]:
        """Forget offsets; the errors of those that could not be forgotten."""
        whole = messages.OffsetDeleteRequest
        topics = [
            whole.OffsetDeleteRequestTopic(
                name=topic,
                partitions=[whole.OffsetDeleteRequestPartition(partition_index=each.partition) for each in chosen],
            )
            for topic, chosen in _by_topic(places)
        ]
        answer = await Coordinator(self.client, group, GROUP_KEY).ask(whole(group_id=group, topics=topics), one_code)
        return {
            TopicPartition(topic.name, each.partition_index): error
            for topic in answer.topics
            for each in topic.partitions
            if (error := _error(each.error_code)) is not None
        }

    async def delete(self, group: str) -> None:
        """Forget a group that has no members, with its offsets."""
        # Sent again after a lost connection, it would only hear that there is no such group.
        await Coordinator(self.client, group, GROUP_KEY).ask(
            messages.DeleteGroupsRequest(groups_names=[group]), _deleted_codes, is_repeatable=False
        )


def _found_codes(answer: Any) -> list[int]:
    """Of a description; that there is no such group may mean that it is of the other kind."""
    return [each.error_code for each in answer.groups if each.error_code != ErrorCode.GROUP_ID_NOT_FOUND]


def _committed_codes(answer: Any) -> list[int]:
    return [each.error_code for topic in answer.topics for each in topic.partitions]


def _deleted_codes(answer: Any) -> list[int]:
    return [each.error_code for each in answer.results]


def _error(code: int) -> KafkaError | None:
    try:
        check(code)
    except KafkaError as error:
        return error
    return None


def _by_topic(places: Iterable[TopicPartition]) -> list[tuple[str, list[TopicPartition]]]:
    ordered = sorted(places)
    return [(topic, list(chosen)) for topic, chosen in groupby(ordered, key=lambda each: each.topic)]


def _classic(found: Any, node: int) -> DescribedGroup:
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


def _assigned(member: Any) -> tuple[TopicPartition, ...]:
    return tuple(
        TopicPartition(topic.topic_name, index)
        for topic in member.assignment.topic_partitions
        for index in topic.partitions
    )


def decode_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """What the consumer protocol says is assigned; nothing where it cannot be read, for it is a client's affair."""
    try:
        # Every later version begins like the first; two bytes in front say which it is.
        assignment, _ = data_decoder("ConsumerProtocolAssignment", 0)(memoryview(data), 2)
    except Malformed:
        return ()
    return tuple(
        TopicPartition(each.topic, index) for each in assignment.assigned_partitions for index in each.partitions
    )

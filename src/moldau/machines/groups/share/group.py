"""Replicated state of a share group: members, epochs, assignments, and which share partitions are initialized."""

from collections import Counter
from typing import Final

from moldau.machines.groups.consumer.partitions import NO_PARTITIONS, Assignment
from moldau.machines.groups.group import BaseTimestamp, GroupType, TopicIdPartitions
from moldau.machines.groups.records import Record
from moldau.machines.groups.share.member import ShareMember
from moldau.machines.groups.share.records import (
    group_tombstone,
    removal_tombstones,
    state_partitions_tombstone,
    target_epoch_tombstone,
)
from moldau.machines.groups.share.state_partitions import StatePartitions
from moldau.model.errors import GroupIdNotFound, NonEmptyGroup, UnknownMemberId
from moldau.wire import messages

NO_ASSIGNMENT_EPOCH: Final = -1


class ShareGroup:
    """Replicated state: only `apply` changes it."""

    __slots__ = (
        "assignment_epoch",
        "epoch",
        "group_id",
        "members",
        "metadata_hash",
        "states",
        "targets",
        "topic_counts",
    )

    group_type: Final = GroupType.SHARE
    protocol_type: Final = "share"

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.metadata_hash = 0
        self.assignment_epoch = 0
        self.members: dict[str, ShareMember] = {}
        self.targets: dict[str, Assignment] = {}
        self.states = StatePartitions()
        self.topic_counts: Counter[str] = Counter()  # number of members subscribed to a topic

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShareGroup) and all(
            getattr(self, name) == getattr(other, name) for name in self.__slots__
        )

    __hash__ = None  # type: ignore[assignment]

    # Members

    def put(self, member: ShareMember) -> None:
        """Add or replace a member."""
        self._uncount(self.members.get(member.member_id))
        self.members[member.member_id] = member
        self.topic_counts.update(member.topics)

    def remove(self, member_id: str) -> None:
        """Remove a member if it exists."""
        self._uncount(self.members.pop(member_id, None))

    def _uncount(self, member: ShareMember | None) -> None:
        for name in () if member is None else member.topics:
            self.topic_counts[name] -= 1
            if not self.topic_counts[name]:
                del self.topic_counts[name]

    def member(self, member_id: str) -> ShareMember:
        """Return the member of this id; raises `UnknownMemberId`."""
        member = self.members.get(member_id)
        if member is None:
            raise UnknownMemberId(f"Member {member_id} is not a member of group {self.group_id}.")
        return member

    def target(self, member_id: str) -> Assignment:
        """Return a member's target assignment."""
        return self.targets.get(member_id, NO_PARTITIONS)

    # Group interface

    @property
    def state(self) -> str:
        return "Stable" if self.members else "Empty"

    @property
    def is_empty(self) -> bool:
        return not self.members

    def check_commit(self, request: messages.OffsetCommitRequest, api_version: int) -> None:  # noqa: ARG002
        """A share group has no committed offsets."""
        raise self._no_offsets()

    def check_commit_in_transaction(
        self,
        request: messages.TxnOffsetCommitRequest,  # noqa: ARG002
        topic_partitions: TopicIdPartitions,  # noqa: ARG002
    ) -> None:
        """A share group has no committed offsets."""
        raise self._no_offsets()

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:  # noqa: ARG002
        """A share group has no committed offsets."""
        raise self._no_offsets()

    def check_delete_offsets(self) -> None:
        """A share group has no committed offsets."""
        raise self._no_offsets()

    def _no_offsets(self) -> GroupIdNotFound:
        return GroupIdNotFound(f"Group {self.group_id} is not a consumer group.")

    def check_delete(self) -> None:
        if self.members:
            raise NonEmptyGroup("The group is not empty.")

    def is_subscribed(self, topic: str) -> bool:
        return topic in self.topic_counts

    def expiry_base(self) -> BaseTimestamp | None:
        """There are no offsets to expire."""
        return None

    def tombstones(self) -> list[Record]:
        """Return tombstones for all records of the group, dependent records first."""
        return [
            *(each for member_id in self.members for each in removal_tombstones(self.group_id, member_id)),
            target_epoch_tombstone(self.group_id),
            state_partitions_tombstone(self.group_id),
            group_tombstone(self.group_id),
        ]

    def keep_alive(self, member_id: str, now_ms: float) -> None:
        """Does nothing: only a heartbeat extends the session."""

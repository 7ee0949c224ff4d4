"""Replicated state of a consumer group: members, epochs, target and current assignments."""

from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

from moldau.machines.groups.consumer.member import Member
from moldau.machines.groups.consumer.partitions import NO_PARTITIONS, Assignment, CurrentAssignment
from moldau.machines.groups.consumer.records import (
    current_assignment_tombstone,
    group_tombstone,
    member_tombstone,
    partition_metadata_tombstone,
    regex_tombstone,
    target_epoch_tombstone,
    target_tombstone,
)
from moldau.machines.groups.group import BaseTimestamp, GroupType, TopicIdPartitions
from moldau.machines.groups.records import Record
from moldau.model.errors import (
    FencedInstanceId,
    IllegalGeneration,
    NonEmptyGroup,
    StaleMemberEpoch,
    UnknownMemberId,
    UnsupportedVersion,
)
from moldau.model.ids import NO_TIMESTAMP, TopicId
from moldau.wire import messages

NO_ASSIGNMENT_EPOCH: Final = -1
MEMBER_EPOCH_VERSION: Final = 9  # first version of OffsetCommit with member epochs


class Resolved(NamedTuple):
    """The topics matched by a regular expression, and when."""

    topics: frozenset[str]
    version: int  # metadata offset of the match
    timestamp_ms: int  # wall time


class ConsumerGroup:
    """Replicated state: only `apply` changes it. Counters derived from the members are kept up to date."""

    __slots__ = (
        "assignment_epoch",
        "assignment_time_ms",
        "assignor_counts",
        "classic_count",
        "creation_time_ms",
        "epoch",
        "group_id",
        "has_partition_metadata",
        "members",
        "metadata_hash",
        "owners",
        "protocol_counts",
        "regex_counts",
        "resolved",
        "static_ids",
        "targets",
        "topic_counts",
    )

    group_type: Final = GroupType.CONSUMER
    protocol_type: Final = "consumer"

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.metadata_hash = 0
        self.creation_time_ms = NO_TIMESTAMP
        self.assignment_epoch = 0
        self.assignment_time_ms = 0
        self.members: dict[str, Member] = {}
        self.targets: dict[str, Assignment] = {}
        self.resolved: dict[str, Resolved] = {}  # by regular expression
        self.has_partition_metadata = False
        self.static_ids: dict[str, str] = {}  # member ids by instance id
        self.owners: dict[TopicId, dict[int, str]] = {}  # member that owns a partition, also while revoking it
        self.topic_counts: Counter[str] = Counter()  # number of members subscribed to a topic by name
        self.regex_counts: Counter[str] = Counter()
        self.assignor_counts: Counter[str] = Counter()
        self.protocol_counts: Counter[str] = Counter()  # of assignors supported by classic members
        self.classic_count = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConsumerGroup) and all(
            getattr(self, name) == getattr(other, name) for name in self.__slots__
        )

    __hash__ = None  # type: ignore[assignment]

    # Members

    def put(self, member: Member) -> None:
        """Add or replace a member."""
        old = self.members.get(member.member_id)
        self.members[member.member_id] = member
        if old is None or not old.has_same_metadata(member):
            if old is not None:
                self._uncount(old)
            self._count(member)
        if old is not None:
            self._disown(old.member_id, old.assigned, old.revoking)
        self._own(member.member_id, member.assigned, member.revoking)

    def remove(self, member_id: str) -> None:
        """Remove a member if it exists."""
        old = self.members.pop(member_id, None)
        if old is not None:
            self._uncount(old)
            self._disown(member_id, old.assigned, old.revoking)

    def _count(self, member: Member) -> None:
        self.topic_counts.update(member.topics)
        if member.regex:
            self.regex_counts[member.regex] += 1
        if member.assignor is not None:
            self.assignor_counts[member.assignor] += 1
        if member.classic is not None:
            self.classic_count += 1
            self.protocol_counts.update(name for name, _ in member.classic.protocols)
        if member.instance_id is not None:
            self.static_ids[member.instance_id] = member.member_id

    def _uncount(self, member: Member) -> None:
        _decrease(self.topic_counts, member.topics)
        _decrease(self.regex_counts, (member.regex,) if member.regex else ())
        _decrease(self.assignor_counts, () if member.assignor is None else (member.assignor,))
        if member.classic is not None:
            self.classic_count -= 1
            _decrease(self.protocol_counts, (name for name, _ in member.classic.protocols))
        if member.instance_id is not None and self.static_ids.get(member.instance_id) == member.member_id:
            del self.static_ids[member.instance_id]

    def _own(self, member_id: str, *assignments: CurrentAssignment) -> None:
        for assignment in assignments:
            for topic_id, indexes in assignment.items():
                self.owners.setdefault(topic_id, {}).update(dict.fromkeys(indexes, member_id))

    def _disown(self, member_id: str, *assignments: CurrentAssignment) -> None:
        for assignment in assignments:
            for topic_id, indexes in assignment.items():
                owners = self.owners.get(topic_id, {})
                for index in indexes:
                    if owners.get(index) == member_id:
                        del owners[index]
                if not owners:
                    self.owners.pop(topic_id, None)

    def owner(self, topic_id: TopicId, index: int) -> str | None:
        return self.owners.get(topic_id, {}).get(index)

    def target(self, member_id: str) -> Assignment:
        """Return a member's target assignment."""
        return self.targets.get(member_id, NO_PARTITIONS)

    def member(self, member_id: str) -> Member:
        """Return the member of this id; raises `UnknownMemberId`."""
        member = self.members.get(member_id)
        if member is None:
            raise UnknownMemberId(f"Member {member_id} is not a member of group {self.group_id}.")
        return member

    def static_member(self, instance_id: str | None) -> Member | None:
        """Return the current member of this instance id."""
        member_id = None if instance_id is None else self.static_ids.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def check_instance(self, member_id: str, instance_id: str) -> Member:
        """Return the static member, unless its instance id belongs to another member."""
        member = self.static_member(instance_id)
        if member is None:
            raise UnknownMemberId(f"Instance id {instance_id} is unknown.")
        if member.member_id != member_id:
            raise FencedInstanceId(
                f"Static member {member_id} with instance id {instance_id} was fenced by member {member.member_id}."
            )
        return member

    # Group interface

    @property
    def state(self) -> str:
        if not self.members:
            return "Empty"
        if self.epoch > self.assignment_epoch:
            return "Assigning"
        is_settled = all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values())
        return "Stable" if is_settled else "Reconciling"

    @property
    def is_empty(self) -> bool:
        return not self.members

    def check_commit(self, request: messages.OffsetCommitRequest, api_version: int) -> None:
        """Members commit in their epoch. Without members, only a commit without member id is valid.

        A commit may be overtaken by a heartbeat response; with an older epoch it is valid for partitions that the
        member has owned since.
        """
        epoch = request.generation_id_or_member_epoch
        if epoch < 0 and not self.members:
            return
        member = self.member(request.member_id)
        if member.classic is None and api_version < MEMBER_EPOCH_VERSION:
            raise UnsupportedVersion(
                "OffsetCommit version 9 or above must be used by members using the modern group protocol"
            )
        topic_partitions = (
            (TopicId(each.topic_id), one.partition_index) for each in request.topics for one in each.partitions
        )
        if not _has_owned_since(member, epoch, topic_partitions):
            _check_epoch(member, epoch)

    def check_commit_in_transaction(
        self, request: messages.TxnOffsetCommitRequest, topic_partitions: TopicIdPartitions
    ) -> None:
        """As for plain commits; but producers only know generations, so a stale epoch is reported as one."""
        generation = request.generation_id
        if generation < 0 and not self.members:
            return
        member = self.member(request.member_id)
        if generation != member.epoch and not _has_owned_since(member, generation, topic_partitions):
            raise IllegalGeneration(f"The member is in epoch {member.epoch}, not {generation}.")

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Members fetch in their epoch; without member id and epoch any fetch is valid."""
        if member_id is None and member_epoch < 0:
            return
        _check_epoch(self.member(member_id or ""), member_epoch)

    def check_delete_offsets(self) -> None:
        """Always valid; offsets of subscribed topics are rejected one by one."""

    def check_delete(self) -> None:
        if self.members:
            raise NonEmptyGroup("The group is not empty.")

    def is_subscribed(self, topic: str) -> bool:
        return topic in self.topic_counts or any(topic in each.topics for each in self.resolved.values())

    def expiry_base(self) -> BaseTimestamp | None:
        """Offsets age from their commit; those of subscribed topics do not expire."""
        return lambda committed: committed.commit_timestamp

    def tombstones(self) -> list[Record]:
        """Return tombstones for all records of the group, dependent records first."""
        return self.tombstones_of(self.members)

    def tombstones_of(self, member_ids: Iterable[str]) -> list[Record]:
        """Return the tombstones for a group with these members."""
        group_id, member_ids = self.group_id, list(member_ids)
        return [
            *(current_assignment_tombstone(group_id, member_id) for member_id in member_ids),
            *(target_tombstone(group_id, member_id) for member_id in member_ids),
            target_epoch_tombstone(group_id),
            *(member_tombstone(group_id, member_id) for member_id in member_ids),
            *(regex_tombstone(group_id, regex) for regex in sorted(self.resolved)),
            *([partition_metadata_tombstone(group_id)] if self.has_partition_metadata else []),
            group_tombstone(group_id),
        ]

    def keep_alive(self, member_id: str, now_ms: float) -> None:
        """Does nothing: only a heartbeat extends the session."""


def _has_owned_since(member: Member, epoch: int, topic_partitions: TopicIdPartitions) -> bool:
    """Whether the member has owned all of these since that epoch; False for topics without an id."""
    if epoch >= member.epoch or member.classic is not None:
        return False
    return all(member.assigned_since(topic_id, index, epoch) for topic_id, index in topic_partitions)


def _check_epoch(member: Member, epoch: int) -> None:
    if epoch == member.epoch:
        return
    if member.classic is not None:
        raise IllegalGeneration(
            f"The received generation id {epoch} does not match the expected member epoch {member.epoch}."
        )
    raise StaleMemberEpoch(
        f"The received member epoch {epoch} does not match the expected member epoch {member.epoch}."
    )


def _decrease(counts: Counter[str], names: Iterable[str]) -> None:
    for name in names:
        counts[name] -= 1
        if not counts[name]:
            del counts[name]

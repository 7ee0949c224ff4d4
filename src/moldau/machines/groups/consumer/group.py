"""A consumer group as its records tell of it: members, epochs, what they are meant to have and what they hold."""

from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

from moldau.machines.groups.consumer.member import Member
from moldau.machines.groups.consumer.partitions import NO_PARTITIONS, Assignment, Holding
from moldau.machines.groups.consumer.records import (
    group_end_record,
    holding_end_record,
    member_end_record,
    regex_end_record,
    target_end_record,
    target_epoch_end_record,
    topics_end_record,
)
from moldau.machines.groups.group import BaseTimestamp, GroupType, Places
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
MEMBER_EPOCHS_FROM: Final = 9  # the first version of OffsetCommit that speaks of member epochs


class Resolved(NamedTuple):
    """The topics that a regular expression matched, and when it was asked."""

    topics: frozenset[str]
    version: int  # the offset of the metadata it was asked in
    timestamp_ms: int  # wall time


class ConsumerGroup:
    """Replicated state: only `apply` changes it. What can be reckoned from the members is kept beside them."""

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
        self.owners: dict[TopicId, dict[int, str]] = {}  # who holds a partition, even if it is on its way out
        self.topic_counts: Counter[str] = Counter()  # how many members subscribe to a topic by its name
        self.regex_counts: Counter[str] = Counter()
        self.assignor_counts: Counter[str] = Counter()
        self.protocol_counts: Counter[str] = Counter()  # of assignors that classic members know
        self.classic_count = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConsumerGroup) and all(
            getattr(self, name) == getattr(other, name) for name in self.__slots__
        )

    __hash__ = None  # type: ignore[assignment]

    # Members

    def put(self, member: Member) -> None:
        """A member is new or has changed."""
        old = self.members.get(member.member_id)
        self.members[member.member_id] = member
        if old is None or not old.describes_same(member):
            if old is not None:
                self._uncount(old)
            self._count(member)
        if old is not None:
            self._disown(old.member_id, old.assigned, old.revoking)
        self._own(member.member_id, member.assigned, member.revoking)

    def remove(self, member_id: str) -> None:
        """A member is gone, if it was there."""
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

    def _own(self, member_id: str, *holdings: Holding) -> None:
        for holding in holdings:
            for topic_id, indexes in holding.items():
                self.owners.setdefault(topic_id, {}).update(dict.fromkeys(indexes, member_id))

    def _disown(self, member_id: str, *holdings: Holding) -> None:
        for holding in holdings:
            for topic_id, indexes in holding.items():
                owners = self.owners.get(topic_id, {})
                for index in indexes:
                    if owners.get(index) == member_id:
                        del owners[index]
                if not owners:
                    self.owners.pop(topic_id, None)

    def owner(self, topic_id: TopicId, index: int) -> str | None:
        return self.owners.get(topic_id, {}).get(index)

    def target(self, member_id: str) -> Assignment:
        """What a member is meant to have."""
        return self.targets.get(member_id, NO_PARTITIONS)

    def member(self, member_id: str) -> Member:
        """The member of this id; `UnknownMemberId` if there is none."""
        member = self.members.get(member_id)
        if member is None:
            raise UnknownMemberId(f"Member {member_id} is not a member of group {self.group_id}.")
        return member

    def static_member(self, instance_id: str | None) -> Member | None:
        """Whoever stands for this instance now."""
        member_id = None if instance_id is None else self.static_ids.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def check_instance(self, member_id: str, instance_id: str) -> Member:
        """The static member, unless another has taken its instance over."""
        member = self.static_member(instance_id)
        if member is None:
            raise UnknownMemberId(f"Instance id {instance_id} is unknown.")
        if member.member_id != member_id:
            raise FencedInstanceId(
                f"Static member {member_id} with instance id {instance_id} was fenced by member {member.member_id}."
            )
        return member

    # What any group is asked

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
        """Members commit in their epoch. Without members anybody may who does not claim to be one.

        A commit may be overtaken by the answer to a heartbeat; in an older epoch it still counts for partitions that
        the member has held since.
        """
        epoch = request.generation_id_or_member_epoch
        if epoch < 0 and not self.members:
            return
        member = self.member(request.member_id)
        if member.classic is None and api_version < MEMBER_EPOCHS_FROM:
            raise UnsupportedVersion(
                "OffsetCommit version 9 or above must be used by members using the modern group protocol"
            )
        places = ((TopicId(each.topic_id), one.partition_index) for each in request.topics for one in each.partitions)
        if not _has_held_since(member, epoch, places):
            _check_epoch(member, epoch)

    def check_commit_in_transaction(self, request: messages.TxnOffsetCommitRequest, places: Places) -> None:
        """As for other commits; but producers know of generations alone, so an epoch that has passed is told as one."""
        generation = request.generation_id
        if generation < 0 and not self.members:
            return
        member = self.member(request.member_id)
        if generation != member.epoch and not _has_held_since(member, generation, places):
            raise IllegalGeneration(f"The member is in epoch {member.epoch}, not {generation}.")

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Members fetch in their epoch; who does not claim to be one may look."""
        if member_id is None and member_epoch < 0:
            return
        _check_epoch(self.member(member_id or ""), member_epoch)

    def check_delete_offsets(self) -> None:
        """Those of topics that nobody reads may go at any time."""

    def check_delete(self) -> None:
        if self.members:
            raise NonEmptyGroup("The group is not empty.")

    def is_subscribed(self, topic: str) -> bool:
        return topic in self.topic_counts or any(topic in each.topics for each in self.resolved.values())

    def expiry_base(self) -> BaseTimestamp | None:
        """Offsets age from their commit; those of topics that are read never do."""
        return lambda committed: committed.commit_timestamp

    def tombstones(self) -> list[Record]:
        """Everything that the log holds of the group, ended in the order in which it depends on each other."""
        return self.tombstones_of(self.members)

    def tombstones_of(self, member_ids: Iterable[str]) -> list[Record]:
        """The same for a group that is about to have these members."""
        group_id, member_ids = self.group_id, list(member_ids)
        return [
            *(holding_end_record(group_id, member_id) for member_id in member_ids),
            *(target_end_record(group_id, member_id) for member_id in member_ids),
            target_epoch_end_record(group_id),
            *(member_end_record(group_id, member_id) for member_id in member_ids),
            *(regex_end_record(group_id, regex) for regex in sorted(self.resolved)),
            *([topics_end_record(group_id)] if self.has_partition_metadata else []),
            group_end_record(group_id),
        ]

    def keep_alive(self, member_id: str, now_ms: float) -> None:
        """Only a heartbeat is a sign of life."""


def _has_held_since(member: Member, epoch: int, places: Places) -> bool:
    """Whether all of these were the member's in that epoch and are still; topics without an id are not known."""
    if epoch >= member.epoch or member.classic is not None:
        return False
    return all(member.held_since(topic_id, index, epoch) for topic_id, index in places)


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

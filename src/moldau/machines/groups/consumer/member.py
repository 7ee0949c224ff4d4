"""A member of a consumer group: its metadata, epoch and current assignment."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final

from moldau.machines.groups.consumer.partitions import NO_CURRENT_ASSIGNMENT, NO_INDEXES, CurrentAssignment
from moldau.model.ids import TopicId
from moldau.wire import messages

JOINING_EPOCH: Final = 0
LEAVING_EPOCH: Final = -1
STATIC_LEAVING_EPOCH: Final = -2

Protocols = tuple[tuple[str, bytes], ...]
"""A classic member's assignors with its subscription for each, preferred first."""


class MemberState(IntEnum):
    """Reconciliation states, with Kafka's numbers."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1  # must revoke partitions before it advances to the next epoch
    UNRELEASED_PARTITIONS = 2  # waits for partitions that other members still own
    UNKNOWN = 127  # written by a later version


@dataclass(frozen=True, slots=True)
class ClassicTraits:
    """Metadata of a classic member, kept so that the group can be downgraded."""

    session_timeout_ms: int
    protocols: Protocols


def _no_current_assignment() -> CurrentAssignment:
    return NO_CURRENT_ASSIGNMENT


@dataclass(frozen=True, slots=True)
class Member:
    """An immutable member. Records are written for the difference between two of them."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()  # subscribed by name
    regex: str = ""  # subscribed by regular expression; empty if none
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicTraits | None = None

    epoch: int = JOINING_EPOCH
    previous_epoch: int = JOINING_EPOCH
    state: MemberState = MemberState.STABLE
    assigned: CurrentAssignment = field(default_factory=_no_current_assignment)
    revoking: CurrentAssignment = field(
        default_factory=_no_current_assignment
    )  # to be revoked; the member has not confirmed it yet

    @property
    def is_classic(self) -> bool:
        return self.classic is not None

    def is_reconciled_to(self, epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == epoch

    def assigned_since(self, topic_id: TopicId, index: int, epoch: int) -> bool:
        """Whether it has owned this partition without interruption since that epoch, revoking included."""
        since = self.assigned.get(topic_id, NO_INDEXES).get(index)
        if since is None:
            since = self.revoking.get(topic_id, NO_INDEXES).get(index)
        return since is not None and since <= epoch

    def has_same_metadata(self, other: "Member") -> bool:
        """Whether the metadata of both is equal, regardless of assignments."""
        return _metadata(self) == _metadata(other)

    def advance(
        self, epoch: int, state: MemberState, assigned: CurrentAssignment, revoking: CurrentAssignment
    ) -> "Member":
        """Return the member in its next state, or the same object if nothing changes."""
        if (epoch, state, assigned, revoking) == (self.epoch, self.state, self.assigned, self.revoking):
            return self
        return replace(self, epoch=epoch, previous_epoch=self.epoch, state=state, assigned=assigned, revoking=revoking)


def _metadata(member: Member) -> tuple[object, ...]:
    return (
        member.instance_id,
        member.rack_id,
        member.client_id,
        member.client_host,
        member.topics,
        member.regex,
        member.rebalance_timeout_ms,
        member.assignor,
        member.classic,
    )


def with_metadata(member: Member, value: messages.ConsumerGroupMemberMetadataValue) -> Member:
    """Apply a metadata record; the assignment is kept."""
    classic = value.classic_member_metadata
    return replace(
        member,
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        topics=frozenset(value.subscribed_topic_names),
        regex=value.subscribed_topic_regex or "",
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        assignor=value.server_assignor,
        classic=None
        if classic is None
        else ClassicTraits(
            classic.session_timeout_ms, tuple((each.name, bytes(each.metadata)) for each in classic.supported_protocols)
        ),
    )


def with_current_assignment(member: Member, value: messages.ConsumerGroupCurrentMemberAssignmentValue) -> Member:
    """Apply a current assignment record; the metadata is kept."""
    return replace(
        member,
        epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        state=_state(value.state),
        assigned=_current_assignment(value.assigned_partitions, value.member_epoch),
        revoking=_current_assignment(value.partitions_pending_revocation, value.member_epoch),
    )


def without_current_assignment(member: Member) -> Member:
    """Apply a current assignment tombstone: the member has left and its metadata will follow."""
    return replace(
        member,
        epoch=LEAVING_EPOCH,
        previous_epoch=LEAVING_EPOCH,
        assigned=NO_CURRENT_ASSIGNMENT,
        revoking=NO_CURRENT_ASSIGNMENT,
    )


def _state(number: int) -> MemberState:
    try:
        return MemberState(number)
    except ValueError:
        return MemberState.UNKNOWN


def _current_assignment(
    topics: Sequence[messages.ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions], member_epoch: int
) -> CurrentAssignment:
    held: dict[TopicId, Mapping[int, int]] = {}
    for topic in topics:
        epochs = topic.assignment_epochs
        if epochs is None or len(epochs) != len(topic.partitions):  # not written by older brokers
            epochs = [max(member_epoch, 0)] * len(topic.partitions)
        held[TopicId(topic.topic_id)] = dict(zip(topic.partitions, epochs, strict=True))
    return held or NO_CURRENT_ASSIGNMENT

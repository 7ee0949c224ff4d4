"""A member of a consumer group: what it told of itself, and how far it has come towards its target."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final

from moldau.machines.groups.consumer.partitions import NO_INDEXES, NOTHING_HELD, Holding
from moldau.model.ids import TopicId
from moldau.wire import messages

JOINING_EPOCH: Final = 0
LEAVING_EPOCH: Final = -1
STATIC_LEAVING_EPOCH: Final = -2

Protocols = tuple[tuple[str, bytes], ...]
"""The assignors a classic member knows with its subscription for each, the best first."""


class MemberState(IntEnum):
    """How far a member has come, by Kafka's numbers."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1  # it must give up partitions before it may go on to the next epoch
    UNRELEASED_PARTITIONS = 2  # it waits for partitions that others have not given up yet
    UNKNOWN = 127  # written by a later version


@dataclass(frozen=True, slots=True)
class ClassicTraits:
    """What is kept of a member that speaks the classic protocol, so that the group can become classic again."""

    session_timeout_ms: int
    protocols: Protocols


def _nothing_held() -> Holding:
    return NOTHING_HELD


@dataclass(frozen=True, slots=True)
class Member:
    """One member. A change makes a new object; records are what the difference is written as."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()  # subscribed by name
    regex: str = ""  # subscribed by regular expression; empty is none
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicTraits | None = None

    epoch: int = JOINING_EPOCH
    previous_epoch: int = JOINING_EPOCH
    state: MemberState = MemberState.STABLE
    assigned: Holding = field(default_factory=_nothing_held)
    revoking: Holding = field(default_factory=_nothing_held)  # taken from it, but it has not said yet that it stopped

    @property
    def is_classic(self) -> bool:
        return self.classic is not None

    def is_reconciled_to(self, epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == epoch

    def held_since(self, topic_id: TopicId, index: int, epoch: int) -> bool:
        """Whether this partition was given to it by then and never to anybody else, even if it is on its way out."""
        since = self.assigned.get(topic_id, NO_INDEXES).get(index)
        if since is None:
            since = self.revoking.get(topic_id, NO_INDEXES).get(index)
        return since is not None and since <= epoch

    def describes_same(self, other: "Member") -> bool:
        """Whether what the two told of themselves is the same, whatever they hold."""
        return _description(self) == _description(other)

    def advanced(self, epoch: int, state: MemberState, assigned: Holding, revoking: Holding) -> "Member":
        """The same member a step further, or the same object where nothing changes."""
        if (epoch, state, assigned, revoking) == (self.epoch, self.state, self.assigned, self.revoking):
            return self
        return replace(self, epoch=epoch, previous_epoch=self.epoch, state=state, assigned=assigned, revoking=revoking)


def _description(member: Member) -> tuple[object, ...]:
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


def with_description(member: Member, value: messages.ConsumerGroupMemberMetadataValue) -> Member:
    """What a record says of the member itself; what it holds stays."""
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


def with_holding(member: Member, value: messages.ConsumerGroupCurrentMemberAssignmentValue) -> Member:
    """What a record says of how far the member has come; what it told of itself stays."""
    return replace(
        member,
        epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        state=_state(value.state),
        assigned=_holding(value.assigned_partitions, value.member_epoch),
        revoking=_holding(value.partitions_pending_revocation, value.member_epoch),
    )


def without_holding(member: Member) -> Member:
    """It has left; what is known of it is about to go too."""
    return replace(
        member, epoch=LEAVING_EPOCH, previous_epoch=LEAVING_EPOCH, assigned=NOTHING_HELD, revoking=NOTHING_HELD
    )


def _state(number: int) -> MemberState:
    try:
        return MemberState(number)
    except ValueError:
        return MemberState.UNKNOWN


def _holding(
    topics: Sequence[messages.ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions], member_epoch: int
) -> Holding:
    held: dict[TopicId, Mapping[int, int]] = {}
    for topic in topics:
        epochs = topic.assignment_epochs
        if epochs is None or len(epochs) != len(topic.partitions):  # an older broker did not write them
            epochs = [max(member_epoch, 0)] * len(topic.partitions)
        held[TopicId(topic.topic_id)] = dict(zip(topic.partitions, epochs, strict=True))
    return held or NOTHING_HELD

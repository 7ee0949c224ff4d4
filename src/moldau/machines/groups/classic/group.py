"""A classic group while it lives: members, phase, and who waits. Soft state; the log holds only what a sync settled."""

from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from moldau.machines.decision import Ticket
from moldau.machines.groups.classic.subscriptions import CONSUMER, subscribed_topics
from moldau.machines.groups.group import BaseTimestamp, GroupType, Places
from moldau.machines.groups.records import Record, group_record
from moldau.machines.groups.settings import DECISION_BYTES_MAX
from moldau.model.errors import (
    FencedInstanceId,
    IllegalGeneration,
    NonEmptyGroup,
    RebalanceInProgress,
    UnknownMemberId,
)
from moldau.model.ids import NO_TIMESTAMP
from moldau.wire import messages

NO_MEMBER_ID: Final = ""

Protocols = tuple[tuple[str, bytes], ...]
"""The assignors that a member knows, the best first, with what it says of itself to each."""


class Phase(Enum):
    """Where a group is in its life, by Kafka's names."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(slots=True, eq=False)
class Member:
    """One member of a group. It is expelled at its deadline unless it waits for an answer."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    deadline_ms: float
    assignment: bytes = b""
    is_new: bool = False  # does not know its id yet, so it cannot send heartbeats; its deadline holds while it waits

    def metadata(self, protocol: str | None) -> bytes:
        """What it says of itself to one of its assignors."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def vote(self, candidates: Container[str]) -> str:
        """The assignor it likes best among those that all members know."""
        return next(name for name, _ in self.protocols if name in candidates)


class ClassicGroup:
    """The members of a group and how far they are with the next generation."""

    __slots__ = (
        "alarm_ms",
        "delay_left_ms",
        "empty_since_ms",
        "generation",
        "group_id",
        "is_initial",
        "joins",
        "leader",
        "members",
        "newcomer_ms",
        "pending",
        "phase",
        "protocol",
        "protocol_type",
        "static_ids",
        "support",
        "syncs",
        "topics",
        "unsynced",
    )

    group_type: Final = GroupType.CLASSIC

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.phase = Phase.EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.static_ids: dict[str, str] = {}  # member ids by instance id
        self.support: Counter[str] = Counter()  # how many members know an assignor
        self.pending: dict[str, float] = {}  # ids that were given out and have not joined yet, with their deadlines
        self.joins: dict[str, Ticket] = {}  # who waits for the generation to begin
        self.syncs: dict[str, Ticket] = {}  # who waits for the leader's assignment
        self.unsynced: dict[str, None] = {}  # who has not asked for its assignment in this generation
        self.is_initial = False  # the group was empty, and waits a little for more members
        self.newcomer_ms: float | None = None  # when somebody last came during that wait, which extends it
        self.delay_left_ms = 0.0  # by how much at most
        self.alarm_ms: float | None = None  # when the timer of its sessions will go off
        self.empty_since_ms = NO_TIMESTAMP  # wall time
        self.topics: frozenset[str] | None = None  # what its members read, once somebody asked

    @classmethod
    def restored(cls, group_id: str, stored: messages.GroupMetadataValue, now_ms: float) -> "ClassicGroup":
        """A group as the log tells of it. Every session begins anew."""
        group = cls(group_id)
        group.generation = stored.generation
        group.protocol_type = stored.protocol_type
        group.protocol = stored.protocol
        group.empty_since_ms = stored.current_state_timestamp
        for each in stored.members:
            group.add(_restored_member(each, stored.protocol or "", now_ms))
        group.leader = stored.leader or group.leader
        group.phase = Phase.STABLE if group.members else Phase.EMPTY
        return group

    def stored(self, wall_ms: int) -> messages.GroupMetadataValue:
        """What the log is told of the group."""
        return messages.GroupMetadataValue(
            protocol_type=self.protocol_type,
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader,
            current_state_timestamp=wall_ms,
            members=[_stored_member(member, self.protocol) for member in self.members.values()],
        )

    def fits_in_log(self, assigned_bytes: int) -> bool:
        """Whether the log could hold what members say of themselves to the assignor, and what they are assigned."""
        said_bytes = sum(len(member.metadata(self.protocol)) for member in self.members.values())
        return said_bytes + assigned_bytes <= DECISION_BYTES_MAX

    # Members

    def add(self, member: Member) -> None:
        """One more member; a group without a leader is led by it."""
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self.topics = None
        self.support.update(name for name, _ in member.protocols)
        if member.instance_id is not None:
            self.static_ids[member.instance_id] = member.member_id

    def remove(self, member_id: str) -> Member:
        """A member is gone; whoever waits in its name is left to the caller."""
        member = self.members.pop(member_id)
        self.topics = None
        self.support.subtract(name for name, _ in member.protocols)
        if member.instance_id is not None and self.static_ids.get(member.instance_id) == member_id:
            del self.static_ids[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self.unsynced.pop(member_id, None)
        return member

    def rename(self, old_id: str, new_id: str) -> Member:
        """A static member comes back under another id and takes over everything that was its own."""
        member = self.members[old_id]
        was_leader, was_unsynced = self.leader == old_id, old_id in self.unsynced
        self.remove(old_id)
        member.member_id = new_id
        self.add(member)
        if was_leader:
            self.leader = new_id
        if was_unsynced:
            self.unsynced[new_id] = None
        return member

    def change(self, member: Member, request: messages.JoinGroupRequest) -> None:
        """A member says anew what it knows and how long it may be waited for."""
        self.topics = None
        self.support.subtract(name for name, _ in member.protocols)
        member.protocols = protocols_of(request)
        self.support.update(name for name, _ in member.protocols)
        member.rebalance_timeout_ms = rebalance_timeout_ms(request)
        member.session_timeout_ms = request.session_timeout_ms

    def check_member(self, member_id: str, instance_id: str | None) -> Member:
        """The member of this id, unless another has taken its instance over."""
        if instance_id is not None:
            current_id = self.static_ids.get(instance_id)
            if current_id is None:
                raise UnknownMemberId(f"The group has no member with instance id {instance_id}.")
            if current_id != member_id:
                raise FencedInstanceId(f"Another member has taken over instance id {instance_id}.")
        member = self.members.get(member_id)
        if member is None:
            raise UnknownMemberId("The group has no such member.")
        return member

    @property
    def has_all_joined(self) -> bool:
        """Whether nobody is missing who is expected in the next generation."""
        return len(self.joins) == len(self.members) and not self.pending

    @property
    def rebalance_timeout_ms(self) -> int:
        """How long the slowest member may take."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    # Assignors

    def knows(self, protocol_type: str, names: Sequence[str]) -> bool:
        """Whether somebody of this type, with these assignors, can get on with all members."""
        if not self.members:
            return bool(protocol_type and names)
        count = len(self.members)
        return protocol_type == self.protocol_type and any(self.support[name] == count for name in names)

    def elected_protocol(self) -> str:
        """The assignor with the most votes; of several, the one that was named first."""
        candidates = {name for name, count in self.support.items() if count == len(self.members)}
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return votes.most_common(1)[0][0]

    # What any group is asked

    @property
    def state(self) -> str:
        return self.phase.value

    @property
    def is_empty(self) -> bool:
        return self.phase is Phase.EMPTY and not self.pending

    def check_commit(self, request: messages.OffsetCommitRequest, api_version: int) -> None:  # noqa: ARG002
        """Members commit in their generation. Without members anybody may who does not claim to be one."""
        generation = request.generation_id_or_member_epoch
        if generation < 0 and self.phase is Phase.EMPTY:
            return
        if generation < 0 and not request.member_id and request.group_instance_id is None:
            raise UnknownMemberId("The group has members; only they may commit.")
        self.check_member(request.member_id, request.group_instance_id)
        if generation != self.generation:
            raise IllegalGeneration(f"The group is in generation {self.generation}, not {generation}.")
        if self.phase is Phase.COMPLETING:
            raise RebalanceInProgress("The generation has begun, but nobody was assigned anything yet.")

    def check_commit_in_transaction(self, request: messages.TxnOffsetCommitRequest, places: Places) -> None:  # noqa: ARG002
        """Unlike other commits, also while the generation waits for its assignment."""
        generation = request.generation_id
        if self.phase is Phase.EMPTY and generation < 0:
            return
        self.check_member(request.member_id, request.group_instance_id)
        if self.generation != generation:
            raise IllegalGeneration(f"The group is in generation {self.generation} now, not in {generation}.")

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Anybody may look."""

    def check_delete_offsets(self) -> None:
        if self.phase is not Phase.EMPTY and self.protocol_type != CONSUMER:
            raise NonEmptyGroup("The group has members, and what they read is not known.")

    def check_delete(self) -> None:
        if self.phase is not Phase.EMPTY:
            raise NonEmptyGroup("The group has members.")

    def is_subscribed(self, topic: str) -> bool:
        if self.protocol_type != CONSUMER or not self.members:
            return False
        topics = self.subscribed_topics()
        return topics is None or topic in topics

    def subscribed_topics(self) -> frozenset[str] | None:
        """What the members read; None where that cannot be known."""
        if self.topics is None and self.protocol_type == CONSUMER and self.protocol is not None:
            self.topics = subscribed_topics(member.metadata(self.protocol) for member in self.members.values())
        return self.topics

    def expiry_base(self) -> BaseTimestamp | None:
        """Offsets age from the moment when the group became empty; topics that a stable one left, from the commit."""
        if self.protocol_type and self.phase is Phase.EMPTY and self.empty_since_ms != NO_TIMESTAMP:
            return lambda _: self.empty_since_ms
        if not self.protocol_type or self.phase is Phase.EMPTY:
            return lambda committed: committed.commit_timestamp
        if self.phase is Phase.STABLE and self.subscribed_topics() is not None:
            return lambda committed: committed.commit_timestamp
        return None

    def tombstones(self) -> list[Record]:
        return [group_record(self.group_id, None)]

    def keep_alive(self, member_id: str, now_ms: float) -> None:
        member = self.members.get(member_id)
        if member is not None and self.phase in (Phase.STABLE, Phase.PREPARING):
            member.deadline_ms = now_ms + member.session_timeout_ms


def protocols_of(request: messages.JoinGroupRequest) -> Protocols:
    """What a request offers; an assignor that is named twice counts as it was named first."""
    offered: dict[str, bytes] = {}
    for each in request.protocols:
        offered.setdefault(each.name, each.metadata)
    return tuple(offered.items())


def rebalance_timeout_ms(request: messages.JoinGroupRequest) -> int:
    """How long the others wait for this member; the first version of the request did not say."""
    asked = request.rebalance_timeout_ms
    return asked if asked >= 0 else request.session_timeout_ms


def _restored_member(stored: messages.GroupMetadataValue.MemberMetadata, protocol: str, now_ms: float) -> Member:
    return Member(
        member_id=stored.member_id,
        instance_id=stored.group_instance_id,
        client_id=stored.client_id,
        client_host=stored.client_host,
        rebalance_timeout_ms=stored.rebalance_timeout if stored.rebalance_timeout >= 0 else stored.session_timeout,
        session_timeout_ms=stored.session_timeout,
        protocols=((protocol, stored.subscription),),
        deadline_ms=now_ms + stored.session_timeout,
        assignment=stored.assignment,
    )


def _stored_member(member: Member, protocol: str | None) -> messages.GroupMetadataValue.MemberMetadata:
    return messages.GroupMetadataValue.MemberMetadata(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout=member.rebalance_timeout_ms,
        session_timeout=member.session_timeout_ms,
        subscription=member.metadata(protocol),
        assignment=member.assignment,
    )

"""State of a classic group: members, phase and waiting requests. Soft state; the log only has what a sync settled."""

from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from moldau.machines.decision import Ticket
from moldau.machines.groups.classic.subscriptions import CONSUMER, subscribed_topics
from moldau.machines.groups.group import BaseTimestamp, GroupType, TopicIdPartitions
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
"""The member's assignors with its metadata for each, preferred first."""


class Phase(Enum):
    """Group states, by Kafka's names."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(slots=True, eq=False)
class Member:
    """A group member. Evicted at its deadline unless one of its requests is waiting."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    deadline_ms: float
    assignment: bytes = b""
    is_new: bool = False  # cannot send heartbeats before it knows its id; its deadline applies while it waits

    def metadata(self, protocol: str | None) -> bytes:
        """Return its metadata for one of its assignors."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def vote(self, candidates: Container[str]) -> str:
        """Return its preferred assignor among those that all members support."""
        return next(name for name, _ in self.protocols if name in candidates)


class ClassicGroup:
    """Members of a group and their progress towards the next generation."""

    __slots__ = (
        "empty_since_ms",
        "generation",
        "group_id",
        "is_initial",
        "joins",
        "last_join_ms",
        "leader",
        "members",
        "pending",
        "phase",
        "protocol",
        "protocol_type",
        "remaining_delay_ms",
        "static_ids",
        "support",
        "syncs",
        "timer_ms",
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
        self.support: Counter[str] = Counter()  # number of members per supported assignor
        self.pending: dict[str, float] = {}  # assigned ids that have not joined yet, with deadlines
        self.joins: dict[str, Ticket] = {}  # joins waiting for the generation to begin
        self.syncs: dict[str, Ticket] = {}  # syncs waiting for the leader's assignment
        self.unsynced: dict[str, None] = {}  # members that have not synced in this generation
        self.is_initial = False  # the group was empty and waits for more members
        self.last_join_ms: float | None = None  # last join during that wait, which extends it
        self.remaining_delay_ms = 0.0  # maximum extension of that wait
        self.timer_ms: float | None = None  # when the session timer expires
        self.empty_since_ms = NO_TIMESTAMP  # wall time
        self.topics: frozenset[str] | None = None  # subscribed topics, computed on demand

    @classmethod
    def from_record(cls, group_id: str, stored: messages.GroupMetadataValue, now_ms: float) -> "ClassicGroup":
        """Restore a group from its record. Every session starts over."""
        group = cls(group_id)
        group.generation = stored.generation
        group.protocol_type = stored.protocol_type
        group.protocol = stored.protocol
        group.empty_since_ms = stored.current_state_timestamp
        for each in stored.members:
            group.add(_member_from_record(each, stored.protocol or "", now_ms))
        group.leader = stored.leader or group.leader
        group.phase = Phase.STABLE if group.members else Phase.EMPTY
        return group

    def to_record(self, wall_ms: int) -> messages.GroupMetadataValue:
        """Build the group's record."""
        return messages.GroupMetadataValue(
            protocol_type=self.protocol_type,
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader,
            current_state_timestamp=wall_ms,
            members=[_member_to_record(member, self.protocol) for member in self.members.values()],
        )

    def fits_in_log(self, assigned_bytes: int) -> bool:
        """Whether the metadata and assignments of the members fit into one batch."""
        metadata_bytes = sum(len(member.metadata(self.protocol)) for member in self.members.values())
        return metadata_bytes + assigned_bytes <= DECISION_BYTES_MAX

    # Members

    def add(self, member: Member) -> None:
        """Add a member; it becomes the leader if there is none."""
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self.topics = None
        self.support.update(name for name, _ in member.protocols)
        if member.instance_id is not None:
            self.static_ids[member.instance_id] = member.member_id

    def remove(self, member_id: str) -> Member:
        """Remove a member; its waiting requests are left to the caller."""
        member = self.members.pop(member_id)
        self.topics = None
        self.support.subtract(name for name, _ in member.protocols)
        if member.instance_id is not None and self.static_ids.get(member.instance_id) == member_id:
            del self.static_ids[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self.unsynced.pop(member_id, None)
        return member

    def replace_member_id(self, old_id: str, new_id: str) -> Member:
        """Replace a static member's id; it keeps its role, assignment and state."""
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

    def update_member(self, member: Member, request: messages.JoinGroupRequest) -> None:
        """Update a member's protocols and timeouts from a new join."""
        self.topics = None
        self.support.subtract(name for name, _ in member.protocols)
        member.protocols = protocols_of(request)
        self.support.update(name for name, _ in member.protocols)
        member.rebalance_timeout_ms = rebalance_timeout_ms(request)
        member.session_timeout_ms = request.session_timeout_ms

    def check_member(self, member_id: str, instance_id: str | None) -> Member:
        """Return the member of this id, unless its instance id belongs to another member."""
        if instance_id is not None:
            current_id = self.static_ids.get(instance_id)
            if current_id is None:
                raise UnknownMemberId(f"Unknown instance id {instance_id}.")
            if current_id != member_id:
                raise FencedInstanceId(f"Instance id {instance_id} is in use by another member.")
        member = self.members.get(member_id)
        if member is None:
            raise UnknownMemberId("Unknown member id {member_id}.")
        return member

    @property
    def has_all_joined(self) -> bool:
        """Whether every expected member has joined the next generation."""
        return len(self.joins) == len(self.members) and not self.pending

    @property
    def rebalance_timeout_ms(self) -> int:
        """The largest rebalance timeout of its members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    # Assignors

    def is_compatible(self, protocol_type: str, names: Sequence[str]) -> bool:
        """Whether a member of this type with these assignors is compatible with all members."""
        if not self.members:
            return bool(protocol_type and names)
        count = len(self.members)
        return protocol_type == self.protocol_type and any(self.support[name] == count for name in names)

    def elected_protocol(self) -> str:
        """Return the assignor with the most votes; the first named one on a tie."""
        candidates = {name for name, count in self.support.items() if count == len(self.members)}
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return votes.most_common(1)[0][0]

    # Group interface

    @property
    def state(self) -> str:
        return self.phase.value

    @property
    def is_empty(self) -> bool:
        return self.phase is Phase.EMPTY and not self.pending

    def check_commit(self, request: messages.OffsetCommitRequest, api_version: int) -> None:  # noqa: ARG002
        """Members commit in their generation. Without members, only a commit without member id is valid."""
        generation = request.generation_id_or_member_epoch
        if generation < 0 and self.phase is Phase.EMPTY:
            return
        if generation < 0 and not request.member_id and request.group_instance_id is None:
            raise UnknownMemberId("Only members may commit while the group has members.")
        self.check_member(request.member_id, request.group_instance_id)
        if generation != self.generation:
            raise IllegalGeneration(f"The group is in generation {self.generation}, not {generation}.")
        if self.phase is Phase.COMPLETING:
            raise RebalanceInProgress("The group is rebalancing; the assignment is not complete.")

    def check_commit_in_transaction(
        self,
        request: messages.TxnOffsetCommitRequest,
        topic_partitions: TopicIdPartitions,  # noqa: ARG002
    ) -> None:
        """Unlike plain commits, also valid while the generation waits for its assignment."""
        generation = request.generation_id
        if self.phase is Phase.EMPTY and generation < 0:
            return
        self.check_member(request.member_id, request.group_instance_id)
        if self.generation != generation:
            raise IllegalGeneration(f"The group is in generation {self.generation}, not {generation}.")

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Always valid."""

    def check_delete_offsets(self) -> None:
        if self.phase is not Phase.EMPTY and self.protocol_type != CONSUMER:
            raise NonEmptyGroup("The group has members, and their subscriptions are unknown.")

    def check_delete(self) -> None:
        if self.phase is not Phase.EMPTY:
            raise NonEmptyGroup("The group is not empty.")

    def is_subscribed(self, topic: str) -> bool:
        if self.protocol_type != CONSUMER or not self.members:
            return False
        topics = self.subscribed_topics()
        return topics is None or topic in topics

    def subscribed_topics(self) -> frozenset[str] | None:
        """Return the members' subscribed topics; None if unknown."""
        if self.topics is None and self.protocol_type == CONSUMER and self.protocol is not None:
            self.topics = subscribed_topics(member.metadata(self.protocol) for member in self.members.values())
        return self.topics

    def expiry_base(self) -> BaseTimestamp | None:
        """Offsets age from the time the group became empty; those of unsubscribed topics of a stable group from the
        commit."""
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
    """Return the offered assignors; the first metadata of an assignor counts."""
    offered: dict[str, bytes] = {}
    for each in request.protocols:
        offered.setdefault(each.name, each.metadata)
    return tuple(offered.items())


def rebalance_timeout_ms(request: messages.JoinGroupRequest) -> int:
    """Return the rebalance timeout; version 0 of the request has none."""
    timeout_ms = request.rebalance_timeout_ms
    return timeout_ms if timeout_ms >= 0 else request.session_timeout_ms


def _member_from_record(stored: messages.GroupMetadataValue.MemberMetadata, protocol: str, now_ms: float) -> Member:
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


def _member_to_record(member: Member, protocol: str | None) -> messages.GroupMetadataValue.MemberMetadata:
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

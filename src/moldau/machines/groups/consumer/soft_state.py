"""Soft state of a consumer group: deadlines of its members, and which metadata has been processed.

A heartbeat extends a deadline and moves no timer. One timer covers all deadlines of a group; it may expire early.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from moldau.machines.decision import Decision
from moldau.machines.groups.consumer.member import Member, MemberState
from moldau.machines.groups.consumer.settings import ConsumerGroupSettings, HeartbeatConfig
from moldau.machines.groups.draft import Draft
from moldau.machines.metadata.image import MetadataImage, Resource, TopicImage
from moldau.model.units import SECOND_MS

STALL_MS: Final = 1 * SECOND_MS  # timer delay explained by a busy event loop; a longer one is a stall
STALL_GRACE_MS: Final = 5 * SECOND_MS  # for members to resend lost heartbeats, and to process them


@dataclass(frozen=True, slots=True)
class MembersDue:
    """A deadline of a member may have passed."""

    group_id: str


class CachedResponse(NamedTuple):
    """Cached response of a member without changes."""

    epoch: int
    interval_ms: int
    decision: Decision[Any, Any]


@dataclass(slots=True, eq=False)
class SoftState:
    """Soft state of a group; rebuilt after a change of leadership."""

    group_id: str
    sessions: dict[str, float] = field(default_factory=dict)  # session deadline by member id
    revocations: dict[str, tuple[float, int]] = field(default_factory=dict)  # deadline to leave an epoch by revoking
    joins: dict[str, float] = field(default_factory=dict)  # deadline for a classic member to rejoin
    syncs: dict[str, float] = field(default_factory=dict)  # deadline for a classic member to sync
    cached: dict[str, CachedResponse] = field(default_factory=dict)
    timer_ms: float | None = None
    topics: Mapping[str, TopicImage] | None = None  # topics last compared with the group's epoch
    matched: Mapping[str, TopicImage] | None = None  # topics last matched with its regular expressions
    matched_ms: float | None = None
    changed_ms: float | None = None  # when the group epoch was last bumped
    heartbeat_config: HeartbeatConfig | None = None
    settings: ConsumerGroupSettings | None = None  # inputs of `heartbeat_config`, together with `configs`
    configs: Mapping[Resource, Mapping[str, str]] | None = None

    def has_config_of(self, settings: ConsumerGroupSettings, image: MetadataImage) -> bool:
        """Whether the cached timeouts were derived from these settings and configs."""
        return self.settings is settings and self.configs is image.configs

    def extend_session(self, draft: Draft, member_id: str, session_timeout_ms: int) -> None:
        """Extend a member's session."""
        self.sessions[member_id] = deadline_ms = draft.now.ms + session_timeout_ms
        self.arm(draft, deadline_ms)

    def track_revocation(self, draft: Draft, member: Member) -> None:
        """Set or clear the member's revocation deadline. Classic members have join and sync deadlines instead."""
        if member.is_classic:
            return
        if member.state is MemberState.UNREVOKED_PARTITIONS:
            deadline_ms = draft.now.ms + member.rebalance_timeout_ms
            self.revocations[member.member_id] = deadline_ms, member.epoch
            self.arm(draft, deadline_ms)
        else:
            self.revocations.pop(member.member_id, None)

    def expect_join(self, draft: Draft, member: Member) -> None:
        """Start a classic member's deadline to rejoin, unless it is running."""
        if member.member_id not in self.joins:
            self.joins[member.member_id] = deadline_ms = draft.now.ms + member.rebalance_timeout_ms
            self.arm(draft, deadline_ms)

    def expect_sync(self, draft: Draft, member: Member) -> None:
        """Start a classic member's deadline to sync."""
        self.joins.pop(member.member_id, None)
        self.syncs[member.member_id] = deadline_ms = draft.now.ms + member.rebalance_timeout_ms
        self.arm(draft, deadline_ms)

    def has_matched(self, topics: Mapping[str, TopicImage], now_ms: float, settings: ConsumerGroupSettings) -> bool:
        """Whether regular expressions were matched with these topics within the refresh interval."""
        if self.matched is not topics or self.matched_ms is None:
            return False
        return now_ms - self.matched_ms < settings.group_consumer_regex_refresh_interval_ms

    def remove(self, member_id: str) -> None:
        for each in (self.sessions, self.revocations, self.joins, self.syncs, self.cached):
            each.pop(member_id, None)

    def arm(self, draft: Draft, deadline_ms: float) -> None:
        """Make the timer expire by this deadline."""
        if self.timer_ms is None or deadline_ms < self.timer_ms:
            self.timer_ms = deadline_ms
            draft.set_timer(MembersDue(self.group_id), deadline_ms - draft.now.ms)

    def arm_next(self, draft: Draft) -> None:
        """Set the timer to the next deadline after it has expired."""
        self.timer_ms = None
        earliest_ms = min(self._deadlines(), default=None)
        if earliest_ms is not None:
            self.arm(draft, earliest_ms)

    def _deadlines(self) -> Iterator[float]:
        yield from self.sessions.values()
        yield from (deadline_ms for deadline_ms, _ in self.revocations.values())
        yield from self.joins.values()
        yield from self.syncs.values()

    def _extend_after_stall(self, now_ms: float) -> None:
        """Extend all deadlines after a stall of this node, detected by a late timer: requests could not be processed.
        Members get the lost time back, plus a grace period."""
        stall_ms = 0.0 if self.timer_ms is None else now_ms - self.timer_ms
        if stall_ms > STALL_MS:
            more_ms = stall_ms + STALL_GRACE_MS
            for deadlines in (self.sessions, self.joins, self.syncs):
                for member_id in deadlines:
                    deadlines[member_id] += more_ms
            for member_id, (deadline_ms, epoch) in self.revocations.items():
                self.revocations[member_id] = deadline_ms + more_ms, epoch

    def expired_members(self, members: Mapping[str, Member], now_ms: float) -> list[str]:
        """Return members with an expired deadline. Drops the deadlines of removed members and passed epochs."""
        self._extend_after_stall(now_ms)
        for member_id in [each for each in self.sessions if each not in members]:
            self.remove(member_id)
        for member_id, (_, epoch) in list(self.revocations.items()):
            if members[member_id].epoch != epoch:
                del self.revocations[member_id]
        late = {member_id for member_id, deadline_ms in self.sessions.items() if deadline_ms <= now_ms}
        late.update(member_id for member_id, (deadline_ms, _) in self.revocations.items() if deadline_ms <= now_ms)
        for deadlines in (self.joins, self.syncs):
            late.update(member_id for member_id, deadline_ms in deadlines.items() if deadline_ms <= now_ms)
        return [member_id for member_id in members if member_id in late]

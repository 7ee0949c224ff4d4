"""What a shard remembers of a consumer group only while it looks after it: deadlines, and what it has looked at.

A heartbeat moves a deadline and no timer. One timer watches all deadlines of a group; it may go off too early.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from moldau.machines.decision import Decision
from moldau.machines.groups.consumer.member import Member, MemberState
from moldau.machines.groups.consumer.settings import ConsumerGroupSettings, Pace
from moldau.machines.groups.draft import Draft
from moldau.machines.metadata.image import MetadataImage, Resource, TopicImage
from moldau.model.units import SECOND_MS

LATE_MS: Final = 1 * SECOND_MS  # what a busy loop, or a busy machine, may cost without anybody having been deaf
HEARD_AGAIN_MS: Final = 5 * SECOND_MS  # until members have sent again what was lost, and it is read


@dataclass(frozen=True, slots=True)
class MembersDue:
    """The time of some member of a consumer group may be over."""

    group_id: str


class Told(NamedTuple):
    """What a member hears for as long as there is nothing new."""

    epoch: int
    interval_ms: int
    decision: Decision[Any, Any]


@dataclass(slots=True, eq=False)
class Watch:
    """Soft state of one group; lost with the leadership, and begun anew in full."""

    group_id: str
    sessions: dict[str, float] = field(default_factory=dict)  # by member id: until when it must be heard of
    revocations: dict[str, tuple[float, int]] = field(default_factory=dict)  # until when it must leave which epoch
    joins: dict[str, float] = field(default_factory=dict)  # until when a classic member must join anew
    syncs: dict[str, float] = field(default_factory=dict)  # until when a classic member must fetch its assignment
    told: dict[str, Told] = field(default_factory=dict)
    alarm_ms: float | None = None
    topics: Mapping[str, TopicImage] | None = None  # those that the group's epoch was last held against
    matched: Mapping[str, TopicImage] | None = None  # those that its regular expressions were last held against
    matched_ms: float | None = None
    changed_ms: float | None = None  # when the group's epoch last grew
    pace: Pace | None = None
    settings: ConsumerGroupSettings | None = None  # those that `pace` is from, with the groups' own
    configs: Mapping[Resource, Mapping[str, str]] | None = None

    def has_pace_of(self, settings: ConsumerGroupSettings, image: MetadataImage) -> bool:
        """Whether the pace is the one that these settings and configs lead to."""
        return self.settings is settings and self.configs is image.configs

    def heard_of(self, draft: Draft, member_id: str, session_timeout_ms: int) -> None:
        """A member showed that it is there."""
        self.sessions[member_id] = deadline_ms = draft.now.ms + session_timeout_ms
        self.arm(draft, deadline_ms)

    def reconciled(self, draft: Draft, member: Member) -> None:
        """A member that must give something up has its own time for that. Classic members are given other deadlines."""
        if member.is_classic:
            return
        if member.state is MemberState.UNREVOKED_PARTITIONS:
            deadline_ms = draft.now.ms + member.rebalance_timeout_ms
            self.revocations[member.member_id] = deadline_ms, member.epoch
            self.arm(draft, deadline_ms)
        else:
            self.revocations.pop(member.member_id, None)

    def expect_join(self, draft: Draft, member: Member) -> None:
        """A classic member was told to join anew; the first time counts."""
        if member.member_id not in self.joins:
            self.joins[member.member_id] = deadline_ms = draft.now.ms + member.rebalance_timeout_ms
            self.arm(draft, deadline_ms)

    def expect_sync(self, draft: Draft, member: Member) -> None:
        """A classic member has joined and will want its assignment."""
        self.joins.pop(member.member_id, None)
        self.syncs[member.member_id] = deadline_ms = draft.now.ms + member.rebalance_timeout_ms
        self.arm(draft, deadline_ms)

    def has_matched(self, topics: Mapping[str, TopicImage], now_ms: float, settings: ConsumerGroupSettings) -> bool:
        """Whether regular expressions were held against these topics, and not too long ago."""
        if self.matched is not topics or self.matched_ms is None:
            return False
        return now_ms - self.matched_ms < settings.group_consumer_regex_refresh_interval_ms

    def forget(self, member_id: str) -> None:
        for each in (self.sessions, self.revocations, self.joins, self.syncs, self.told):
            each.pop(member_id, None)

    def arm(self, draft: Draft, deadline_ms: float) -> None:
        """See that the timer goes off by then."""
        if self.alarm_ms is None or deadline_ms < self.alarm_ms:
            self.alarm_ms = deadline_ms
            draft.set_timer(MembersDue(self.group_id), deadline_ms - draft.now.ms)

    def arm_next(self, draft: Draft) -> None:
        """The timer went off; the next deadline is looked for among all."""
        self.alarm_ms = None
        earliest_ms = min(self._deadlines(), default=None)
        if earliest_ms is not None:
            self.arm(draft, earliest_ms)

    def _deadlines(self) -> Iterator[float]:
        yield from self.sessions.values()
        yield from (deadline_ms for deadline_ms, _ in self.revocations.values())
        yield from self.joins.values()
        yield from self.syncs.values()

    def _forgive_deafness(self, now_ms: float) -> None:
        """A timer that goes off far too late shows that this node stood still, or could decide nothing: what members
        had to do, they could not. All have that time once more, and a moment to be heard in.
        """
        late_ms = 0.0 if self.alarm_ms is None else now_ms - self.alarm_ms
        if late_ms > LATE_MS:
            more_ms = late_ms + HEARD_AGAIN_MS
            for deadlines in (self.sessions, self.joins, self.syncs):
                for member_id in deadlines:
                    deadlines[member_id] += more_ms
            for member_id, (deadline_ms, epoch) in self.revocations.items():
                self.revocations[member_id] = deadline_ms + more_ms, epoch

    def overdue(self, members: Mapping[str, Member], now_ms: float) -> list[str]:
        """The members whose time is over. Deadlines of those who are gone, or have gone on, are forgotten."""
        self._forgive_deafness(now_ms)
        for member_id in [each for each in self.sessions if each not in members]:
            self.forget(member_id)
        for member_id, (_, epoch) in list(self.revocations.items()):
            if members[member_id].epoch != epoch:
                del self.revocations[member_id]
        late = {member_id for member_id, deadline_ms in self.sessions.items() if deadline_ms <= now_ms}
        late.update(member_id for member_id, (deadline_ms, _) in self.revocations.items() if deadline_ms <= now_ms)
        for deadlines in (self.joins, self.syncs):
            late.update(member_id for member_id, deadline_ms in deadlines.items() if deadline_ms <= now_ms)
        return [member_id for member_id in members if member_id in late]

"""What a classic group waits for. One timer watches all its sessions, so that a heartbeat need not move any."""

from dataclasses import dataclass

from moldau.machines.groups.classic.group import ClassicGroup, Member
from moldau.machines.groups.draft import Draft


@dataclass(frozen=True, slots=True)
class SessionsDue:
    """Somebody's session may have run out; whoever sent a heartbeat meanwhile has a later deadline."""

    group_id: str


@dataclass(frozen=True, slots=True)
class JoinDue:
    """The time to join the next generation is over."""

    group_id: str


@dataclass(frozen=True, slots=True)
class SyncDue:
    """The time to fetch one's assignment is over."""

    group_id: str


def extend_session(group: ClassicGroup, member: Member, draft: Draft) -> None:
    """A member showed that it is there."""
    member.deadline_ms = draft.now.ms + member.session_timeout_ms
    watch(group, member.deadline_ms, draft)


def watch(group: ClassicGroup, deadline_ms: float, draft: Draft) -> None:
    """See that the timer goes off by this deadline. It may go off too early, never too late."""
    if group.alarm_ms is None or deadline_ms < group.alarm_ms:
        group.alarm_ms = deadline_ms
        draft.set_timer(SessionsDue(group.group_id), deadline_ms - draft.now.ms)

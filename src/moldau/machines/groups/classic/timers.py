"""Timers of a classic group. One timer covers all sessions, so that a heartbeat moves no timer."""

from dataclasses import dataclass

from moldau.machines.groups.classic.group import ClassicGroup, Member
from moldau.machines.groups.draft import Draft


@dataclass(frozen=True, slots=True)
class SessionsDue:
    """A session may have expired; a heartbeat may have extended it since."""

    group_id: str


@dataclass(frozen=True, slots=True)
class JoinDue:
    """The time to join the next generation is over."""

    group_id: str


@dataclass(frozen=True, slots=True)
class SyncDue:
    """The time to sync is over."""

    group_id: str


def extend_session(group: ClassicGroup, member: Member, draft: Draft) -> None:
    """Extend a member's session."""
    member.deadline_ms = draft.now.ms + member.session_timeout_ms
    arm_session_timer(group, member.deadline_ms, draft)


def arm_session_timer(group: ClassicGroup, deadline_ms: float, draft: Draft) -> None:
    """Make the timer expire by this deadline; it may be early, never late."""
    if group.timer_ms is None or deadline_ms < group.timer_ms:
        group.timer_ms = deadline_ms
        draft.set_timer(SessionsDue(group.group_id), deadline_ms - draft.now.ms)

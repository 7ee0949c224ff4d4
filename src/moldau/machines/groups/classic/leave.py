"""Removal of members: LeaveGroup, an admin removing a static member, or session timeout."""

from collections.abc import Sequence
from typing import Final

from moldau.machines.groups.classic.group import NO_MEMBER_ID, ClassicGroup, Member
from moldau.machines.groups.classic.rebalance import complete_if_all_joined, evict, rebalance
from moldau.machines.groups.classic.timers import arm_session_timer
from moldau.machines.groups.draft import Draft
from moldau.model.errors import ErrorCode, KafkaError, UnknownMemberId
from moldau.wire import messages

STALL_MS: Final = 1_000  # timer delay explained by a busy event loop; a longer one is a stall

Identity = messages.LeaveGroupRequest.MemberIdentity


def leave(group: ClassicGroup, draft: Draft, identities: Sequence[Identity]) -> list[ErrorCode]:
    """Remove members, each with its own error; the others rebalance once."""
    count = len(group.members)
    errors = [_leave_one(group, draft, identity) for identity in identities]
    _rebalance_if_changed(group, draft, count)
    return errors


def _leave_one(group: ClassicGroup, draft: Draft, identity: Identity) -> ErrorCode:
    if group.pending.pop(identity.member_id, None) is not None:
        return ErrorCode.NONE
    try:
        evict(group, _leaving_member(group, identity).member_id, draft)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


def _leaving_member(group: ClassicGroup, identity: Identity) -> Member:
    """Return the member; an admin gives only the instance id of a static member."""
    if identity.member_id == NO_MEMBER_ID:
        member_id = group.static_ids.get(identity.group_instance_id or "")
        if member_id is None:
            raise UnknownMemberId("Unknown instance id {identity.group_instance_id}.")
        return group.members[member_id]
    return group.check_member(identity.member_id, identity.group_instance_id)


def handle_session_timeout(group: ClassicGroup, draft: Draft) -> None:
    """Evict members with an expired session. A waiting request keeps a member alive, unless the member is new."""
    _extend_after_stall(group, draft.now.ms)
    group.timer_ms = None
    now_ms, count = draft.now.ms, len(group.members)
    expired = [
        each for each in group.members.values() if each.deadline_ms <= now_ms and _has_session_deadline(group, each)
    ]
    for member in expired:
        evict(group, member.member_id, draft)
    expired_pending = [member_id for member_id, deadline_ms in group.pending.items() if deadline_ms <= now_ms]
    for member_id in expired_pending:
        del group.pending[member_id]
    _rebalance_if_changed(group, draft, count)
    arm_next_session_timer(group, draft)


def _extend_after_stall(group: ClassicGroup, now_ms: float) -> None:
    """Extend all sessions after a stall of this node, detected by a late timer: heartbeats could not be received."""
    stall_ms = now_ms - (now_ms if group.timer_ms is None else group.timer_ms)
    if stall_ms > STALL_MS:
        for member in group.members.values():
            member.deadline_ms += stall_ms
        group.pending = {member_id: deadline_ms + stall_ms for member_id, deadline_ms in group.pending.items()}


def _has_session_deadline(group: ClassicGroup, member: Member) -> bool:
    return member.is_new or not (member.member_id in group.joins or member.member_id in group.syncs)


def arm_next_session_timer(group: ClassicGroup, draft: Draft) -> None:
    """Set the timer to the next session that may expire."""
    deadlines = [each.deadline_ms for each in group.members.values() if _has_session_deadline(group, each)]
    earliest_ms = min([*deadlines, *group.pending.values()], default=None)
    if earliest_ms is not None:
        arm_session_timer(group, earliest_ms, draft)


def _rebalance_if_changed(group: ClassicGroup, draft: Draft, count: int) -> None:
    """Rebalance if members were removed."""
    if len(group.members) < count:
        rebalance(group, draft)
    else:  # a pending member may have been the last one missing
        complete_if_all_joined(group, draft)

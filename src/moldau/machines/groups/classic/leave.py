"""Members go: by LeaveGroup, by an admin's word for a static member, or because they were silent for too long."""

from collections.abc import Sequence
from typing import Final

from moldau.machines.groups.classic.group import NO_MEMBER_ID, ClassicGroup, Member
from moldau.machines.groups.classic.rebalance import complete_if_all_joined, expel, rebalance
from moldau.machines.groups.classic.timers import watch
from moldau.machines.groups.draft import Draft
from moldau.model.errors import ErrorCode, KafkaError, UnknownMemberId
from moldau.wire import messages

LATE_MS: Final = 1_000  # what a busy loop, or a busy machine, may cost without anybody having been deaf

Identity = messages.LeaveGroupRequest.MemberIdentity


def leave(group: ClassicGroup, draft: Draft, identities: Sequence[Identity]) -> list[ErrorCode]:
    """Each goes or is refused by itself; the others rebalance once."""
    count = len(group.members)
    errors = [_leave_one(group, draft, identity) for identity in identities]
    _settle(group, draft, count)
    return errors


def _leave_one(group: ClassicGroup, draft: Draft, identity: Identity) -> ErrorCode:
    if group.pending.pop(identity.member_id, None) is not None:
        return ErrorCode.NONE
    try:
        expel(group, _leaver(group, identity).member_id, draft)
    except KafkaError as refusal:
        return refusal.code
    return ErrorCode.NONE


def _leaver(group: ClassicGroup, identity: Identity) -> Member:
    """An admin names a static member by its instance alone."""
    if identity.member_id == NO_MEMBER_ID:
        member_id = group.static_ids.get(identity.group_instance_id or "")
        if member_id is None:
            raise UnknownMemberId("The group has no such static member.")
        return group.members[member_id]
    return group.check_member(identity.member_id, identity.group_instance_id)


def sessions_are_due(group: ClassicGroup, draft: Draft) -> None:
    """Whoever was silent for too long is out. Who waits for an answer is not silent, unless it is new."""
    _forgive_deafness(group, draft.now.ms)
    group.alarm_ms = None
    now_ms, count = draft.now.ms, len(group.members)
    silent = [each for each in group.members.values() if each.deadline_ms <= now_ms and _must_speak(group, each)]
    for member in silent:
        expel(group, member.member_id, draft)
    lapsed = [member_id for member_id, deadline_ms in group.pending.items() if deadline_ms <= now_ms]
    for member_id in lapsed:
        del group.pending[member_id]
    _settle(group, draft, count)
    watch_all(group, draft)


def _forgive_deafness(group: ClassicGroup, now_ms: float) -> None:
    """A timer that goes off far too late shows that this node stood still: nobody could be heard meanwhile."""
    late_ms = now_ms - (now_ms if group.alarm_ms is None else group.alarm_ms)
    if late_ms > LATE_MS:
        for member in group.members.values():
            member.deadline_ms += late_ms
        group.pending = {member_id: deadline_ms + late_ms for member_id, deadline_ms in group.pending.items()}


def _must_speak(group: ClassicGroup, member: Member) -> bool:
    return member.is_new or not (member.member_id in group.joins or member.member_id in group.syncs)


def watch_all(group: ClassicGroup, draft: Draft) -> None:
    """Set the timer for the next session that may run out."""
    deadlines = [each.deadline_ms for each in group.members.values() if _must_speak(group, each)]
    earliest_ms = min([*deadlines, *group.pending.values()], default=None)
    if earliest_ms is not None:
        watch(group, earliest_ms, draft)


def _settle(group: ClassicGroup, draft: Draft, count: int) -> None:
    """Where there are fewer members than before, those who stay share anew."""
    if len(group.members) < count:
        rebalance(group, draft)
    else:  # somebody may be gone who was expected and had not come yet
        complete_if_all_joined(group, draft)

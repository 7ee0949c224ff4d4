"""How a classic group goes from one generation to the next: everybody joins, one assigns, everybody is told.

EMPTY -> PREPARING -> COMPLETING -> STABLE, back to PREPARING at every change, to EMPTY when the last one is gone.
"""

from typing import Final

from moldau.machines.groups.classic.group import NO_MEMBER_ID, ClassicGroup, Phase
from moldau.machines.groups.classic.timers import JoinDue, SyncDue, extend_session
from moldau.machines.groups.draft import Draft
from moldau.machines.groups.records import group_record
from moldau.model.errors import ErrorCode
from moldau.model.units import SECOND_MS
from moldau.wire import messages

LOOK_AGAIN_MS: Final = 1 * SECOND_MS  # members need not have any patience at all


def rebalance(group: ClassicGroup, draft: Draft) -> None:
    """Something changed: begin to gather the next generation, or see whether it is complete now."""
    if group.phase is Phase.PREPARING:
        complete_if_all_joined(group, draft)
    else:
        prepare(group, draft)


def prepare(group: ClassicGroup, draft: Draft) -> None:
    """From now on members join anew. One that was empty waits a little, so that more can come at once."""
    refuse_syncs(group, draft, ErrorCode.REBALANCE_IN_PROGRESS)
    draft.cancel_timer(SyncDue(group.group_id))
    group.is_initial = group.phase is Phase.EMPTY
    group.phase = Phase.PREPARING
    if group.is_initial:
        delay_ms = max(draft.settings.group_initial_rebalance_delay_ms, 0)
        group.newcomer_ms = None
        group.delay_left_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
        draft.set_timer(JoinDue(group.group_id), delay_ms)
    elif group.has_all_joined:
        complete_join(group, draft)
    else:
        draft.set_timer(JoinDue(group.group_id), group.rebalance_timeout_ms)


def complete_if_all_joined(group: ClassicGroup, draft: Draft) -> None:
    """The next generation begins with the last one who was waited for, except after the wait of an empty group."""
    if group.phase is Phase.PREPARING and not group.is_initial and group.has_all_joined:
        complete_join(group, draft)


def join_is_due(group: ClassicGroup, draft: Draft) -> None:
    """The wait is over, unless newcomers have earned an empty group some more of it."""
    if group.phase is not Phase.PREPARING:
        return
    delay_ms = _more_delay_ms(group, draft)
    if delay_ms > 0:
        group.newcomer_ms = None
        group.delay_left_ms -= delay_ms
        draft.set_timer(JoinDue(group.group_id), delay_ms)
    else:
        complete_join(group, draft)


def _more_delay_ms(group: ClassicGroup, draft: Draft) -> float:
    """The full delay from the last newcomer on, but in all no more than the members' patience.

    Kafka adds a whole delay to the one that is over; a burst of newcomers at its beginning then costs twice the time.
    """
    if not group.is_initial or group.newcomer_ms is None:
        return 0
    due_ms = group.newcomer_ms + max(draft.settings.group_initial_rebalance_delay_ms, 0)
    return min(due_ms - draft.now.ms, group.delay_left_ms)


def complete_join(group: ClassicGroup, draft: Draft) -> None:
    """The next generation consists of those who joined, and of static members, who may come back in their time."""
    draft.cancel_timer(JoinDue(group.group_id))
    group.is_initial = False
    for member_id in [
        each for each, member in group.members.items() if _is_left_behind(group, each, member.instance_id)
    ]:
        group.remove(member_id)
    if not group.members:
        _become_empty(group, draft)
    elif not group.joins:  # only static members are left, none of them here: their sessions will end or they come
        draft.set_timer(JoinDue(group.group_id), max(group.rebalance_timeout_ms, LOOK_AGAIN_MS))
    else:
        _begin_generation(group, draft)


def _is_left_behind(group: ClassicGroup, member_id: str, instance_id: str | None) -> bool:
    return instance_id is None and member_id not in group.joins


def _become_empty(group: ClassicGroup, draft: Draft) -> None:
    group.generation += 1
    group.phase = Phase.EMPTY
    group.protocol = group.leader = None
    group.empty_since_ms = draft.now.wall_ms
    draft.records.append(group_record(group.group_id, group.stored(draft.now.wall_ms)))


def _begin_generation(group: ClassicGroup, draft: Draft) -> None:
    """Everybody who joined is told, and the leader who they are."""
    group.generation += 1
    group.phase = Phase.COMPLETING
    group.protocol, group.topics = group.elected_protocol(), None
    if group.leader not in group.joins:
        group.leader = next(iter(group.joins))
    joins, group.joins = group.joins, {}
    group.unsynced = dict.fromkeys(joins)  # a static member that is away keeps its place until its session ends
    for member_id, ticket in joins.items():
        member = group.members[member_id]
        member.is_new = False
        extend_session(group, member, draft)
        draft.answer(ticket, joined(group, member_id))
    draft.set_timer(SyncDue(group.group_id), group.rebalance_timeout_ms)


def joined(group: ClassicGroup, member_id: str) -> messages.JoinGroupResponse:
    """What a member of the current generation is told of it; the leader also learns who the others are."""
    return messages.JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        leader=group.leader or NO_MEMBER_ID,
        member_id=member_id,
        members=_everybody(group) if member_id == group.leader else [],
    )


def _everybody(group: ClassicGroup) -> list[messages.JoinGroupResponse.JoinGroupResponseMember]:
    """The members with what they say of themselves, for the leader."""
    return [
        messages.JoinGroupResponse.JoinGroupResponseMember(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            metadata=member.metadata(group.protocol),
        )
        for member in group.members.values()
    ]


def refuse_syncs(group: ClassicGroup, draft: Draft, error: ErrorCode) -> None:
    """Whoever waits for an assignment will not get it from this generation."""
    syncs, group.syncs = group.syncs, {}
    for member_id, ticket in syncs.items():
        draft.answer(ticket, messages.SyncGroupResponse(error_code=error))
        extend_session(group, group.members[member_id], draft)


def expel(group: ClassicGroup, member_id: str, draft: Draft, error: ErrorCode = ErrorCode.UNKNOWN_MEMBER_ID) -> None:
    """A member is out, and hears it if it waits. What that means for the others is for the caller to settle."""
    refuse_waiting(group, member_id, draft, error)
    group.remove(member_id)


def refuse_waiting(group: ClassicGroup, member_id: str, draft: Draft, error: ErrorCode) -> None:
    """Requests that wait in this member's name are answered with an error."""
    draft.answer(group.joins.pop(member_id, None), messages.JoinGroupResponse(error_code=error))
    draft.answer(group.syncs.pop(member_id, None), messages.SyncGroupResponse(error_code=error))

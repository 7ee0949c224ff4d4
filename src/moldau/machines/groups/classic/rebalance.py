"""Rebalance of a classic group: members join, the leader assigns, members sync.

    EMPTY -> PREPARING -> COMPLETING -> STABLE
       ^         ^             |           |
       |         +-------------+-----------+   any change: a join, a leave, an expired session
       +------ the last member leaves

PREPARING collects JoinGroup requests until all known members have joined or the largest rebalance timeout expires. An
empty group first waits group.initial.rebalance.delay.ms, extended by each join, so that a starting fleet costs one
rebalance. `complete_join` begins the generation: dynamic members that did not join are dropped, static ones stay until
their session expires. COMPLETING lasts until the leader's SyncGroup brings the assignment, which is the only time the
group is written to the log (see sync.py); all other state here is soft and rebuilt by clients rejoining.
"""

from typing import Final

from moldau.machines.groups.classic.group import NO_MEMBER_ID, ClassicGroup, Phase
from moldau.machines.groups.classic.timers import JoinDue, SyncDue, extend_session
from moldau.machines.groups.draft import Draft
from moldau.machines.groups.records import group_record
from moldau.model.errors import ErrorCode
from moldau.model.units import SECOND_MS
from moldau.wire import messages

RECHECK_MS: Final = 1 * SECOND_MS  # members may have a rebalance timeout of zero


def rebalance(group: ClassicGroup, draft: Draft) -> None:
    """A member changed: start collecting the next generation, or check whether it is complete."""
    if group.phase is Phase.PREPARING:
        complete_if_all_joined(group, draft)
    else:
        prepare(group, draft)


def prepare(group: ClassicGroup, draft: Draft) -> None:
    """Start collecting joins. A group that was empty waits for more members first."""
    fail_syncs(group, draft, ErrorCode.REBALANCE_IN_PROGRESS)
    draft.cancel_timer(SyncDue(group.group_id))
    group.is_initial = group.phase is Phase.EMPTY
    group.phase = Phase.PREPARING
    if group.is_initial:
        delay_ms = max(draft.settings.group_initial_rebalance_delay_ms, 0)
        group.last_join_ms = None
        group.remaining_delay_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
        draft.set_timer(JoinDue(group.group_id), delay_ms)
    elif group.has_all_joined:
        complete_join(group, draft)
    else:
        draft.set_timer(JoinDue(group.group_id), group.rebalance_timeout_ms)


def complete_if_all_joined(group: ClassicGroup, draft: Draft) -> None:
    """Begin the generation if all members have joined, except during the initial delay of an empty group."""
    if group.phase is Phase.PREPARING and not group.is_initial and group.has_all_joined:
        complete_join(group, draft)


def handle_join_timeout(group: ClassicGroup, draft: Draft) -> None:
    """Begin the generation, unless joins during the initial delay extend it."""
    if group.phase is not Phase.PREPARING:
        return
    delay_ms = _remaining_delay_ms(group, draft)
    if delay_ms > 0:
        group.last_join_ms = None
        group.remaining_delay_ms -= delay_ms
        draft.set_timer(JoinDue(group.group_id), delay_ms)
    else:
        complete_join(group, draft)


def _remaining_delay_ms(group: ClassicGroup, draft: Draft) -> float:
    """Return the delay from the last join on, limited by the rebalance timeout in total.

    Kafka adds a whole delay to the expired one, which doubles the wait for a burst of joins at its start.
    """
    if not group.is_initial or group.last_join_ms is None:
        return 0
    due_ms = group.last_join_ms + max(draft.settings.group_initial_rebalance_delay_ms, 0)
    return min(due_ms - draft.now.ms, group.remaining_delay_ms)


def complete_join(group: ClassicGroup, draft: Draft) -> None:
    """Complete the join phase with the joined members, and absent static members until their session expires."""
    draft.cancel_timer(JoinDue(group.group_id))
    group.is_initial = False
    for member_id in [
        each for each, member in group.members.items() if _has_missed_join(group, each, member.instance_id)
    ]:
        group.remove(member_id)
    if not group.members:
        _become_empty(group, draft)
    elif not group.joins:  # only absent static members are left: they return or their sessions expire
        draft.set_timer(JoinDue(group.group_id), max(group.rebalance_timeout_ms, RECHECK_MS))
    else:
        _begin_generation(group, draft)


def _has_missed_join(group: ClassicGroup, member_id: str, instance_id: str | None) -> bool:
    return instance_id is None and member_id not in group.joins


def _become_empty(group: ClassicGroup, draft: Draft) -> None:
    group.generation += 1
    group.phase = Phase.EMPTY
    group.protocol = group.leader = None
    group.empty_since_ms = draft.now.wall_ms
    draft.records.append(group_record(group.group_id, group.to_record(draft.now.wall_ms)))


def _begin_generation(group: ClassicGroup, draft: Draft) -> None:
    """Respond to all joins; the leader's response lists the members."""
    group.generation += 1
    group.phase = Phase.COMPLETING
    group.protocol, group.topics = group.elected_protocol(), None
    if group.leader not in group.joins:
        group.leader = next(iter(group.joins))
    joins, group.joins = group.joins, {}
    group.unsynced = dict.fromkeys(joins)  # an absent static member keeps its slot until its session expires
    for member_id, ticket in joins.items():
        member = group.members[member_id]
        member.is_new = False
        extend_session(group, member, draft)
        draft.respond(ticket, join_response(group, member_id))
    draft.set_timer(SyncDue(group.group_id), group.rebalance_timeout_ms)


def join_response(group: ClassicGroup, member_id: str) -> messages.JoinGroupResponse:
    """Build the response for a member of the current generation; the leader's lists all members."""
    return messages.JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        leader=group.leader or NO_MEMBER_ID,
        member_id=member_id,
        members=_members_for_leader(group) if member_id == group.leader else [],
    )


def _members_for_leader(group: ClassicGroup) -> list[messages.JoinGroupResponse.JoinGroupResponseMember]:
    """Return the members with their metadata, for the leader."""
    return [
        messages.JoinGroupResponse.JoinGroupResponseMember(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            metadata=member.metadata(group.protocol),
        )
        for member in group.members.values()
    ]


def fail_syncs(group: ClassicGroup, draft: Draft, error: ErrorCode) -> None:
    """Fail waiting syncs: this generation will have no assignment."""
    syncs, group.syncs = group.syncs, {}
    for member_id, ticket in syncs.items():
        draft.respond(ticket, messages.SyncGroupResponse(error_code=error))
        extend_session(group, group.members[member_id], draft)


def evict(group: ClassicGroup, member_id: str, draft: Draft, error: ErrorCode = ErrorCode.UNKNOWN_MEMBER_ID) -> None:
    """Remove a member and fail its waiting requests. The caller rebalances the rest."""
    fail_waiting(group, member_id, draft, error)
    group.remove(member_id)


def fail_waiting(group: ClassicGroup, member_id: str, draft: Draft, error: ErrorCode) -> None:
    """Fail the member's waiting requests with an error."""
    draft.respond(group.joins.pop(member_id, None), messages.JoinGroupResponse(error_code=error))
    draft.respond(group.syncs.pop(member_id, None), messages.SyncGroupResponse(error_code=error))

"""SyncGroup for classic groups: the leader sends the assignment, members fetch their part of it."""

from moldau.machines.decision import Ticket
from moldau.machines.groups.classic.group import ClassicGroup, Phase
from moldau.machines.groups.classic.rebalance import evict, fail_waiting, prepare
from moldau.machines.groups.classic.timers import SyncDue, extend_session
from moldau.machines.groups.draft import Draft
from moldau.machines.groups.records import group_record
from moldau.model.errors import ErrorCode, KafkaError
from moldau.wire import messages


def sync(group: ClassicGroup, draft: Draft, request: messages.SyncGroupRequest, ticket: Ticket) -> None:
    """Respond with the assignment, or leave the request waiting for the leader's."""
    error = _validate(group, request)
    if error is not ErrorCode.NONE:
        draft.respond(ticket, messages.SyncGroupResponse(error_code=error))
        return
    member_id = request.member_id
    group.unsynced.pop(member_id, None)
    if not group.unsynced:
        draft.cancel_timer(SyncDue(group.group_id))
    if group.phase is Phase.STABLE:
        extend_session(group, group.members[member_id], draft)
        draft.respond(ticket, sync_response(group, member_id))
        return
    fail_waiting(group, member_id, draft, ErrorCode.REBALANCE_IN_PROGRESS)
    group.syncs[member_id] = ticket
    if member_id == group.leader:
        _assign(group, draft, {each.member_id: each.assignment for each in request.assignments})


def _validate(group: ClassicGroup, request: messages.SyncGroupRequest) -> ErrorCode:
    try:
        group.check_member(request.member_id, request.group_instance_id)
    except KafkaError as error:
        return error.code
    if request.generation_id != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if request.protocol_type not in (None, group.protocol_type) or request.protocol_name not in (None, group.protocol):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.phase is Phase.PREPARING:
        return ErrorCode.REBALANCE_IN_PROGRESS
    if _is_too_large(group, request):
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return ErrorCode.NONE


def _is_too_large(group: ClassicGroup, request: messages.SyncGroupRequest) -> bool:
    """Whether the leader's assignment does not fit into one batch."""
    if request.member_id != group.leader or group.phase is not Phase.COMPLETING:
        return False
    return not group.fits_in_log(sum(len(each.assignment) for each in request.assignments))


def _assign(group: ClassicGroup, draft: Draft, assignment: dict[str, bytes]) -> None:
    """Settle the generation: write it, and respond to all waiting syncs. Ignores assignments of non-members."""
    for member in group.members.values():
        member.assignment = assignment.get(member.member_id, b"")
    group.phase = Phase.STABLE
    draft.records.append(group_record(group.group_id, group.to_record(draft.now.wall_ms)))
    syncs, group.syncs = group.syncs, {}
    for member_id, ticket in syncs.items():
        extend_session(group, group.members[member_id], draft)
        draft.respond(ticket, sync_response(group, member_id))


def sync_response(group: ClassicGroup, member_id: str) -> messages.SyncGroupResponse:
    """Build the response with a member's assignment."""
    return messages.SyncGroupResponse(
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        assignment=group.members[member_id].assignment,
    )


def handle_sync_timeout(group: ClassicGroup, draft: Draft) -> None:
    """Evict members that joined but did not sync in time, and rebalance."""
    if group.phase in (Phase.COMPLETING, Phase.STABLE) and group.unsynced:
        for member_id in list(group.unsynced):
            evict(group, member_id, draft)
        prepare(group, draft)

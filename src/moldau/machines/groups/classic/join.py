"""JoinGroup for classic groups: new members, rejoining members, and static members with a new id."""

from typing import Final

from moldau.machines.decision import Ticket
from moldau.machines.groups.classic.group import (
    NO_MEMBER_ID,
    ClassicGroup,
    Member,
    Phase,
    protocols_of,
    rebalance_timeout_ms,
)
from moldau.machines.groups.classic.rebalance import (
    complete_if_all_joined,
    fail_waiting,
    join_response,
    prepare,
    rebalance,
)
from moldau.machines.groups.classic.timers import arm_session_timer, extend_session
from moldau.machines.groups.draft import Caller, Draft
from moldau.machines.groups.records import group_record
from moldau.machines.groups.settings import NEW_MEMBER_JOIN_TIMEOUT_MS, PENDING_MAX
from moldau.model.errors import ErrorCode, KafkaError
from moldau.wire import messages

MEMBER_ID_REQUIRED_VERSION: Final = 4
SKIP_ASSIGNMENT_VERSION: Final = 9


class JoinAttempt:
    """Handles a JoinGroup request."""

    __slots__ = ("caller", "draft", "group", "new_id", "request", "ticket")

    def __init__(
        self,
        group: ClassicGroup,
        draft: Draft,
        request: messages.JoinGroupRequest,
        caller: Caller,
        ticket: Ticket,
        new_id: str,
    ) -> None:
        self.group = group
        self.draft = draft
        self.request = request
        self.caller = caller
        self.ticket = ticket
        self.new_id = new_id  # for a member without an id

    def decide(self) -> None:
        """Respond, or leave the request waiting for the other members."""
        request, group = self.request, self.group
        if not self._has_room():
            self._reject_full()
        elif not group.is_compatible(request.protocol_type, [each.name for each in request.protocols]):
            self._reject(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        elif request.member_id == NO_MEMBER_ID:
            self._join_new()
        elif request.member_id in group.pending and request.group_instance_id is None:
            self._add(request.member_id)
        else:
            self._rejoin()

    def _has_room(self) -> bool:
        """Whether the group has room. During a rebalance the joined members count: the last to join are rejected."""
        group, size_max, member_id = self.group, self.draft.settings.group_max_size, self.request.member_id
        if member_id == NO_MEMBER_ID:  # a restarted static member takes its own slot
            member_id = group.static_ids.get(self.request.group_instance_id or "", NO_MEMBER_ID)
        if len(group.pending) >= PENDING_MAX and member_id == NO_MEMBER_ID:
            return False
        if group.phase is Phase.EMPTY:
            return True
        if group.phase is Phase.PREPARING:
            return member_id in group.joins or len(group.joins) < size_max
        return member_id in group.members or len(group.members) < size_max

    def _reject_full(self) -> None:
        member_id, group = self.request.member_id, self.group
        group.pending.pop(member_id, None)
        if member_id in group.members:
            group.remove(member_id)
        self.draft.respond(
            self.ticket, messages.JoinGroupResponse(error_code=ErrorCode.GROUP_MAX_SIZE_REACHED, member_id=NO_MEMBER_ID)
        )
        complete_if_all_joined(group, self.draft)

    def _reject(self, error: ErrorCode, member_id: str | None = None) -> None:
        member_id = self.request.member_id if member_id is None else member_id
        self.draft.respond(self.ticket, messages.JoinGroupResponse(error_code=error, member_id=member_id))

    # New members

    def _join_new(self) -> None:
        instance_id = self.request.group_instance_id
        if instance_id is not None and instance_id in self.group.static_ids:
            self._replace_static(self.group.static_ids[instance_id])
        elif instance_id is None and self.caller.api_version >= MEMBER_ID_REQUIRED_VERSION:
            self._require_member_id()
        else:
            self._add(self.new_id)

    def _require_member_id(self) -> None:
        """Require the client to rejoin with its id, so that a lost response leaves no orphaned member behind."""
        deadline_ms = self.draft.now.ms + self.request.session_timeout_ms
        self.group.pending[self.new_id] = deadline_ms
        arm_session_timer(self.group, deadline_ms, self.draft)
        self._reject(ErrorCode.MEMBER_ID_REQUIRED, self.new_id)

    def _add(self, member_id: str) -> None:
        group, request, draft = self.group, self.request, self.draft
        group.pending.pop(member_id, None)
        if not group.members:
            group.protocol_type = request.protocol_type
        member = Member(
            member_id=member_id,
            instance_id=request.group_instance_id,
            client_id=self.caller.client_id,
            client_host=self.caller.client_host,
            rebalance_timeout_ms=rebalance_timeout_ms(request),
            session_timeout_ms=request.session_timeout_ms,
            protocols=protocols_of(request),
            deadline_ms=draft.now.ms + NEW_MEMBER_JOIN_TIMEOUT_MS,
            is_new=True,
        )
        if group.is_initial:
            group.last_join_ms = draft.now.ms
        group.add(member)
        group.joins[member_id] = self.ticket
        arm_session_timer(group, member.deadline_ms, draft)
        rebalance(group, draft)

    # Rejoining members

    def _rejoin(self) -> None:
        try:
            member = self.group.check_member(self.request.member_id, self.request.group_instance_id)
        except KafkaError as error:
            self._reject(error.code)
            return
        if self._is_unchanged(member):
            extend_session(self.group, member, self.draft)
            self.draft.respond(self.ticket, join_response(self.group, member.member_id))
        else:
            self._update_and_rebalance(member)

    def _is_unchanged(self, member: Member) -> bool:
        """Whether it only missed a response. A leader rejoining a stable group wants to compute a new assignment."""
        phase, is_leader = self.group.phase, member.member_id == self.group.leader
        if phase is Phase.PREPARING or (phase is Phase.STABLE and is_leader):
            return False
        return member.protocols == protocols_of(self.request)

    def _update_and_rebalance(self, member: Member) -> None:
        self.group.update_member(member, self.request)
        self._replace_waiting_join(member)
        rebalance(self.group, self.draft)

    def _replace_waiting_join(self, member: Member) -> None:
        """Fail the earlier of two joins of a member; only the later one waits."""
        fail_waiting(self.group, member.member_id, self.draft, ErrorCode.REBALANCE_IN_PROGRESS)
        self.group.joins[member.member_id] = self.ticket

    # Static members

    def _replace_static(self, old_id: str) -> None:
        """Give a restarted static member a new id and fence its old one."""
        group, draft = self.group, self.draft
        old_leader = group.leader
        fail_waiting(group, old_id, draft, ErrorCode.FENCED_INSTANCE_ID)
        member = group.replace_member_id(old_id, self.new_id)
        member.client_id, member.client_host, member.is_new = self.caller.client_id, self.caller.client_host, False
        group.update_member(member, self.request)
        extend_session(group, member, draft)
        if self._can_keep_generation():
            draft.records.append(group_record(group.group_id, group.to_record(draft.now.wall_ms)))
            draft.respond(self.ticket, self._unchanged_generation(old_leader))
            return
        group.joins[self.new_id] = self.ticket
        if group.phase is Phase.PREPARING:
            complete_if_all_joined(group, draft)
        else:  # the leader may already be assigning partitions to the old id
            prepare(group, draft)

    def _can_keep_generation(self) -> bool:
        """Whether the generation can continue with the member's new metadata; if it does not fit, rebalance."""
        group = self.group
        if group.phase is Phase.STABLE and group.elected_protocol() == group.protocol:
            return group.fits_in_log(sum(len(each.assignment) for each in group.members.values()))
        return False

    def _unchanged_generation(self, old_leader: str | None) -> messages.JoinGroupResponse:
        """The generation continues. So that no leader assigns again, skip the assignment or name the old leader."""
        response = join_response(self.group, self.new_id)
        if self.caller.api_version < SKIP_ASSIGNMENT_VERSION:
            response.leader, response.members = old_leader or NO_MEMBER_ID, []
        else:
            response.skip_assignment = self.group.leader == self.new_id
        return response

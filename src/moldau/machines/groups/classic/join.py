"""JoinGroup to a classic group: newcomers, members that come back, and static members under a new id."""

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
    joined,
    prepare,
    rebalance,
    refuse_waiting,
)
from moldau.machines.groups.classic.timers import extend_session, watch
from moldau.machines.groups.draft import Asker, Draft
from moldau.machines.groups.records import group_record
from moldau.machines.groups.settings import NEW_MEMBER_JOIN_TIMEOUT_MS, PENDING_MAX
from moldau.model.errors import ErrorCode, KafkaError
from moldau.wire import messages

MEMBER_ID_REQUIRED_FROM: Final = 4
SKIPS_ASSIGNMENT_FROM: Final = 9


class Joining:
    """One JoinGroup request on its way into a group."""

    __slots__ = ("asker", "draft", "group", "new_id", "request", "ticket")

    def __init__(
        self,
        group: ClassicGroup,
        draft: Draft,
        request: messages.JoinGroupRequest,
        asker: Asker,
        ticket: Ticket,
        new_id: str,
    ) -> None:
        self.group = group
        self.draft = draft
        self.request = request
        self.asker = asker
        self.ticket = ticket
        self.new_id = new_id  # for whoever has no id yet

    def decide(self) -> None:
        """Answer, or let the request wait for the others."""
        request, group = self.request, self.group
        if not self._has_room():
            self._turn_away()
        elif not group.knows(request.protocol_type, [each.name for each in request.protocols]):
            self._refuse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        elif request.member_id == NO_MEMBER_ID:
            self._newcomer()
        elif request.member_id in group.pending and request.group_instance_id is None:
            self._add(request.member_id)
        else:
            self._known()

    def _has_room(self) -> bool:
        """While members come back, those who are here count: the last to come are turned away."""
        group, size_max, member_id = self.group, self.draft.settings.group_max_size, self.request.member_id
        if member_id == NO_MEMBER_ID:  # a static member that restarts takes nobody's room but its own
            member_id = group.static_ids.get(self.request.group_instance_id or "", NO_MEMBER_ID)
        if len(group.pending) >= PENDING_MAX and member_id == NO_MEMBER_ID:
            return False
        if group.phase is Phase.EMPTY:
            return True
        if group.phase is Phase.PREPARING:
            return member_id in group.joins or len(group.joins) < size_max
        return member_id in group.members or len(group.members) < size_max

    def _turn_away(self) -> None:
        member_id, group = self.request.member_id, self.group
        group.pending.pop(member_id, None)
        if member_id in group.members:
            group.remove(member_id)
        self.draft.answer(
            self.ticket, messages.JoinGroupResponse(error_code=ErrorCode.GROUP_MAX_SIZE_REACHED, member_id=NO_MEMBER_ID)
        )
        complete_if_all_joined(group, self.draft)

    def _refuse(self, error: ErrorCode, member_id: str | None = None) -> None:
        member_id = self.request.member_id if member_id is None else member_id
        self.draft.answer(self.ticket, messages.JoinGroupResponse(error_code=error, member_id=member_id))

    # Newcomers

    def _newcomer(self) -> None:
        instance_id = self.request.group_instance_id
        if instance_id is not None and instance_id in self.group.static_ids:
            self._take_over(self.group.static_ids[instance_id])
        elif instance_id is None and self.asker.api_version >= MEMBER_ID_REQUIRED_FROM:
            self._give_id()
        else:
            self._add(self.new_id)

    def _give_id(self) -> None:
        """It comes back with its id, so that a join whose answer is lost leaves no member behind that nobody is."""
        deadline_ms = self.draft.now.ms + self.request.session_timeout_ms
        self.group.pending[self.new_id] = deadline_ms
        watch(self.group, deadline_ms, self.draft)
        self._refuse(ErrorCode.MEMBER_ID_REQUIRED, self.new_id)

    def _add(self, member_id: str) -> None:
        group, request, draft = self.group, self.request, self.draft
        group.pending.pop(member_id, None)
        if not group.members:
            group.protocol_type = request.protocol_type
        member = Member(
            member_id=member_id,
            instance_id=request.group_instance_id,
            client_id=self.asker.client_id,
            client_host=self.asker.client_host,
            rebalance_timeout_ms=rebalance_timeout_ms(request),
            session_timeout_ms=request.session_timeout_ms,
            protocols=protocols_of(request),
            deadline_ms=draft.now.ms + NEW_MEMBER_JOIN_TIMEOUT_MS,
            is_new=True,
        )
        if group.is_initial:
            group.newcomer_ms = draft.now.ms
        group.add(member)
        group.joins[member_id] = self.ticket
        watch(group, member.deadline_ms, draft)
        rebalance(group, draft)

    # Members that come back

    def _known(self) -> None:
        try:
            member = self.group.check_member(self.request.member_id, self.request.group_instance_id)
        except KafkaError as refusal:
            self._refuse(refusal.code)
            return
        if self._changes_nothing(member):
            extend_session(self.group, member, self.draft)
            self.draft.answer(self.ticket, joined(self.group, member.member_id))
        else:
            self._join_again(member)

    def _changes_nothing(self, member: Member) -> bool:
        """It only missed an answer. A leader that comes back to a stable group wants to assign anew."""
        phase, is_leader = self.group.phase, member.member_id == self.group.leader
        if phase is Phase.PREPARING or (phase is Phase.STABLE and is_leader):
            return False
        return member.protocols == protocols_of(self.request)

    def _join_again(self, member: Member) -> None:
        self.group.change(member, self.request)
        self._wait_as(member)
        rebalance(self.group, self.draft)

    def _wait_as(self, member: Member) -> None:
        """Of two requests in one member's name the later one counts."""
        refuse_waiting(self.group, member.member_id, self.draft, ErrorCode.REBALANCE_IN_PROGRESS)
        self.group.joins[member.member_id] = self.ticket

    # Static members

    def _take_over(self, old_id: str) -> None:
        """A static member has restarted: it gets a new id, and its old one is fenced."""
        group, draft = self.group, self.draft
        old_leader = group.leader
        refuse_waiting(group, old_id, draft, ErrorCode.FENCED_INSTANCE_ID)
        member = group.rename(old_id, self.new_id)
        member.client_id, member.client_host, member.is_new = self.asker.client_id, self.asker.client_host, False
        group.change(member, self.request)
        extend_session(group, member, draft)
        if self._may_go_on():
            draft.records.append(group_record(group.group_id, group.stored(draft.now.wall_ms)))
            draft.answer(self.ticket, self._as_before(old_leader))
            return
        group.joins[self.new_id] = self.ticket
        if group.phase is Phase.PREPARING:
            complete_if_all_joined(group, draft)
        else:  # the leader may already be assigning to the old id
            prepare(group, draft)

    def _may_go_on(self) -> bool:
        """Whether the generation goes on with what the member says of itself now; a larger one is for a rebalance."""
        group = self.group
        if group.phase is Phase.STABLE and group.elected_protocol() == group.protocol:
            return group.fits_in_log(sum(len(each.assignment) for each in group.members.values()))
        return False

    def _as_before(self, old_leader: str | None) -> messages.JoinGroupResponse:
        """The generation goes on: a leader is told not to assign anew, by its flag or by not knowing that it leads."""
        response = joined(self.group, self.new_id)
        if self.asker.api_version < SKIPS_ASSIGNMENT_FROM:
            response.leader, response.members = old_leader or NO_MEMBER_ID, []
        else:
            response.skip_assignment = self.group.leader == self.new_id
        return response

"""The classic groups of a shard: live groups, requests and timers."""

from collections.abc import Callable, Hashable, Iterator, Sequence

from moldau.machines.decision import Decision, Ticket, respond
from moldau.machines.groups.classic.group import ClassicGroup, Phase
from moldau.machines.groups.classic.join import JoinAttempt
from moldau.machines.groups.classic.leave import arm_next_session_timer, handle_session_timeout, leave
from moldau.machines.groups.classic.rebalance import fail_waiting, handle_join_timeout, prepare
from moldau.machines.groups.classic.sync import handle_sync_timeout, sync
from moldau.machines.groups.classic.timers import JoinDue, SessionsDue, SyncDue
from moldau.machines.groups.draft import Caller, Draft
from moldau.machines.groups.ids import member_id_from
from moldau.machines.groups.records import Record, group_record
from moldau.machines.groups.state import GroupsState
from moldau.model.errors import ErrorCode, IllegalGeneration, RebalanceInProgress, UnknownMemberId
from moldau.wire import messages

_KEEPALIVE: Decision[Record, None] = respond(None)


class ClassicGroups:
    """Soft state: a group is live while it has members or pending ones."""

    def __init__(self, state: GroupsState) -> None:
        self._state = state
        self.live: dict[str, ClassicGroup] = {}

    def group(self, group_id: str) -> ClassicGroup | None:
        """Return the group, live or empty; None if unknown."""
        group = self.live.get(group_id)
        if group is not None:
            return group
        stored = self._state.classic.get(group_id)
        if stored is not None:
            return ClassicGroup.from_record(group_id, stored, 0.0)
        return ClassicGroup(group_id) if group_id in self._state.offsets else None

    def group_ids(self) -> Iterator[str]:
        """Yield every classic group once; a group may consist of offsets only."""
        yield from self.live
        yield from (each for each in self._state.classic if each not in self.live)
        known = self._state.classic.keys() | self.live.keys()
        yield from (each for each in self._state.offsets if each not in known)

    # Requests

    def join(
        self, draft: Draft, request: messages.JoinGroupRequest, caller: Caller, ticket: Ticket, randomness: bytes
    ) -> None:
        """JoinGroup: without a member id it may create a group; a member id must be known."""
        group = self.group(request.group_id)
        if group is None:
            if request.member_id:
                error, member_id = ErrorCode.UNKNOWN_MEMBER_ID, request.member_id
                draft.respond(ticket, messages.JoinGroupResponse(error_code=error, member_id=member_id))
                return
            group = ClassicGroup(request.group_id)
        self.live[request.group_id] = group
        new_id = member_id_from(request.group_instance_id or caller.client_id, randomness)
        JoinAttempt(group, draft, request, caller, ticket, new_id).decide()
        self._discard_if_empty(group, draft)

    def sync(self, draft: Draft, request: messages.SyncGroupRequest, ticket: Ticket) -> None:
        """SyncGroup: the leader sends the assignment, the others fetch it."""
        group = self.live.get(request.group_id)
        if group is None:
            draft.respond(ticket, messages.SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
        else:
            sync(group, draft, request, ticket)

    def heartbeat(self, request: messages.HeartbeatRequest, now_ms: float) -> Decision[Record, None]:
        """Extend the session, nothing else: this is the most frequent request."""
        group = self.live.get(request.group_id)
        if group is None:
            raise UnknownMemberId("The group has no members.")
        member = group.members.get(request.member_id)
        if member is None or request.group_instance_id is not None:
            member = group.check_member(request.member_id, request.group_instance_id)
        if request.generation_id != group.generation:
            raise IllegalGeneration(f"The group is in generation {group.generation}.")
        member.deadline_ms = now_ms + member.session_timeout_ms
        if group.phase is Phase.PREPARING:
            raise RebalanceInProgress("The group is rebalancing; rejoin.")
        return _KEEPALIVE

    def leave(
        self, draft: Draft, group_id: str, identities: Sequence[messages.LeaveGroupRequest.MemberIdentity]
    ) -> list[ErrorCode]:
        """LeaveGroup: returns the error of each."""
        group = self.group(group_id)
        if group is None:
            return [ErrorCode.UNKNOWN_MEMBER_ID] * len(identities)
        errors = leave(group, draft, identities)
        self._discard_if_empty(group, draft)
        return errors

    # Timers

    def elected(self, draft: Draft) -> None:
        """Restart every session: the last heartbeat times are lost."""
        for group_id, stored in self._state.classic.items():
            if stored.members:
                group = self.live[group_id] = ClassicGroup.from_record(group_id, stored, draft.now.ms)
                if len(group.members) > draft.settings.group_max_size:
                    prepare(group, draft)
                arm_next_session_timer(group, draft)

    def timed_out(self, draft: Draft, event: Hashable) -> bool:
        """Handle the event if it belongs to a classic group; return whether it does."""
        match event:
            case SessionsDue(group_id):
                self._handle_timeout(draft, group_id, handle_session_timeout)
            case JoinDue(group_id):
                self._handle_timeout(draft, group_id, handle_join_timeout)
            case SyncDue(group_id):
                self._handle_timeout(draft, group_id, handle_sync_timeout)
            case _:
                return False
        return True

    def _handle_timeout(self, draft: Draft, group_id: str, decide: Callable[[ClassicGroup, Draft], None]) -> None:
        group = self.live.get(group_id)
        if group is not None:
            decide(group, draft)
            self._discard_if_empty(group, draft)

    def _discard_if_empty(self, group: ClassicGroup, draft: Draft) -> None:
        """Drop an empty group from memory; the log still has it."""
        if group.is_empty and self.live.pop(group.group_id, None) is not None:
            for timer in (SessionsDue, JoinDue, SyncDue):
                draft.cancel_timer(timer(group.group_id))

    # Migration

    def dissolve(self, draft: Draft, group_id: str, error: ErrorCode = ErrorCode.REBALANCE_IN_PROGRESS) -> None:
        """Remove a group that was deleted or upgraded: waiting requests fail. Writes no record."""
        group = self.live.pop(group_id, None)
        if group is None:
            return
        for member_id in group.members:
            fail_waiting(group, member_id, draft, error)
        for timer in (SessionsDue, JoinDue, SyncDue):
            draft.cancel_timer(timer(group_id))

    def add_downgraded(self, draft: Draft, group: ClassicGroup) -> None:
        """Take over a downgraded group as a stable classic one, and rebalance at once.

        Its members are only written at the end of that rebalance. If they were written now, a new coordinator would
        find a stable group, and the partitions of the last consumer would stay unassigned.
        """
        self.live[group.group_id] = group
        empty = ClassicGroup(group.group_id)
        empty.protocol_type, empty.generation = group.protocol_type, group.generation
        draft.records.append(group_record(group.group_id, empty.to_record(draft.now.wall_ms)))
        prepare(group, draft)
        arm_next_session_timer(group, draft)

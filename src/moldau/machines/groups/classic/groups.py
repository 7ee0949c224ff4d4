"""The classic groups of a shard: which of them live, and what their members ask."""

from collections.abc import Callable, Hashable, Iterator, Sequence

from moldau.machines.decision import Decision, Ticket, respond
from moldau.machines.groups.classic.group import ClassicGroup, Phase
from moldau.machines.groups.classic.join import Joining
from moldau.machines.groups.classic.leave import leave, sessions_are_due, watch_all
from moldau.machines.groups.classic.rebalance import join_is_due, prepare, refuse_waiting
from moldau.machines.groups.classic.sync import sync, sync_is_due
from moldau.machines.groups.classic.timers import JoinDue, SessionsDue, SyncDue
from moldau.machines.groups.draft import Asker, Draft
from moldau.machines.groups.ids import member_id_from
from moldau.machines.groups.records import Record, group_record
from moldau.machines.groups.state import GroupsState
from moldau.model.errors import ErrorCode, IllegalGeneration, RebalanceInProgress, UnknownMemberId
from moldau.wire import messages

_ALIVE: Decision[Record, None] = respond(None)


class ClassicGroups:
    """Soft state: a group is here while it has members, or somebody who is about to become one."""

    def __init__(self, state: GroupsState) -> None:
        self._state = state
        self.live: dict[str, ClassicGroup] = {}

    def group(self, group_id: str) -> ClassicGroup | None:
        """The group as it is, empty ones too; None where nobody has heard of it."""
        group = self.live.get(group_id)
        if group is not None:
            return group
        stored = self._state.classic.get(group_id)
        if stored is not None:
            return ClassicGroup.restored(group_id, stored, 0.0)
        return ClassicGroup(group_id) if group_id in self._state.offsets else None

    def group_ids(self) -> Iterator[str]:
        """Every classic group, once each; one that only has offsets is a group too."""
        yield from self.live
        yield from (each for each in self._state.classic if each not in self.live)
        known = self._state.classic.keys() | self.live.keys()
        yield from (each for each in self._state.offsets if each not in known)

    # Requests

    def join(
        self, draft: Draft, request: messages.JoinGroupRequest, asker: Asker, ticket: Ticket, randomness: bytes
    ) -> None:
        """JoinGroup: who comes without an id may begin a group; who has one must be known."""
        group = self.group(request.group_id)
        if group is None:
            if request.member_id:
                error, member_id = ErrorCode.UNKNOWN_MEMBER_ID, request.member_id
                draft.answer(ticket, messages.JoinGroupResponse(error_code=error, member_id=member_id))
                return
            group = ClassicGroup(request.group_id)
        self.live[request.group_id] = group
        new_id = member_id_from(request.group_instance_id or asker.client_id, randomness)
        Joining(group, draft, request, asker, ticket, new_id).decide()
        self._tidy(group, draft)

    def sync(self, draft: Draft, request: messages.SyncGroupRequest, ticket: Ticket) -> None:
        """SyncGroup: the leader brings the assignment, the others fetch it."""
        group = self.live.get(request.group_id)
        if group is None:
            draft.answer(ticket, messages.SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
        else:
            sync(group, draft, request, ticket)

    def heartbeat(self, request: messages.HeartbeatRequest, now_ms: float) -> Decision[Record, None]:
        """A sign of life moves a deadline, and nothing else: this is the most frequent request of all."""
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
            raise RebalanceInProgress("The group is rebalancing: join again.")
        return _ALIVE

    def leave(
        self, draft: Draft, group_id: str, identities: Sequence[messages.LeaveGroupRequest.MemberIdentity]
    ) -> list[ErrorCode]:
        """LeaveGroup: what became of each of them."""
        group = self.group(group_id)
        if group is None:
            return [ErrorCode.UNKNOWN_MEMBER_ID] * len(identities)
        errors = leave(group, draft, identities)
        self._tidy(group, draft)
        return errors

    # Time

    def elected(self, draft: Draft) -> None:
        """Begin every session anew, for nobody knows how long ago a member was heard of."""
        for group_id, stored in self._state.classic.items():
            if stored.members:
                group = self.live[group_id] = ClassicGroup.restored(group_id, stored, draft.now.ms)
                if len(group.members) > draft.settings.group_max_size:
                    prepare(group, draft)
                watch_all(group, draft)

    def timed_out(self, draft: Draft, event: Hashable) -> bool:
        """Whether the event was one of a classic group's; then what follows from it is decided."""
        match event:
            case SessionsDue(group_id):
                self._when_due(draft, group_id, sessions_are_due)
            case JoinDue(group_id):
                self._when_due(draft, group_id, join_is_due)
            case SyncDue(group_id):
                self._when_due(draft, group_id, sync_is_due)
            case _:
                return False
        return True

    def _when_due(self, draft: Draft, group_id: str, decide: Callable[[ClassicGroup, Draft], None]) -> None:
        group = self.live.get(group_id)
        if group is not None:
            decide(group, draft)
            self._tidy(group, draft)

    def _tidy(self, group: ClassicGroup, draft: Draft) -> None:
        """A group that is empty lives in the log alone."""
        if group.is_empty and self.live.pop(group.group_id, None) is not None:
            for timer in (SessionsDue, JoinDue, SyncDue):
                draft.cancel_timer(timer(group.group_id))

    # From one protocol to the other

    def dissolve(self, draft: Draft, group_id: str, error: ErrorCode = ErrorCode.REBALANCE_IN_PROGRESS) -> None:
        """The group is no longer a classic one, or no longer at all: whoever waits is told so. No record is written."""
        group = self.live.pop(group_id, None)
        if group is None:
            return
        for member_id in group.members:
            refuse_waiting(group, member_id, draft, error)
        for timer in (SessionsDue, JoinDue, SyncDue):
            draft.cancel_timer(timer(group_id))

    def adopt(self, draft: Draft, group: ClassicGroup) -> None:
        """A group that spoke another protocol is a stable classic one from now on, and rebalances at once.

        Its members are written down when that rebalance ends. Were they there before, whoever takes over meanwhile
        would find them stable, and what the last consumer left would be read by nobody.
        """
        self.live[group.group_id] = group
        nobody = ClassicGroup(group.group_id)
        nobody.protocol_type, nobody.generation = group.protocol_type, group.generation
        draft.records.append(group_record(group.group_id, nobody.stored(draft.now.wall_ms)))
        prepare(group, draft)
        watch_all(group, draft)

"""Adding, removing and updating voters (KIP-853): one at a time, and each rests on a committed one."""

from dataclasses import replace
from math import inf

from moldau.machines.raft.effects import AppendVoters, Ticket
from moldau.machines.raft.events import (
    AddVoterRequested,
    RemoveVoterRequested,
    UpdateVoterRequested,
    WritingDownRequested,
)
from moldau.machines.raft.leader_state import Leader, PendingChange
from moldau.machines.raft.quorum import Quorum
from moldau.machines.raft.quorum_description import NEVER_MS
from moldau.machines.raft.voters import NO_DIRECTORY, Voter, VoterSet
from moldau.model.errors import ErrorCode

KRAFT_VERSION = 1
"""The version in which voters are written down, and may change."""
KRAFT_VERSION_FEATURE = "kraft.version"

Refusal = tuple[ErrorCode, str]


class VoterChanges:
    """The leader's part in a change of voters."""

    def __init__(self, quorum: Quorum) -> None:
        self._quorum = quorum

    @property
    def deadline_ms(self) -> float:
        pending = self._pending
        return inf if pending is None else pending.deadline_ms

    def add(self, event: AddVoterRequested, now_ms: float) -> None:
        refusal = self._obstacle() or _flaw(event.voter) or self._duplicate(event.voter)
        if refusal is not None:
            self._quorum.answer_change(event.ticket, *refusal)
            return
        deadline_ms = now_ms + event.timeout_ms
        self._lead().pending = PendingChange(
            event.ticket, now_ms, deadline_ms, event.is_answered_when_committed, newcomer=event.voter
        )
        self.poll(now_ms)

    def remove(self, event: RemoveVoterRequested, now_ms: float) -> None:
        voters = self._quorum.voters
        refusal = self._obstacle()
        if refusal is None and all(voter.key != event.voter for voter in voters):
            refusal = ErrorCode.VOTER_NOT_FOUND, f"{event.voter} is none of the voters {_named(voters)}."
        if refusal is None and len(voters) == 1:
            refusal = ErrorCode.INVALID_REQUEST, f"{event.voter} is the only voter; somebody has to lead."
        if refusal is not None:
            self._quorum.answer_change(event.ticket, *refusal)
            return
        self._lead().pending = PendingChange(event.ticket, now_ms, now_ms + event.timeout_ms, True)
        self._append(voters.without(event.voter))

    def update(self, event: UpdateVoterRequested) -> None:
        """Where a voter is reached. It is answered at once: the voter asks again, should the change be lost."""
        voters = self._quorum.voters
        refusal = self._wrong_epoch(event.epoch) or self._obstacle() or _flaw(event.voter)
        known = next((voter for voter in voters if voter.key == event.voter.key), None)
        if refusal is None and known is None:
            refusal = ErrorCode.VOTER_NOT_FOUND, f"{event.voter.key} is none of the voters {_named(voters)}."
        if refusal is None and known != event.voter:
            self._append(voters.with_voter(event.voter))
        self._quorum.answer_change(event.ticket, *(refusal or (ErrorCode.NONE, "")))

    def write_down(self, event: WritingDownRequested, now_ms: float) -> None:
        """The voters stay who they are. Each is known by its disk from here on, as far as all have said theirs."""
        quorum = self._quorum
        refusal = self._not_ready()
        if refusal is None and quorum.history.is_dynamic:
            quorum.answer_change(event.ticket, ErrorCode.NONE)
            return
        voters = VoterSet() if refusal is not None else VoterSet.of(map(self._with_disk, quorum.voters))
        refusal = refusal or next((flaw for voter in voters if (flaw := _flaw(voter))), None)
        if refusal is not None or event.is_only_checked:
            quorum.answer_change(event.ticket, *(refusal or (ErrorCode.NONE, "")))
            return
        deadline_ms = now_ms + event.timeout_ms
        self._lead().pending = PendingChange(event.ticket, now_ms, deadline_ms, True, is_writing_down=True)
        self._append(voters, are_first=True)

    def _with_disk(self, voter: Voter) -> Voter:
        quorum = self._quorum
        if voter.is_replica(quorum.me.key):
            return quorum.me
        return replace(voter, directory_id=self._lead().directory_of(voter))

    # What becomes of a change

    def poll(self, now_ms: float) -> None:
        """Go on with the newcomer that has caught up; give up what took too long."""
        pending = self._pending
        if pending is None:
            return
        if pending.newcomer is not None and self._has_caught_up(pending.newcomer, pending.since_ms, now_ms):
            voters, pending.newcomer = self._quorum.voters.with_voter(pending.newcomer), None
            self._append(voters)
            if not pending.is_answered_when_committed:
                self._finish(pending.ticket, ErrorCode.NONE)
        elif pending.deadline_ms <= now_ms:
            if pending.newcomer is not None:
                why = f"{pending.newcomer.key} does not run, or has not caught up with the leader's log."
            else:
                why = "The change is in the log, but the new voters have not committed it yet."
            self._finish(pending.ticket, ErrorCode.REQUEST_TIMED_OUT, why)

    def appended(self, offset: int) -> None:
        self._lead().is_append_due = False
        pending = self._pending
        if pending is not None and pending.newcomer is None and pending.offset is None:
            pending.offset = offset
            if pending.is_writing_down:
                self._lead().rename(self._quorum.voters)

    def committed(self) -> None:
        pending = self._pending
        if pending is not None and pending.offset is not None and pending.offset < self._quorum.high_watermark:
            self._finish(pending.ticket, ErrorCode.NONE)

    def _append(self, voters: VoterSet, *, are_first: bool = False) -> None:
        # On a full disk it takes a while, and others may ask meanwhile: they must not begin with the old voters.
        self._lead().is_append_due = True
        self._quorum.effects.append(AppendVoters(self._quorum.epoch, voters, are_first))

    def _finish(self, ticket: Ticket, error: ErrorCode, message: str = "") -> None:
        self._lead().pending = None
        self._quorum.answer_change(ticket, error, message)

    # What stands against it

    def _obstacle(self) -> Refusal | None:
        quorum = self._quorum
        refusal = self._not_ready()
        if refusal is not None:
            return refusal
        if not quorum.history.is_dynamic:
            return ErrorCode.UNSUPPORTED_VERSION, "The voters are fixed by controller.quorum.voters (kraft.version 0)."
        if quorum.history.offset >= quorum.high_watermark:
            return ErrorCode.REQUEST_TIMED_OUT, "The last change of the voters is not committed yet."
        return None

    def _not_ready(self) -> Refusal | None:
        quorum = self._quorum
        role = quorum.role
        if not isinstance(role, Leader):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, "This node does not lead the quorum."
        if role.pending is not None or role.is_append_due:
            return ErrorCode.REQUEST_TIMED_OUT, "Another change of the voters is under way."
        if quorum.high_watermark <= role.start_offset:
            return ErrorCode.REQUEST_TIMED_OUT, "The leader has not committed anything in its epoch yet."
        return None

    def _wrong_epoch(self, epoch: int) -> Refusal | None:
        quorum = self._quorum
        if epoch < quorum.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH, f"The epoch is {quorum.epoch} by now."
        return (ErrorCode.UNKNOWN_LEADER_EPOCH, f"The epoch is {quorum.epoch} here.") if epoch > quorum.epoch else None

    def _duplicate(self, newcomer: Voter) -> Refusal | None:
        known = self._quorum.voters.get(newcomer.node_id)
        if known is None:
            return None
        return ErrorCode.DUPLICATE_VOTER, f"Node {newcomer.node_id} votes already, as {known.key}; remove it first."

    def _has_caught_up(self, newcomer: Voter, since_ms: float, now_ms: float) -> bool:
        """It is heard from after it was proposed: one that died a moment ago would be given the vote of a dead disk."""
        progress = self._lead().progress.get(newcomer.key)
        if progress is None or progress.last_caught_up_ms == NEVER_MS:
            return False
        is_heard = progress.last_fetch_ms >= since_ms
        return is_heard and progress.last_caught_up_ms > now_ms - self._quorum.settings.fetch_timeout_ms

    @property
    def _pending(self) -> PendingChange | None:
        role = self._quorum.role
        return role.pending if isinstance(role, Leader) else None

    def _lead(self) -> Leader:
        role = self._quorum.role
        assert isinstance(role, Leader)
        return role


def _flaw(voter: Voter) -> Refusal | None:
    if voter.node_id < 0 or voter.directory_id == NO_DIRECTORY:
        return ErrorCode.INVALID_REQUEST, "A voter has a node id and the id of its directory."
    if not voter.endpoints:
        return ErrorCode.INVALID_REQUEST, "A voter says where its controller listener is reached."
    if not voter.kraft_version_min <= KRAFT_VERSION <= voter.kraft_version_max:
        return ErrorCode.INVALID_REQUEST, f"A voter supports kraft.version {KRAFT_VERSION}."
    return None


def _named(voters: VoterSet) -> str:
    return ", ".join(str(voter.key) for voter in voters)

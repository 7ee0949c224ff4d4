"""Adding, removing and updating voters (KIP-853).

One change at a time: a change is only accepted after the previous one is committed and after the leader has committed a
record in its own epoch. Otherwise two voter sets without a common majority could both be in effect. A new voter first
fetches as an observer until it is caught up (`PendingChange.new_voter`); then the new set is appended and takes effect
immediately, committed or not; the response is sent once it is committed, by a majority of the new set.
"""

from dataclasses import replace
from math import inf

from moldau.machines.raft.effects import AppendVoters, Ticket
from moldau.machines.raft.events import (
    AddVoterRequested,
    KRaftUpgradeRequested,
    RemoveVoterRequested,
    UpdateVoterRequested,
)
from moldau.machines.raft.leader_state import Leader, PendingChange
from moldau.machines.raft.quorum import Quorum
from moldau.machines.raft.quorum_description import NEVER_MS
from moldau.machines.raft.voters import Voter, VoterSet
from moldau.model.errors import ErrorCode
from moldau.model.ids import NO_DIRECTORY
from moldau.model.protocol import KRAFT_VERSION

"""The version since which the voter set is in the log and can change."""
KRAFT_VERSION_FEATURE = "kraft.version"

Rejection = tuple[ErrorCode, str]


class VoterChanges:
    """The leader's part in changing the voter set."""

    def __init__(self, quorum: Quorum) -> None:
        self._quorum = quorum

    @property
    def deadline_ms(self) -> float:
        pending = self._pending
        return inf if pending is None else pending.deadline_ms

    def add(self, event: AddVoterRequested, now_ms: float) -> None:
        rejection = self._check_change_allowed() or _validate_voter(event.voter) or self._check_duplicate(event.voter)
        if rejection is not None:
            self._quorum.respond_to_change(event.ticket, *rejection)
            return
        deadline_ms = now_ms + event.timeout_ms
        self._leader_state().pending = PendingChange(
            event.ticket, now_ms, deadline_ms, event.ack_when_committed, new_voter=event.voter
        )
        self.poll(now_ms)

    def remove(self, event: RemoveVoterRequested, now_ms: float) -> None:
        voters = self._quorum.voters
        rejection = self._check_change_allowed()
        if rejection is None and all(voter.key != event.voter for voter in voters):
            rejection = ErrorCode.VOTER_NOT_FOUND, f"{event.voter} is not in the voter set {_format_keys(voters)}."
        if rejection is None and len(voters) == 1:
            rejection = (
                ErrorCode.INVALID_REQUEST,
                f"{event.voter} is the only voter; add another one before removing it.",
            )
        if rejection is not None:
            self._quorum.respond_to_change(event.ticket, *rejection)
            return
        self._leader_state().pending = PendingChange(event.ticket, now_ms, now_ms + event.timeout_ms, True)
        self._append(voters.without(event.voter))

    def update(self, event: UpdateVoterRequested) -> None:
        """Update a voter's endpoints. Responds at once: the voter retries if the change gets lost."""
        voters = self._quorum.voters
        rejection = self._check_epoch(event.epoch) or self._check_change_allowed() or _validate_voter(event.voter)
        known = next((voter for voter in voters if voter.key == event.voter.key), None)
        if rejection is None and known is None:
            rejection = ErrorCode.VOTER_NOT_FOUND, f"{event.voter.key} is not in the voter set {_format_keys(voters)}."
        if rejection is None and known != event.voter:
            self._append(voters.with_voter(event.voter))
        self._quorum.respond_to_change(event.ticket, *(rejection or (ErrorCode.NONE, "")))

    def upgrade_kraft_version(self, event: KRaftUpgradeRequested, now_ms: float) -> None:
        """Append the static voter set with the directory id of each voter, as known from its fetches."""
        quorum = self._quorum
        rejection = self._check_leader_ready()
        if rejection is None and quorum.history.is_dynamic:
            quorum.respond_to_change(event.ticket, ErrorCode.NONE)
            return
        voters = VoterSet() if rejection is not None else VoterSet.of(map(self._with_directory_id, quorum.voters))
        rejection = rejection or next(
            (rejection_of_voter for voter in voters if (rejection_of_voter := _validate_voter(voter))), None
        )
        if rejection is not None or event.is_validate_only:
            quorum.respond_to_change(event.ticket, *(rejection or (ErrorCode.NONE, "")))
            return
        deadline_ms = now_ms + event.timeout_ms
        self._leader_state().pending = PendingChange(event.ticket, now_ms, deadline_ms, True, is_kraft_upgrade=True)
        self._append(voters, are_first=True)

    def _with_directory_id(self, voter: Voter) -> Voter:
        quorum = self._quorum
        if voter.is_replica(quorum.me.key):
            return quorum.me
        return replace(voter, directory_id=self._leader_state().directory_of(voter))

    # Progress of a change

    def poll(self, now_ms: float) -> None:
        """Append the new voter once it has caught up; time out an expired change."""
        pending = self._pending
        if pending is None:
            return
        if pending.new_voter is not None and self._has_caught_up(pending.new_voter, pending.since_ms, now_ms):
            voters, pending.new_voter = self._quorum.voters.with_voter(pending.new_voter), None
            self._append(voters)
            if not pending.ack_when_committed:
                self._finish(pending.ticket, ErrorCode.NONE)
        elif pending.deadline_ms <= now_ms:
            if pending.new_voter is not None:
                why = f"{pending.new_voter.key} is not running or has not caught up with the leader's log."
            else:
                why = "The change is in the log, but the new voters have not committed it yet."
            self._finish(pending.ticket, ErrorCode.REQUEST_TIMED_OUT, why)

    def handle_appended(self, offset: int) -> None:
        self._leader_state().is_append_due = False
        pending = self._pending
        if pending is not None and pending.new_voter is None and pending.offset is None:
            pending.offset = offset
            if pending.is_kraft_upgrade:
                self._leader_state().add_directory_ids(self._quorum.voters)

    def handle_committed(self) -> None:
        pending = self._pending
        if pending is not None and pending.offset is not None and pending.offset < self._quorum.high_watermark:
            self._finish(pending.ticket, ErrorCode.NONE)

    def _append(self, voters: VoterSet, *, are_first: bool = False) -> None:
        # The append may take long (a full disk); a change requested meanwhile must not build on the old set.
        self._leader_state().is_append_due = True
        self._quorum.effects.append(AppendVoters(self._quorum.epoch, voters, are_first))

    def _finish(self, ticket: Ticket, error: ErrorCode, message: str = "") -> None:
        self._leader_state().pending = None
        self._quorum.respond_to_change(ticket, error, message)

    # Checks

    def _check_change_allowed(self) -> Rejection | None:
        quorum = self._quorum
        rejection = self._check_leader_ready()
        if rejection is not None:
            return rejection
        if not quorum.history.is_dynamic:
            return ErrorCode.UNSUPPORTED_VERSION, "The voter set is static: controller.quorum.voters (kraft.version 0)."
        if quorum.history.offset >= quorum.high_watermark:
            return ErrorCode.REQUEST_TIMED_OUT, "The previous voter change is not committed yet."
        return None

    def _check_leader_ready(self) -> Rejection | None:
        quorum = self._quorum
        role = quorum.role
        if not isinstance(role, Leader):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, "This node does not lead the quorum."
        if role.pending is not None or role.is_append_due:
            return ErrorCode.REQUEST_TIMED_OUT, "Another voter change is in progress."
        if quorum.high_watermark <= role.start_offset:
            return ErrorCode.REQUEST_TIMED_OUT, "The leader has not committed a record in its epoch yet."
        return None

    def _check_epoch(self, epoch: int) -> Rejection | None:
        quorum = self._quorum
        if epoch < quorum.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH, f"The current epoch is {quorum.epoch}."
        return (
            (ErrorCode.UNKNOWN_LEADER_EPOCH, f"The current epoch is {quorum.epoch}.") if epoch > quorum.epoch else None
        )

    def _check_duplicate(self, new_voter: Voter) -> Rejection | None:
        known = self._quorum.voters.get(new_voter.node_id)
        if known is None:
            return None
        return ErrorCode.DUPLICATE_VOTER, f"Node {new_voter.node_id} is already a voter ({known.key}); remove it first."

    def _has_caught_up(self, new_voter: Voter, since_ms: float, now_ms: float) -> bool:
        """Require a fetch since the request: a replica that just died must not become a voter."""
        progress = self._leader_state().progress.get(new_voter.key)
        if progress is None or progress.last_caught_up_ms == NEVER_MS:
            return False
        has_fetched_since = progress.last_fetch_ms >= since_ms
        return has_fetched_since and progress.last_caught_up_ms > now_ms - self._quorum.settings.fetch_timeout_ms

    @property
    def _pending(self) -> PendingChange | None:
        role = self._quorum.role
        return role.pending if isinstance(role, Leader) else None

    def _leader_state(self) -> Leader:
        role = self._quorum.role
        assert isinstance(role, Leader)
        return role


def _validate_voter(voter: Voter) -> Rejection | None:
    if voter.node_id < 0 or voter.directory_id == NO_DIRECTORY:
        return ErrorCode.INVALID_REQUEST, "A voter needs a node id and a directory id."
    if not voter.endpoints:
        return ErrorCode.INVALID_REQUEST, "A voter needs the endpoint of its controller listener."
    if not voter.kraft_version_min <= KRAFT_VERSION <= voter.kraft_version_max:
        return ErrorCode.INVALID_REQUEST, f"The voter does not support kraft.version {KRAFT_VERSION}."
    return None


def _format_keys(voters: VoterSet) -> str:
    return ", ".join(str(voter.key) for voter in voters)

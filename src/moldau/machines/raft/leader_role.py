"""Leader role: serve fetches, advance the high watermark, send BeginQuorumEpoch, resign without a majority.

A leader starts its epoch with a LeaderChange record. Followers pull: the offset of a fetch acknowledges everything
below it as synced on that replica. The high watermark is the highest offset that a majority of the voters (the leader
counts its own synced offset) has acknowledged, but it only moves once that offset is above the leader's own
LeaderChange record; see `advance`.

Two timers run per leader. A voter that has not fetched for half the fetch timeout gets a BeginQuorumEpoch, as it may
not know the leader (`begin_quorum_due_ms`). And the leader resigns when a majority has not fetched for
CHECK_QUORUM_FACTOR fetch timeouts (check quorum): behind a partition it must not accept writes that cannot commit.
"""

from math import inf

from moldau.machines.raft.effects import (
    AppendLeaderChange,
    BecomeLeader,
    RespondToFetch,
    RespondToFetchSnapshot,
    SendBeginQuorum,
    ServeFetch,
    ServeSnapshot,
)
from moldau.machines.raft.events import FetchRequested, FetchSnapshotRequested
from moldau.machines.raft.leader_state import Leader
from moldau.machines.raft.log_view import Diverged, OffsetAndEpoch, SnapshotRequired, compare
from moldau.machines.raft.quorum import Quorum
from moldau.machines.raft.settings import CHECK_QUORUM_FACTOR, FIRST_ELECTION_MS
from moldau.machines.raft.voter_changes import VoterChanges
from moldau.machines.raft.voters import BOOTSTRAP_OFFSET, ReplicaKey, VoterSet
from moldau.model.errors import ErrorCode
from moldau.model.ids import NO_EPOCH, NodeId


class LeaderRole:
    """Everything a node does as the leader of an epoch."""

    def __init__(self, quorum: Quorum, changes: VoterChanges) -> None:
        self._quorum = quorum
        self._changes = changes

    # Time

    @property
    def deadline_ms(self) -> float:
        role = self._quorum.role
        if not isinstance(role, Leader):
            return inf
        begin_due_ms = min(role.begin_quorum_due_ms.values(), default=inf)
        return min(begin_due_ms, self._quorum_lost_ms(role), self._changes.deadline_ms)

    def poll(self, now_ms: float) -> None:
        role = self._quorum.role
        if not isinstance(role, Leader):
            return
        if self._quorum_lost_ms(role) <= now_ms:
            self._quorum.resign(now_ms)
            return
        self._changes.poll(now_ms)
        self._send_begin_quorum(role, now_ms)

    def _quorum_lost_ms(self, role: Leader) -> float:
        return role.quorum_lost_ms(self._quorum.voters, self._quorum.settings.fetch_timeout_ms * CHECK_QUORUM_FACTOR)

    # Start of the epoch

    def begin(self, granting: tuple[NodeId, ...], now_ms: float) -> None:
        """Become the leader and append LeaderChange: committing that record commits everything before it."""
        quorum = self._quorum
        start_offset = quorum.log.end_offset
        role = quorum.role = Leader(quorum.me.key, start_offset, now_ms)
        quorum.leader_id, quorum.leader_endpoints = quorum.me.node_id, quorum.me.endpoints
        quorum.effects.append(
            AppendLeaderChange(quorum.epoch, quorum.me.node_id, quorum.voters, granting, self._voters_to_append())
        )
        quorum.effects.append(BecomeLeader(quorum.epoch, start_offset))
        role.begin_quorum_due_ms = {voter.node_id: now_ms for voter in role.others(quorum.voters)}
        self._send_begin_quorum(role, now_ms)

    def _voters_to_append(self) -> VoterSet | None:
        """Return the voter set to append with LeaderChange: the bootstrap set if the log does not have it yet, or the
        set with this node's new endpoints. Both keep the same voters, so neither depends on an uncommitted change. A
        leader that is being removed leads without a vote to complete its removal and must not add itself back."""
        quorum = self._quorum
        if not quorum.history.is_dynamic:
            return None
        voters = quorum.voters.with_voter(quorum.me) if quorum.is_voter else quorum.voters
        return voters if quorum.history.offset == BOOTSTRAP_OFFSET or voters != quorum.voters else None

    def _send_begin_quorum(self, role: Leader, now_ms: float) -> None:
        """Send BeginQuorumEpoch to voters that do not fetch: they may not know the leader."""
        quorum = self._quorum
        for voter in role.others(quorum.voters):
            if role.begin_quorum_due_ms.get(voter.node_id, inf) <= now_ms:
                role.begin_quorum_due_ms[voter.node_id] = now_ms + quorum.settings.fetch_timeout_ms / 2
                quorum.effects.append(
                    SendBeginQuorum(
                        to=voter, epoch=quorum.epoch, leader_id=quorum.me.node_id, endpoints=quorum.me.endpoints
                    )
                )

    def handle_begin_quorum_failure(self, request: SendBeginQuorum, now_ms: float) -> None:
        role = self._quorum.role
        node_id = request.to.node_id
        if isinstance(role, Leader) and request.epoch == self._quorum.epoch and node_id in role.begin_quorum_due_ms:
            role.begin_quorum_due_ms[node_id] = now_ms + FIRST_ELECTION_MS

    # Fetches

    def handle_fetch(self, event: FetchRequested, now_ms: float) -> None:
        quorum = self._quorum
        error = self._validate_fetch(event, now_ms)
        role = quorum.role
        if error is not ErrorCode.NONE or not isinstance(role, Leader):
            self._respond(event, error)
            return
        self._record_contact(role, event.replica, now_ms)
        relation = compare(quorum.log, event.offset, event.last_epoch)
        if isinstance(relation, Diverged):
            self._respond(event, ErrorCode.NONE, diverging=relation.end)
        elif isinstance(relation, SnapshotRequired):
            self._respond(event, ErrorCode.NONE, snapshot=relation.snapshot)
        else:
            self._record_fetch(role, event, now_ms)
            self._serve_records(event)

    def _serve_records(self, event: FetchRequested) -> None:
        quorum = self._quorum
        if isinstance(quorum.role, Leader):
            # A replica that does not send its high watermark would get a response at once, every time.
            known = event.high_watermark if event.high_watermark >= 0 else quorum.high_watermark
            quorum.effects.append(ServeFetch(ticket=event.ticket, offset=event.offset, high_watermark=known))
        else:  # this fetch committed the removal of this node
            self._respond(event, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def handle_fetch_snapshot(self, event: FetchSnapshotRequested, now_ms: float) -> None:
        quorum = self._quorum
        error = self._validate_epoch(event.epoch)
        role = quorum.role
        if error is not ErrorCode.NONE or not isinstance(role, Leader):
            leadership = quorum.leadership
            quorum.effects.append(RespondToFetchSnapshot(ticket=event.ticket, error=error, leadership=leadership))
            return
        self._record_contact(role, event.replica, now_ms)
        quorum.effects.append(ServeSnapshot(event.ticket, event.snapshot))

    def _validate_epoch(self, epoch: int) -> ErrorCode:
        quorum = self._quorum
        if NO_EPOCH < epoch < quorum.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if epoch > quorum.epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        return ErrorCode.NONE if isinstance(quorum.role, Leader) else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def _validate_fetch(self, event: FetchRequested, now_ms: float) -> ErrorCode:
        quorum = self._quorum
        if event.offset < 0 or event.last_epoch < 0 or NO_EPOCH < event.epoch < event.last_epoch:
            return ErrorCode.INVALID_REQUEST
        error = self._validate_epoch(event.epoch)
        is_voter = event.replica is not None and quorum.voters.includes(event.replica)
        if error is ErrorCode.UNKNOWN_LEADER_EPOCH and is_voter and isinstance(quorum.role, Leader):
            # A voter in a later epoch cannot return to this one; only a new election gets it back.
            quorum.become_unattached(event.epoch, now_ms)
        return error

    def _respond(
        self,
        event: FetchRequested,
        error: ErrorCode,
        diverging: OffsetAndEpoch | None = None,
        snapshot: OffsetAndEpoch | None = None,
    ) -> None:
        quorum = self._quorum
        quorum.effects.append(
            RespondToFetch(
                ticket=event.ticket,
                error=error,
                leadership=quorum.leadership,
                high_watermark=quorum.high_watermark,
                diverging=diverging,
                snapshot=snapshot,
            )
        )

    # Commit progress

    def _record_contact(self, role: Leader, replica: ReplicaKey | None, now_ms: float) -> None:
        """Note that a replica is alive, whether or not its log matches yet."""
        if replica is None:
            return
        voters = self._quorum.voters
        if replica not in role.progress:
            role.evict_observers(voters, now_ms)
        role.progress_of(replica, voters).last_contact_ms = now_ms
        if replica.node_id in role.begin_quorum_due_ms and voters.includes(replica):
            role.begin_quorum_due_ms[replica.node_id] = now_ms + self._quorum.settings.fetch_timeout_ms / 2

    def _record_fetch(self, role: Leader, event: FetchRequested, now_ms: float) -> None:
        """Record a fetch position. Only a replica in the current epoch counts: others may still truncate their log."""
        quorum = self._quorum
        if event.replica is None or event.epoch != quorum.epoch:
            return
        role.progress_of(event.replica, quorum.voters).fetched(event.offset, quorum.log.end_offset, now_ms)
        self.advance(now_ms)

    def advance(self, now_ms: float) -> None:
        """Advance the high watermark to the majority's offset, but only past a record of this epoch. An older record
        may be on a majority of disks and still be truncated by a later leader (Raft, section 5.4.2)."""
        quorum = self._quorum
        role = quorum.role
        if not isinstance(role, Leader):
            return
        end_offset = role.committed_end(quorum.voters, quorum.synced_offset)
        if end_offset > role.start_offset and quorum.advance(end_offset):
            self._changes.handle_committed()
            if quorum.history.offset < quorum.high_watermark and not quorum.is_voter:
                quorum.resign(now_ms)  # the voter set without this node is committed

    def handle_voters_changed(self, offset: int, now_ms: float) -> None:
        role = self._quorum.role
        if not isinstance(role, Leader):
            return
        known = role.begin_quorum_due_ms
        role.begin_quorum_due_ms = {
            voter.node_id: known.get(voter.node_id, now_ms) for voter in role.others(self._quorum.voters)
        }
        self._changes.handle_appended(offset)
        self.advance(now_ms)

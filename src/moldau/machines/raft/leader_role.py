"""The leader's part: answer fetches, count what is committed, tell who leads, and resign when nobody follows."""

from math import inf

from moldau.machines.raft.effects import (
    AnswerFetch,
    AnswerFetchSnapshot,
    AppendLeaderChange,
    BecomeLeader,
    SendBeginQuorum,
    ServeFetch,
    ServeSnapshot,
)
from moldau.machines.raft.events import FetchRequested, FetchSnapshotRequested
from moldau.machines.raft.leader_state import Leader
from moldau.machines.raft.log_view import Diverged, OffsetAndEpoch, Superseded, compare
from moldau.machines.raft.quorum import Quorum
from moldau.machines.raft.settings import CHECK_QUORUM_FACTOR, FIRST_ROUND_MS
from moldau.machines.raft.voter_changes import VoterChanges
from moldau.machines.raft.voters import BOOTSTRAP_OFFSET, ReplicaKey, VoterSet
from moldau.model.errors import ErrorCode
from moldau.model.ids import NO_EPOCH, NodeId


class Leading:
    """What a node does once it is elected."""

    def __init__(self, quorum: Quorum, changes: VoterChanges) -> None:
        self._quorum = quorum
        self._changes = changes

    # Time

    @property
    def deadline_ms(self) -> float:
        role = self._quorum.role
        if not isinstance(role, Leader):
            return inf
        told_ms = min(role.asked_ms.values(), default=inf)
        return min(told_ms, self._quorum_lost_ms(role), self._changes.deadline_ms)

    def poll(self, now_ms: float) -> None:
        role = self._quorum.role
        if not isinstance(role, Leader):
            return
        if self._quorum_lost_ms(role) <= now_ms:
            self._quorum.resign(now_ms)
            return
        self._changes.poll(now_ms)
        self._tell_voters(role, now_ms)

    def _quorum_lost_ms(self, role: Leader) -> float:
        return role.quorum_lost_ms(self._quorum.voters, self._quorum.settings.fetch_timeout_ms * CHECK_QUORUM_FACTOR)

    # Beginning

    def begin(self, granting: tuple[NodeId, ...], now_ms: float) -> None:
        """The epoch is ours. Its first record says so: with it, everything before it can be committed."""
        quorum = self._quorum
        start_offset = quorum.log.end_offset
        role = quorum.role = Leader(quorum.me.key, start_offset, now_ms)
        quorum.leader_id, quorum.leader_endpoints = quorum.me.node_id, quorum.me.endpoints
        quorum.effects.append(
            AppendLeaderChange(quorum.epoch, quorum.me.node_id, quorum.voters, granting, self._voters_to_write())
        )
        quorum.effects.append(BecomeLeader(quorum.epoch, start_offset))
        role.asked_ms = {voter.node_id: now_ms for voter in role.others(quorum.voters)}
        self._tell_voters(role, now_ms)

    def _voters_to_write(self) -> VoterSet | None:
        """The set that the cluster was born with is not in the log yet; and our own address may have changed. Either
        way they are the same voters, so this rests on nothing that is not committed. Who is being removed leads without
        a vote, to finish that, and must not put itself back."""
        quorum = self._quorum
        if not quorum.history.is_dynamic:
            return None
        voters = quorum.voters.with_voter(quorum.me) if quorum.is_voter else quorum.voters
        return voters if quorum.history.offset == BOOTSTRAP_OFFSET or voters != quorum.voters else None

    def _tell_voters(self, role: Leader, now_ms: float) -> None:
        """Those that do not fetch may not know who leads."""
        quorum = self._quorum
        for voter in role.others(quorum.voters):
            if role.asked_ms.get(voter.node_id, inf) <= now_ms:
                role.asked_ms[voter.node_id] = now_ms + quorum.settings.fetch_timeout_ms / 2
                quorum.effects.append(
                    SendBeginQuorum(
                        to=voter, epoch=quorum.epoch, leader_id=quorum.me.node_id, endpoints=quorum.me.endpoints
                    )
                )

    def not_told(self, request: SendBeginQuorum, now_ms: float) -> None:
        role = self._quorum.role
        node_id = request.to.node_id
        if isinstance(role, Leader) and request.epoch == self._quorum.epoch and node_id in role.asked_ms:
            role.asked_ms[node_id] = now_ms + FIRST_ROUND_MS

    # Fetches

    def fetch_requested(self, event: FetchRequested, now_ms: float) -> None:
        quorum = self._quorum
        error = self._fetch_objection(event, now_ms)
        role = quorum.role
        if error is not ErrorCode.NONE or not isinstance(role, Leader):
            self._answer(event, error)
            return
        self._heard(role, event.replica, now_ms)
        relation = compare(quorum.log, event.offset, event.last_epoch)
        if isinstance(relation, Diverged):
            self._answer(event, ErrorCode.NONE, diverging=relation.end)
        elif isinstance(relation, Superseded):
            self._answer(event, ErrorCode.NONE, snapshot=relation.snapshot)
        else:
            self._count(role, event, now_ms)
            self._serve(event)

    def _serve(self, event: FetchRequested) -> None:
        quorum = self._quorum
        if isinstance(quorum.role, Leader):
            # Whoever does not say what it knows would be answered at once, again and again.
            known = event.high_watermark if event.high_watermark >= 0 else quorum.high_watermark
            quorum.effects.append(ServeFetch(ticket=event.ticket, offset=event.offset, high_watermark=known))
        else:  # this very fetch committed that we vote no more
            self._answer(event, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def snapshot_requested(self, event: FetchSnapshotRequested, now_ms: float) -> None:
        quorum = self._quorum
        error = self._objection(event.epoch)
        role = quorum.role
        if error is not ErrorCode.NONE or not isinstance(role, Leader):
            leadership = quorum.leadership
            quorum.effects.append(AnswerFetchSnapshot(ticket=event.ticket, error=error, leadership=leadership))
            return
        self._heard(role, event.replica, now_ms)
        quorum.effects.append(ServeSnapshot(event.ticket, event.snapshot))

    def _objection(self, epoch: int) -> ErrorCode:
        quorum = self._quorum
        if NO_EPOCH < epoch < quorum.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if epoch > quorum.epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        return ErrorCode.NONE if isinstance(quorum.role, Leader) else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def _fetch_objection(self, event: FetchRequested, now_ms: float) -> ErrorCode:
        quorum = self._quorum
        if event.offset < 0 or event.last_epoch < 0 or NO_EPOCH < event.epoch < event.last_epoch:
            return ErrorCode.INVALID_REQUEST
        error = self._objection(event.epoch)
        is_voter = event.replica is not None and quorum.voters.includes(event.replica)
        if error is ErrorCode.UNKNOWN_LEADER_EPOCH and is_voter and isinstance(quorum.role, Leader):
            # A voter that has seen a later epoch cannot come back to ours; only a new election frees it.
            quorum.become_unattached(event.epoch, now_ms)
        return error

    def _answer(
        self,
        event: FetchRequested,
        error: ErrorCode,
        diverging: OffsetAndEpoch | None = None,
        snapshot: OffsetAndEpoch | None = None,
    ) -> None:
        quorum = self._quorum
        quorum.effects.append(
            AnswerFetch(
                ticket=event.ticket,
                error=error,
                leadership=quorum.leadership,
                high_watermark=quorum.high_watermark,
                diverging=diverging,
                snapshot=snapshot,
            )
        )

    # What is committed

    def _heard(self, role: Leader, replica: ReplicaKey | None, now_ms: float) -> None:
        """It follows, whether or not it has our records yet."""
        if replica is None:
            return
        voters = self._quorum.voters
        if replica not in role.progress:
            role.forget_observers(voters, now_ms)
        role.progress_of(replica, voters).last_heard_ms = now_ms
        if replica.node_id in role.asked_ms and voters.includes(replica):
            role.asked_ms[replica.node_id] = now_ms + self._quorum.settings.fetch_timeout_ms / 2

    def _count(self, role: Leader, event: FetchRequested, now_ms: float) -> None:
        """Only who says that it is in this epoch counts: others may yet cut off what they have."""
        quorum = self._quorum
        if event.replica is None or event.epoch != quorum.epoch:
            return
        role.progress_of(event.replica, quorum.voters).fetched(event.offset, quorum.log.end_offset, now_ms)
        self.advance(now_ms)

    def advance(self, now_ms: float) -> None:
        """The high watermark follows the majority, but only by way of a record of this epoch: an older record may be on
        a majority of disks and still be cut off by a later leader."""
        quorum = self._quorum
        role = quorum.role
        if not isinstance(role, Leader):
            return
        end_offset = role.committed_end(quorum.voters, quorum.synced_offset)
        if end_offset > role.start_offset and quorum.advance(end_offset):
            self._changes.committed()
            if quorum.history.offset < quorum.high_watermark and not quorum.is_voter:
                quorum.resign(now_ms)  # the voters without us have taken over what we had to finish

    def voters_changed(self, offset: int, now_ms: float) -> None:
        role = self._quorum.role
        if not isinstance(role, Leader):
            return
        known = role.asked_ms
        role.asked_ms = {voter.node_id: known.get(voter.node_id, now_ms) for voter in role.others(self._quorum.voters)}
        self._changes.appended(offset)
        self.advance(now_ms)

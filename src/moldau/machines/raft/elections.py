"""Leader election: pre-votes, votes, and the rules for granting them (KIP-595, KIP-996).

How an election runs. A follower whose fetch timeout expires becomes *prospective*: it sends pre-votes in its current
epoch, which change no state on the other voters. Only a majority of pre-votes makes it a *candidate*, which bumps the
epoch, votes for itself, persists that vote and sends real votes. A majority of real votes makes it the leader.

    Unattached/Follower --timeout--> Prospective --majority--> Candidate --majority--> Leader
                                        |  ^                       |
                                        +--+---- lost: back off ---+

Safety rests on two rules. A voter grants at most one vote per epoch, and the vote is on disk before the response leaves
(`PersistQuorumState` precedes `RespondToVote`). A voter grants its vote only to a candidate whose log is at least as
complete as its own, so every committed record is in the log of every possible leader.

Liveness rests on timing: election timeouts are randomized, lost rounds back off exponentially, and of two concurrent
prospective voters the one with the better log (then the lower node id) proceeds. A leader that resigns names its
preferred successors; each waits in proportion to its rank. A voter that knows the leader of this epoch to be down
(`leaderless_epoch`) ignores other voters that still name that leader; only a message of the leader itself clears it.
"""

from math import inf

from moldau.machines.raft.effects import Leadership, RespondToQuorumEpoch, RespondToVote, SendVote
from moldau.machines.raft.events import (
    BeginQuorumRequested,
    EndQuorumRequested,
    VoteRequested,
    VoteResponseReceived,
)
from moldau.machines.raft.leader_role import LeaderRole
from moldau.machines.raft.leader_state import Leader
from moldau.machines.raft.quorum import Quorum
from moldau.machines.raft.roles import Candidate, Follower, Prospective, Tally, Unattached
from moldau.machines.raft.settings import FIRST_ELECTION_MS
from moldau.machines.raft.voters import ReplicaKey
from moldau.model.errors import ErrorCode
from moldau.model.ids import NO_DIRECTORY, NO_NODE, NodeId

BACKOFF_DOUBLINGS_MAX = 16
BACKOFF_MS_MIN = 1.0


class Elections:
    """A voter's part in elections: starting them, counting votes, granting votes."""

    def __init__(self, quorum: Quorum, leader_role: LeaderRole) -> None:
        self._quorum = quorum
        self._leader_role = leader_role
        self._elections_lost = 0
        self.has_lost_election = False  # since the last poll; the known voter set may be outdated

    @property
    def deadline_ms(self) -> float:
        role = self._quorum.role
        return inf if isinstance(role, Leader) else role.deadline_ms

    def poll(self, now_ms: float) -> None:
        quorum = self._quorum
        role = quorum.role
        if isinstance(role, Follower) and role.has_fetched:
            self._elections_lost = 0
        if isinstance(role, Unattached) and role.deadline_ms == inf and quorum.is_electable:
            # The log made this node a voter after it lost its leader; no timer is running yet.
            role.deadline_ms = now_ms + quorum.random_election_timeout_ms()
        if isinstance(role, Leader) or role.deadline_ms > now_ms:
            return
        if not quorum.is_electable:
            quorum.become_unattached(quorum.epoch, now_ms)
            return
        if isinstance(role, Candidate) or (isinstance(role, Prospective) and role.tally is not None):
            self._record_loss()
        self.start_election(now_ms)

    # Becoming a candidate

    def start_election(self, now_ms: float) -> None:
        """Start a round of pre-votes. A single voter needs none and becomes a candidate at once."""
        quorum = self._quorum
        if not quorum.other_voters:
            self._become_candidate(now_ms)
            return
        quorum.role = Prospective(now_ms + quorum.random_election_timeout_ms(), self._own_vote())
        self._request_votes(is_pre_vote=True)

    def handle_peer_stopped(self, node_id: NodeId, now_ms: float) -> None:
        """A peer's process is down. If it is the leader, start an election without waiting for the fetch timeout."""
        quorum = self._quorum
        if not isinstance(quorum.role, Follower) or quorum.leader_id != node_id:
            return
        quorum.leaderless_epoch = quorum.epoch
        if quorum.is_electable:
            self.start_election(now_ms)
        else:
            quorum.become_unattached(quorum.epoch, now_ms)

    def handle_vote_response(self, event: VoteResponseReceived, now_ms: float) -> None:
        is_granted = event.is_granted and event.error is ErrorCode.NONE
        # A voter that grants a vote no longer trusts the leader it names. Following that leader would let two voters
        # that both suspect it keep each other from being elected.
        if not is_granted or event.leadership.epoch > self._quorum.epoch:
            self._quorum.observe_leader(event.leadership, now_ms, is_from_leader=False)
        self._record_vote(event.request, is_granted, now_ms)

    def handle_vote_failure(self, request: SendVote, now_ms: float) -> None:
        self._record_vote(request, False, now_ms)

    def _record_vote(self, request: SendVote, is_granted: bool, now_ms: float) -> None:
        quorum = self._quorum
        role = quorum.role
        if not isinstance(role, Candidate | Prospective) or request.epoch != quorum.epoch or role.tally is None:
            return
        if request.is_pre_vote is not isinstance(role, Prospective):
            return
        role.tally.votes[request.to.node_id] = is_granted
        if role.tally.is_won(quorum.voters):
            self._handle_majority(role, now_ms)
        elif role.tally.is_lost(quorum.voters):
            self._record_loss()
            quorum.role = Prospective(now_ms + self._backoff_ms(), None)

    def _handle_majority(self, role: Candidate | Prospective, now_ms: float) -> None:
        if isinstance(role, Prospective):
            self._become_candidate(now_ms)
        else:
            self._elections_lost = 0
            self._leader_role.begin(role.tally.granting(self._quorum.voters), now_ms)

    def _become_candidate(self, now_ms: float) -> None:
        """Start a new epoch with a vote for this node."""
        quorum = self._quorum
        quorum.epoch += 1
        quorum.voted, quorum.leader_id, quorum.leader_endpoints = quorum.me.key, NO_NODE, ()
        tally = self._own_vote()
        quorum.role = Candidate(now_ms + quorum.random_election_timeout_ms(), tally)
        if tally.is_won(quorum.voters):
            self._handle_majority(quorum.role, now_ms)
        else:
            self._request_votes(is_pre_vote=False)

    def _request_votes(self, *, is_pre_vote: bool) -> None:
        quorum = self._quorum
        for voter in quorum.other_voters:
            quorum.effects.append(
                SendVote(
                    to=voter,
                    epoch=quorum.epoch,
                    candidate=quorum.me.key,
                    last_offset=quorum.log.end_offset,
                    last_epoch=quorum.log.last_epoch,
                    is_pre_vote=is_pre_vote,
                )
            )

    def _own_vote(self) -> Tally:
        return Tally({self._quorum.me.node_id: True} if self._quorum.is_voter else {})

    def _record_loss(self) -> None:
        self._elections_lost = min(self._elections_lost + 1, BACKOFF_DOUBLINGS_MAX)
        self.has_lost_election = True

    def _backoff_ms(self) -> float:
        """Double the backoff per lost round, with jitter so that two rivals do not collide again."""
        settings = self._quorum.settings
        longest_ms = min(settings.retry_backoff_ms << self._elections_lost, settings.election_backoff_max_ms)
        return max(longest_ms * (1 + self._quorum.randomness()) / 2, BACKOFF_MS_MIN)

    # Granting votes

    def handle_vote(self, event: VoteRequested, now_ms: float) -> None:
        quorum = self._quorum
        error = self._validate_vote(event)
        if error is ErrorCode.NONE and event.epoch > quorum.epoch:
            quorum.become_unattached(event.epoch, now_ms)
        if error is ErrorCode.NONE and not self._is_addressed_to_me(event.voter):
            error = ErrorCode.INVALID_VOTER_KEY
        is_granted = error is ErrorCode.NONE and self._can_grant(event)
        if is_granted and event.is_pre_vote:
            self._step_back_for(event, now_ms)
        elif is_granted and quorum.voted is None:
            quorum.voted = event.candidate
            quorum.become_unattached(quorum.epoch, now_ms)
        quorum.effects.append(RespondToVote(event.ticket, error, quorum.leadership, is_granted))

    def _validate_vote(self, event: VoteRequested) -> ErrorCode:
        if event.candidate.node_id < 0 or event.last_offset < 0 or event.last_epoch < 0:
            return ErrorCode.INVALID_REQUEST
        # A candidate has just started its epoch, so no record can be of it.
        if event.last_epoch > event.epoch - (not event.is_pre_vote):
            return ErrorCode.INVALID_REQUEST
        return ErrorCode.FENCED_LEADER_EPOCH if event.epoch < self._quorum.epoch else ErrorCode.NONE

    def _is_addressed_to_me(self, key: ReplicaKey | None) -> bool:
        return key is None or key.matches(self._quorum.me.key)

    def _can_grant(self, event: VoteRequested) -> bool:
        quorum = self._quorum
        role = quorum.role
        if event.is_pre_vote:
            follows = isinstance(role, Follower) and role.has_fetched
            return self._is_log_complete(event) and not follows and not isinstance(role, Leader)
        if quorum.voted is not None:
            return _is_same_voter(quorum.voted, event.candidate)
        return quorum.leader_id == NO_NODE and self._is_log_complete(event)

    def _is_log_complete(self, event: VoteRequested) -> bool:
        """Reject a candidate that lacks records of this log: it might lack committed ones (Raft's election
        restriction)."""
        log = self._quorum.log
        return (event.last_epoch, event.last_offset) >= (log.last_epoch, log.end_offset)

    def _step_back_for(self, event: VoteRequested, now_ms: float) -> None:
        """Step back in favour of a concurrent prospective voter with the better log, or the lower id if the logs are
        equal. Otherwise both would become candidates and split the vote."""
        quorum = self._quorum
        log = quorum.log
        theirs = (event.last_epoch, event.last_offset, -event.candidate.node_id)
        role = quorum.role
        is_running = isinstance(role, Prospective) and role.tally is not None
        if is_running and theirs > (log.last_epoch, log.end_offset, -quorum.me.node_id):
            quorum.role = Prospective(now_ms + FIRST_ELECTION_MS + quorum.short_election_timeout_ms(), None)

    # Requests from leaders

    def handle_begin_quorum(self, event: BeginQuorumRequested, now_ms: float) -> None:
        """Handle BeginQuorumEpoch. The leader is valid even if the request addresses another voter key."""
        quorum = self._quorum
        leader = Leadership(event.leader_id, event.epoch, event.endpoints)
        error = self._validate_leader(leader)
        if error is ErrorCode.NONE:
            quorum.observe_leader(leader, now_ms, is_from_leader=True)
            if not self._is_addressed_to_me(event.voter):
                error = ErrorCode.INVALID_VOTER_KEY
        quorum.effects.append(RespondToQuorumEpoch(event.ticket, error, quorum.leadership))

    def handle_end_quorum(self, event: EndQuorumRequested, now_ms: float) -> None:
        """Handle EndQuorumEpoch: the leader resigned. Preferred successors start elections in the given order."""
        quorum = self._quorum
        error = self._validate_leader(Leadership(event.leader_id, event.epoch))
        if error is ErrorCode.NONE:
            self._resign_leader(event, now_ms)
        quorum.effects.append(RespondToQuorumEpoch(event.ticket, error, quorum.leadership))

    def _resign_leader(self, event: EndQuorumRequested, now_ms: float) -> None:
        quorum = self._quorum
        if event.epoch > quorum.epoch or isinstance(quorum.role, Follower | Unattached):
            rank = next((at for at, key in enumerate(event.successors) if key.matches(quorum.me.key)), None)
            wait_ms = None if rank is None else rank * (FIRST_ELECTION_MS + quorum.short_election_timeout_ms())
            quorum.become_unattached(event.epoch, now_ms, wait_ms)
            quorum.leader_id = event.leader_id
        quorum.leaderless_epoch = event.epoch

    def _validate_leader(self, leader: Leadership) -> ErrorCode:
        quorum = self._quorum
        if leader.epoch < quorum.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        is_someone_else = leader.leader_id >= 0 and leader.leader_id != quorum.me.node_id
        return ErrorCode.NONE if is_someone_else and quorum.is_consistent(leader) else ErrorCode.INVALID_REQUEST


def _is_same_voter(voted: ReplicaKey, candidate: ReplicaKey) -> bool:
    return voted == candidate or (voted.node_id == candidate.node_id and voted.directory_id == NO_DIRECTORY)

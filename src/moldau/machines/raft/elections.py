"""How a leader is found: pre-votes, votes, and what a voter grants (KIP-595, 996)."""

from math import inf

from moldau.machines.raft.effects import AnswerQuorum, AnswerVote, Leadership, SendVote
from moldau.machines.raft.events import (
    BeginQuorumRequested,
    EndQuorumRequested,
    VoteAnswered,
    VoteRequested,
)
from moldau.machines.raft.leader_role import Leading
from moldau.machines.raft.leader_state import Leader
from moldau.machines.raft.quorum import Quorum
from moldau.machines.raft.roles import Candidate, Follower, Prospective, Tally, Unattached
from moldau.machines.raft.settings import FIRST_ROUND_MS
from moldau.machines.raft.voters import NO_DIRECTORY, ReplicaKey
from moldau.model.errors import ErrorCode
from moldau.model.ids import NO_NODE, NodeId

BACKOFF_DOUBLINGS_MAX = 16
BACKOFF_MS_MIN = 1.0


class Elections:
    """A voter's part in elections."""

    def __init__(self, quorum: Quorum, leading: Leading) -> None:
        self._quorum = quorum
        self._leading = leading
        self._rounds_lost = 0
        self.has_lost_round = False  # since the last look: perhaps the voters that we know are history

    @property
    def deadline_ms(self) -> float:
        role = self._quorum.role
        return inf if isinstance(role, Leader) else role.deadline_ms

    def poll(self, now_ms: float) -> None:
        quorum = self._quorum
        role = quorum.role
        if isinstance(role, Follower) and role.has_fetched:
            self._rounds_lost = 0
        if isinstance(role, Unattached) and role.deadline_ms == inf and quorum.may_stand:
            # The log has made it a voter since it lost its leader: nobody else would wake it.
            role.deadline_ms = now_ms + quorum.election_wait_ms()
        if isinstance(role, Leader) or role.deadline_ms > now_ms:
            return
        if not quorum.may_stand:
            quorum.become_unattached(quorum.epoch, now_ms)
            return
        if isinstance(role, Candidate) or (isinstance(role, Prospective) and role.tally is not None):
            self._count_loss()
        self.begin_round(now_ms)

    # Standing for election

    def begin_round(self, now_ms: float) -> None:
        """Ask the others whether they would vote for us. A lone voter need not ask."""
        quorum = self._quorum
        if not quorum.other_voters:
            self._stand(now_ms)
            return
        quorum.role = Prospective(now_ms + quorum.election_wait_ms(), self._own_vote())
        self._ask_all(is_pre_vote=True)

    def vanished(self, node_id: NodeId, now_ms: float) -> None:
        """Its process is gone. If it led us, nobody has to wait for it any longer."""
        quorum = self._quorum
        if not isinstance(quorum.role, Follower) or quorum.leader_id != node_id:
            return
        quorum.dismissed_epoch = quorum.epoch
        if quorum.may_stand:
            self.begin_round(now_ms)
        else:
            quorum.become_unattached(quorum.epoch, now_ms)

    def answered(self, event: VoteAnswered, now_ms: float) -> None:
        is_granted = event.is_granted and event.error is ErrorCode.NONE
        # Whoever would vote for us doubts the leader that it names: two that doubt must not talk each other out of it.
        if not is_granted or event.leadership.epoch > self._quorum.epoch:
            self._quorum.learn(event.leadership, now_ms, is_own_word=False)
        self._count(event.request, is_granted, now_ms)

    def failed(self, request: SendVote, now_ms: float) -> None:
        self._count(request, False, now_ms)

    def _count(self, request: SendVote, is_granted: bool, now_ms: float) -> None:
        quorum = self._quorum
        role = quorum.role
        if not isinstance(role, Candidate | Prospective) or request.epoch != quorum.epoch or role.tally is None:
            return
        if request.is_pre_vote is not isinstance(role, Prospective):
            return
        role.tally.votes[request.to.node_id] = is_granted
        if role.tally.is_won(quorum.voters):
            self._win(role, now_ms)
        elif role.tally.is_lost(quorum.voters):
            self._count_loss()
            quorum.role = Prospective(now_ms + self._backoff_ms(), None)

    def _win(self, role: Candidate | Prospective, now_ms: float) -> None:
        if isinstance(role, Prospective):
            self._stand(now_ms)
        else:
            self._rounds_lost = 0
            self._leading.begin(role.tally.granting(self._quorum.voters), now_ms)

    def _stand(self, now_ms: float) -> None:
        """A new epoch, our own vote in it first of all."""
        quorum = self._quorum
        quorum.epoch += 1
        quorum.voted, quorum.leader_id, quorum.leader_endpoints = quorum.me.key, NO_NODE, ()
        tally = self._own_vote()
        quorum.role = Candidate(now_ms + quorum.election_wait_ms(), tally)
        if tally.is_won(quorum.voters):
            self._win(quorum.role, now_ms)
        else:
            self._ask_all(is_pre_vote=False)

    def _ask_all(self, *, is_pre_vote: bool) -> None:
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

    def _count_loss(self) -> None:
        self._rounds_lost = min(self._rounds_lost + 1, BACKOFF_DOUBLINGS_MAX)
        self.has_lost_round = True

    def _backoff_ms(self) -> float:
        """Twice as long after each round that was lost, and by chance not the same for two rivals."""
        settings = self._quorum.settings
        longest_ms = min(settings.retry_backoff_ms << self._rounds_lost, settings.election_backoff_max_ms)
        return max(longest_ms * (1 + self._quorum.randomness()) / 2, BACKOFF_MS_MIN)

    # Voting

    def requested(self, event: VoteRequested, now_ms: float) -> None:
        quorum = self._quorum
        error = self._objection(event)
        if error is ErrorCode.NONE and event.epoch > quorum.epoch:
            quorum.become_unattached(event.epoch, now_ms)
        if error is ErrorCode.NONE and not self._is_for_me(event.voter):
            error = ErrorCode.INVALID_VOTER_KEY
        is_granted = error is ErrorCode.NONE and self._is_worth_a_vote(event)
        if is_granted and event.is_pre_vote:
            self._yield_to(event, now_ms)
        elif is_granted and quorum.voted is None:
            quorum.voted = event.candidate
            quorum.become_unattached(quorum.epoch, now_ms)
        quorum.effects.append(AnswerVote(event.ticket, error, quorum.leadership, is_granted))

    def _objection(self, event: VoteRequested) -> ErrorCode:
        if event.candidate.node_id < 0 or event.last_offset < 0 or event.last_epoch < 0:
            return ErrorCode.INVALID_REQUEST
        if event.last_epoch > event.epoch - (not event.is_pre_vote):  # its own epoch is new, so no record is of it
            return ErrorCode.INVALID_REQUEST
        return ErrorCode.FENCED_LEADER_EPOCH if event.epoch < self._quorum.epoch else ErrorCode.NONE

    def _is_for_me(self, asked: ReplicaKey | None) -> bool:
        return asked is None or asked.names(self._quorum.me.key)

    def _is_worth_a_vote(self, event: VoteRequested) -> bool:
        quorum = self._quorum
        role = quorum.role
        if event.is_pre_vote:
            follows = isinstance(role, Follower) and role.has_fetched
            return self._is_log_complete(event) and not follows and not isinstance(role, Leader)
        if quorum.voted is not None:
            return _is_same(quorum.voted, event.candidate)
        return quorum.leader_id == NO_NODE and self._is_log_complete(event)

    def _is_log_complete(self, event: VoteRequested) -> bool:
        """Whoever lacks what we have might lack what is committed."""
        log = self._quorum.log
        return (event.last_epoch, event.last_offset) >= (log.last_epoch, log.end_offset)

    def _yield_to(self, event: VoteRequested, now_ms: float) -> None:
        """Of two that ask at once the one with the better log goes on, or the one with the lower id: else both would
        stand, and neither be elected."""
        quorum = self._quorum
        log = quorum.log
        theirs = (event.last_epoch, event.last_offset, -event.candidate.node_id)
        role = quorum.role
        is_asking = isinstance(role, Prospective) and role.tally is not None
        if is_asking and theirs > (log.last_epoch, log.end_offset, -quorum.me.node_id):
            quorum.role = Prospective(now_ms + FIRST_ROUND_MS + quorum.brief_wait_ms(), None)

    # What a leader says

    def begun(self, event: BeginQuorumRequested, now_ms: float) -> None:
        """Somebody leads. Believed even if it takes us for another voter: that it leads is true all the same."""
        quorum = self._quorum
        leader = Leadership(event.leader_id, event.epoch, event.endpoints)
        error = self._objection_to(leader)
        if error is ErrorCode.NONE:
            quorum.learn(leader, now_ms, is_own_word=True)
            if not self._is_for_me(event.voter):
                error = ErrorCode.INVALID_VOTER_KEY
        quorum.effects.append(AnswerQuorum(event.ticket, error, quorum.leadership))

    def ended(self, event: EndQuorumRequested, now_ms: float) -> None:
        """The leader leads no more. Its successors stand in the order that it wished."""
        quorum = self._quorum
        error = self._objection_to(Leadership(event.leader_id, event.epoch))
        if error is ErrorCode.NONE:
            self._end(event, now_ms)
        quorum.effects.append(AnswerQuorum(event.ticket, error, quorum.leadership))

    def _end(self, event: EndQuorumRequested, now_ms: float) -> None:
        quorum = self._quorum
        if event.epoch > quorum.epoch or isinstance(quorum.role, Follower | Unattached):
            rank = next((at for at, key in enumerate(event.successors) if key.names(quorum.me.key)), None)
            wait_ms = None if rank is None else rank * (FIRST_ROUND_MS + quorum.brief_wait_ms())
            quorum.become_unattached(event.epoch, now_ms, wait_ms)
            quorum.leader_id = event.leader_id
        quorum.dismissed_epoch = event.epoch

    def _objection_to(self, leader: Leadership) -> ErrorCode:
        quorum = self._quorum
        if leader.epoch < quorum.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        is_someone_else = leader.leader_id >= 0 and leader.leader_id != quorum.me.node_id
        return ErrorCode.NONE if is_someone_else and quorum.is_consistent(leader) else ErrorCode.INVALID_REQUEST


def _is_same(voted: ReplicaKey, candidate: ReplicaKey) -> bool:
    return voted == candidate or (voted.node_id == candidate.node_id and voted.directory_id == NO_DIRECTORY)

"""The state that all parts of the raft machine share, and the ways from one role to another."""

from collections.abc import Callable
from math import inf

from moldau.machines.raft.effects import (
    AdvanceHighWatermark,
    AnswerVoterChange,
    BecomeFollower,
    Effect,
    ElectionState,
    FailPendingAppends,
    FailWaitingFetches,
    Leadership,
    PersistQuorumState,
    SendEndQuorum,
)
from moldau.machines.raft.leader_state import Leader
from moldau.machines.raft.log_view import LogView
from moldau.machines.raft.roles import Follower, Resigned, Role, Unattached
from moldau.machines.raft.settings import FIRST_ROUND_MS, QuorumSettings
from moldau.machines.raft.voters import Endpoints, ReplicaKey, Voter, VoterHistory, VoterSet
from moldau.model.errors import ErrorCode
from moldau.model.ids import NO_EPOCH, NO_NODE


class Quorum:
    """What this node knows of its quorum. The parts of the machine change it; `effects` gathers what they want done."""

    def __init__(
        self,
        me: Voter,
        log: LogView,
        settings: QuorumSettings,
        randomness: Callable[[], float],
        static_voters: VoterSet,
    ) -> None:
        self.me = me
        self.log = log
        self.settings = settings
        self.randomness = randomness
        self.history = VoterHistory(static_voters)
        self.epoch = 0
        self.voted: ReplicaKey | None = None
        self.leader_id = NO_NODE  # of this epoch, also when it leads no more
        self.leader_endpoints: Endpoints = ()
        self.dismissed_epoch = NO_EPOCH  # its leader is known to be gone, whatever others still say
        self.role: Role = Unattached(inf)
        self.high_watermark = 0
        self.synced_offset = 0
        self.effects: list[Effect] = []
        self._persisted = ElectionState()
        self._announced_watermark = 0
        self._announced: Leadership | None = None

    # What is known

    @property
    def voters(self) -> VoterSet:
        return self.history.voters

    @property
    def is_voter(self) -> bool:
        return self.voters.includes(self.me.key)

    @property
    def may_stand(self) -> bool:
        """A voter may; and one that is being removed, until that is committed: if it led, and removed itself, nobody
        else may have a log that is complete enough. It does not count its own vote."""
        if self.is_voter:
            return True
        previous = self.history.previous
        is_open = self.history.offset >= self.high_watermark
        return is_open and previous is not None and previous.includes(self.me.key)

    @property
    def other_voters(self) -> list[Voter]:
        return [voter for voter in self.voters if voter.node_id != self.me.node_id]

    @property
    def leadership(self) -> Leadership:
        """Only who leads or follows knows a leader: all others have reason to doubt the one of this epoch."""
        if isinstance(self.role, Leader | Follower):
            return Leadership(self.leader_id, self.epoch, self.leader_endpoints)
        return Leadership(NO_NODE, self.epoch)

    def election_wait_ms(self) -> float:
        return self.settings.election_timeout_ms * (1 + self.randomness())

    def brief_wait_ms(self) -> float:
        """For a voter that knows that nobody leads: long enough for two of them not to stand at once. Who is being
        removed lets the voters try first: after a restart it does not know whether that was committed long ago."""
        return FIRST_ROUND_MS * self.randomness() if self.is_voter else self.election_wait_ms()

    # From role to role

    def become_unattached(self, epoch: int, now_ms: float, wait_ms: float | None = None) -> None:
        """Nobody leads that we know of. The leader of this very epoch stays known as one that may not be outvoted."""
        self._stop_leading(ErrorCode.FENCED_LEADER_EPOCH if epoch > self.epoch else ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._enter(epoch)
        wait_ms = self.election_wait_ms() if wait_ms is None else wait_ms
        self.role = Unattached(now_ms + wait_ms if self.may_stand else inf)

    def become_follower(self, leader: Leadership, now_ms: float) -> None:
        endpoints = leader.endpoints or self.voters.endpoints_of(leader.leader_id)
        if self.is_following(leader):
            self.leader_endpoints = endpoints or self.leader_endpoints
            return
        self._stop_leading(ErrorCode.FENCED_LEADER_EPOCH)
        self._enter(leader.epoch)
        self.leader_id, self.leader_endpoints = leader.leader_id, endpoints
        self.role = Follower(now_ms + self.settings.fetch_timeout_ms)

    def is_following(self, leader: Leadership) -> bool:
        return isinstance(self.role, Follower) and self.epoch == leader.epoch and self.leader_id == leader.leader_id

    def resign(self, now_ms: float) -> None:
        """Lead no more, and say so, to the best successor first."""
        if not isinstance(self.role, Leader):
            return
        voters, successors = self.role.others(self.voters), self.role.successors(self.voters)
        self._stop_leading(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.role = Resigned(now_ms + self.election_wait_ms())
        ranks = {key: rank for rank, key in enumerate(successors)}
        for voter in sorted(voters, key=lambda voter: ranks[voter.key]):
            self.effects.append(
                SendEndQuorum(
                    to=voter,
                    epoch=self.epoch,
                    leader_id=self.me.node_id,
                    successors=successors,
                    endpoints=self.me.endpoints,
                )
            )

    def learn(self, leader: Leadership, now_ms: float, *, is_own_word: bool) -> None:
        """Somebody says who leads; `is_own_word` if it was the leader itself."""
        if leader.leader_id == self.me.node_id:
            leader = Leadership(NO_NODE, leader.epoch)  # it would be an epoch that this disk has forgotten
        if leader.epoch == self.epoch and leader.is_known and not isinstance(self.role, Leader):
            if self.is_consistent(leader) and (is_own_word or not self._is_dismissed):
                self.become_follower(leader, now_ms)
        elif leader.epoch > self.epoch and leader.is_known:
            self.become_follower(leader, now_ms)
        elif leader.epoch > self.epoch and (self.may_stand or isinstance(self.role, Leader)):
            # An observer has no use for an epoch that nobody leads.
            self.become_unattached(leader.epoch, now_ms)
        if is_own_word and leader.epoch == self.dismissed_epoch:
            self.dismissed_epoch = NO_EPOCH

    def is_consistent(self, leader: Leadership) -> bool:
        """An epoch has one leader."""
        return leader.epoch != self.epoch or self.leader_id in (NO_NODE, leader.leader_id)

    @property
    def _is_dismissed(self) -> bool:
        return self.dismissed_epoch == self.epoch and self.may_stand

    def _enter(self, epoch: int) -> None:
        if epoch > self.epoch:
            self.epoch, self.voted = epoch, None
            self.leader_id, self.leader_endpoints = NO_NODE, ()

    def _stop_leading(self, error: ErrorCode) -> None:
        if not isinstance(self.role, Leader):
            return
        pending, self.role = self.role.pending, Unattached(inf)
        self.effects.insert(0, FailPendingAppends(self.leadership))
        self.effects.append(FailWaitingFetches(error, self.leadership))
        if pending is not None:
            message = "This node stopped to lead before the change was committed."
            self.answer_change(pending.ticket, ErrorCode.NOT_LEADER_OR_FOLLOWER, message)

    # What it comes to

    def answer_change(self, ticket: int, error: ErrorCode, message: str = "") -> None:
        self.effects.append(AnswerVoterChange(ticket, error, message, self.leadership))

    def advance(self, end_offset: int) -> bool:
        """Everything below is committed; whether that is news."""
        if end_offset <= self.high_watermark:
            return False
        self.high_watermark = end_offset
        self.history.forget(end_offset)
        return True

    def start(self, state: ElectionState, high_watermark: int) -> None:
        """As it was before the restart."""
        self._persisted = state
        self.epoch, self.leader_id, self.voted = state.epoch, state.leader_id, state.voted
        self.high_watermark = high_watermark
        self.synced_offset = self.log.end_offset
        if self.log.last_epoch > self.epoch:
            self._enter(self.log.last_epoch)

    def take_effects(self) -> list[Effect]:
        """All that this step wants. The vote comes before everything that relies on it; only the end of our own writing
        must not wait until that is on disk."""
        effects, self.effects = self.effects, []
        state = ElectionState(self.epoch, self.leader_id, self.voted)
        if state != self._persisted:
            effects.insert(bool(effects) and isinstance(effects[0], FailPendingAppends), PersistQuorumState(state))
            self._persisted = state
        if self.high_watermark > self._announced_watermark:
            effects.append(AdvanceHighWatermark(self.high_watermark))
            self._announced_watermark = self.high_watermark
        if self.leadership != self._announced:
            if not isinstance(self.role, Leader):
                effects.append(BecomeFollower(self.leadership))
            self._announced = self.leadership
        return effects

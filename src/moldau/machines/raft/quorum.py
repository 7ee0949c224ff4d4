"""Shared state of the raft machine's parts, and the transitions between roles.

Every transition away from the leader role goes through `_stop_leading`, which fails pending appends and waiting
fetches, so no caller can forget it. `take_effects` closes a step: it compares the election state with the persisted
copy and puts `PersistQuorumState` before every effect that relies on it, then reports a new high watermark and a new
leader once per step, however often they changed within it.
"""

from collections.abc import Callable
from math import inf

from moldau.machines.raft.effects import (
    AdvanceHighWatermark,
    BecomeFollower,
    Effect,
    ElectionState,
    FailPendingAppends,
    FailWaitingFetches,
    Leadership,
    PersistQuorumState,
    RespondToVoterChange,
    SendEndQuorum,
)
from moldau.machines.raft.leader_state import Leader
from moldau.machines.raft.log_view import LogView
from moldau.machines.raft.roles import Follower, Resigned, Role, Unattached
from moldau.machines.raft.settings import FIRST_ELECTION_MS, QuorumSettings
from moldau.machines.raft.voters import Endpoints, ReplicaKey, Voter, VoterHistory, VoterSet
from moldau.model.errors import ErrorCode
from moldau.model.ids import NO_EPOCH, NO_NODE


class Quorum:
    """A node's view of its quorum. The parts of the machine modify it and collect effects in `effects`."""

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
        self.leader_id = NO_NODE  # of this epoch, even after it resigned
        self.leader_endpoints: Endpoints = ()
        self.leaderless_epoch = NO_EPOCH  # its leader is known to be down, even if other voters still name it
        self.role: Role = Unattached(inf)
        self.high_watermark = 0
        self.synced_offset = 0
        self.effects: list[Effect] = []
        self._persisted = ElectionState()
        self._reported_high_watermark = 0
        self._reported_leadership: Leadership | None = None

    # State

    @property
    def voters(self) -> VoterSet:
        return self.history.voters

    @property
    def is_voter(self) -> bool:
        return self.voters.includes(self.me.key)

    @property
    def is_electable(self) -> bool:
        """Whether this node may become a candidate: a voter may, and also a voter whose removal is not committed yet.
        If the leader removed itself, no other voter may have a complete enough log. It does not count its own vote."""
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
        """The known leader. Only a leader or follower has one: in all other roles the epoch's leader is suspected
        to have failed."""
        if isinstance(self.role, Leader | Follower):
            return Leadership(self.leader_id, self.epoch, self.leader_endpoints)
        return Leadership(NO_NODE, self.epoch)

    def random_election_timeout_ms(self) -> float:
        return self.settings.election_timeout_ms * (1 + self.randomness())

    def short_election_timeout_ms(self) -> float:
        """Return a short random timeout for a voter that knows there is no leader, long enough to avoid a split vote. A
        node that is being removed waits for the others: after a restart it does not know whether the removal is
        committed."""
        return FIRST_ELECTION_MS * self.randomness() if self.is_voter else self.random_election_timeout_ms()

    # Transitions

    def become_unattached(self, epoch: int, now_ms: float, wait_ms: float | None = None) -> None:
        """Follow no leader. The leader of the same epoch stays recorded, since an epoch cannot have a second one."""
        self._stop_leading(ErrorCode.FENCED_LEADER_EPOCH if epoch > self.epoch else ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._enter(epoch)
        wait_ms = self.random_election_timeout_ms() if wait_ms is None else wait_ms
        self.role = Unattached(now_ms + wait_ms if self.is_electable else inf)

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
        """Stop leading and send EndQuorumEpoch, to the preferred successor first."""
        if not isinstance(self.role, Leader):
            return
        voters, successors = self.role.others(self.voters), self.role.successors(self.voters)
        self._stop_leading(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.role = Resigned(now_ms + self.random_election_timeout_ms())
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

    def observe_leader(self, leader: Leadership, now_ms: float, *, is_from_leader: bool) -> None:
        """Process a leader named in a message; `is_from_leader` if the leader itself sent it."""
        if leader.leader_id == self.me.node_id:
            leader = Leadership(NO_NODE, leader.epoch)  # it led this epoch, but its disk lost the quorum state
        if leader.epoch == self.epoch and leader.is_known and not isinstance(self.role, Leader):
            if self.is_consistent(leader) and (is_from_leader or not self._is_leaderless):
                self.become_follower(leader, now_ms)
        elif leader.epoch > self.epoch and leader.is_known:
            self.become_follower(leader, now_ms)
        elif leader.epoch > self.epoch and (self.is_electable or isinstance(self.role, Leader)):
            # An observer ignores epochs without a leader.
            self.become_unattached(leader.epoch, now_ms)
        if is_from_leader and leader.epoch == self.leaderless_epoch:
            self.leaderless_epoch = NO_EPOCH

    def is_consistent(self, leader: Leadership) -> bool:
        """An epoch has one leader."""
        return leader.epoch != self.epoch or self.leader_id in (NO_NODE, leader.leader_id)

    @property
    def _is_leaderless(self) -> bool:
        return self.leaderless_epoch == self.epoch and self.is_electable

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
            message = "This node stopped leading before the change was committed."
            self.respond_to_change(pending.ticket, ErrorCode.NOT_LEADER_OR_FOLLOWER, message)

    # Results

    def respond_to_change(self, ticket: int, error: ErrorCode, message: str = "") -> None:
        self.effects.append(RespondToVoterChange(ticket, error, message, self.leadership))

    def advance(self, end_offset: int) -> bool:
        """Advance the high watermark; return whether it moved."""
        if end_offset <= self.high_watermark:
            return False
        self.high_watermark = end_offset
        self.history.discard_below(end_offset)
        return True

    def start(self, state: ElectionState, high_watermark: int) -> None:
        """Restore the state from before the restart."""
        self._persisted = state
        self.epoch, self.leader_id, self.voted = state.epoch, state.leader_id, state.voted
        self.high_watermark = high_watermark
        self.synced_offset = self.log.end_offset
        if self.log.last_epoch > self.epoch:
            self._enter(self.log.last_epoch)

    def take_effects(self) -> list[Effect]:
        """Return the effects of this step. The vote is persisted before every effect that relies on it; only
        FailPendingAppends comes earlier, so that no append slips in during that write."""
        effects, self.effects = self.effects, []
        state = ElectionState(self.epoch, self.leader_id, self.voted)
        if state != self._persisted:
            effects.insert(bool(effects) and isinstance(effects[0], FailPendingAppends), PersistQuorumState(state))
            self._persisted = state
        if self.high_watermark > self._reported_high_watermark:
            effects.append(AdvanceHighWatermark(self.high_watermark))
            self._reported_high_watermark = self.high_watermark
        if self.leadership != self._reported_leadership:
            if not isinstance(self.role, Leader):
                effects.append(BecomeFollower(self.leadership))
            self._reported_leadership = self.leadership
        return effects

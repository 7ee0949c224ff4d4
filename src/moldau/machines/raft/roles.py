"""Roles of a node within an epoch, and the state of each role."""

from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from moldau.machines.raft.leader_state import Leader
from moldau.machines.raft.voters import VoterSet
from moldau.model.ids import NodeId


class RoleName(Enum):
    """Names of the roles. A non-voter is an observer while it follows a leader, and unattached otherwise."""

    UNATTACHED = "unattached"
    PROSPECTIVE = "prospective"
    CANDIDATE = "candidate"
    LEADER = "leader"
    RESIGNED = "resigned"
    FOLLOWER = "follower"
    OBSERVER = "observer"


@dataclass(slots=True)
class Tally:
    """Votes of an election round. An unreachable voter counts as rejecting."""

    votes: dict[NodeId, bool] = field(default_factory=dict)

    def is_won(self, voters: VoterSet) -> bool:
        return self._count(voters, True) >= voters.majority

    def is_lost(self, voters: VoterSet) -> bool:
        return len(voters) - self._count(voters, False) < voters.majority

    def granting(self, voters: VoterSet) -> tuple[NodeId, ...]:
        return tuple(node_id for node_id in voters.ids if self.votes.get(node_id) is True)

    def _count(self, voters: VoterSet, vote: bool) -> int:
        return sum(self.votes.get(node_id) is vote for node_id in voters.ids)


@dataclass(slots=True)
class Unattached:
    """No known leader. A voter starts an election at its deadline."""

    deadline_ms: float


@dataclass(slots=True)
class Prospective:
    """Sends pre-votes before it disturbs the quorum with a new epoch (KIP-996)."""

    deadline_ms: float
    tally: Tally | None  # None: backing off between rounds


@dataclass(slots=True)
class Candidate:
    """Requests votes in a new epoch of its own."""

    deadline_ms: float
    tally: Tally


@dataclass(slots=True)
class Follower:
    """Fetches from the leader; suspects it at the deadline."""

    deadline_ms: float
    has_fetched: bool = False


@dataclass(slots=True)
class Resigned:
    """Led this epoch and never leads it again. Waits for a successor before it becomes a candidate itself."""

    deadline_ms: float


Role: TypeAlias = Unattached | Prospective | Candidate | Leader | Resigned | Follower

"""What a node can be in an epoch, and what it knows in that role."""

from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from moldau.machines.raft.leader_state import Leader
from moldau.machines.raft.voters import VoterSet
from moldau.model.ids import NodeId


class RoleName(Enum):
    """A node that may not vote is an observer when it follows, and unattached otherwise."""

    UNATTACHED = "unattached"
    PROSPECTIVE = "prospective"
    CANDIDATE = "candidate"
    LEADER = "leader"
    RESIGNED = "resigned"
    FOLLOWER = "follower"
    OBSERVER = "observer"


@dataclass(slots=True)
class Tally:
    """The votes of one round. Whoever could not be asked counts as against it."""

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
    """Knows no leader. A voter stands for election at its deadline."""

    deadline_ms: float


@dataclass(slots=True)
class Prospective:
    """Asks whether it would be elected, before it disturbs anybody with a new epoch (KIP-996)."""

    deadline_ms: float
    tally: Tally | None  # None: it pauses between two rounds


@dataclass(slots=True)
class Candidate:
    """Asks for votes in an epoch of its own."""

    deadline_ms: float
    tally: Tally


@dataclass(slots=True)
class Follower:
    """Fetches from a leader, and doubts it at the deadline."""

    deadline_ms: float
    has_fetched: bool = False


@dataclass(slots=True)
class Resigned:
    """Led this epoch and will not again. It waits for a successor before it stands itself."""

    deadline_ms: float


Role: TypeAlias = Unattached | Prospective | Candidate | Leader | Resigned | Follower

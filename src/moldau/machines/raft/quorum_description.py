"""What DescribeQuorum tells about the replicas."""

from dataclasses import dataclass

from moldau.machines.raft.effects import Leadership
from moldau.machines.raft.voters import ReplicaKey

NEVER_MS = -1.0


@dataclass(frozen=True, slots=True)
class ReplicaDescription:
    """How far a replica is. Times are of the clock that `step` is given; NEVER_MS if it has not fetched."""

    key: ReplicaKey
    end_offset: int
    last_fetch_ms: float
    last_caught_up_ms: float


@dataclass(frozen=True, slots=True)
class QuorumDescription:
    """The quorum as its leader sees it. On another node only leadership, high watermark and voters say something."""

    leadership: Leadership
    high_watermark: int
    voters: tuple[ReplicaDescription, ...]
    observers: tuple[ReplicaDescription, ...]

"""Quorum state as reported by DescribeQuorum."""

from dataclasses import dataclass

from moldau.machines.raft.effects import Leadership
from moldau.machines.raft.voters import ReplicaKey

NEVER_MS = -1.0


@dataclass(frozen=True, slots=True)
class ReplicaDescription:
    """Replica progress. Times use the clock of `step`; NEVER_MS if it has not fetched."""

    key: ReplicaKey
    end_offset: int
    last_fetch_ms: float
    last_caught_up_ms: float


@dataclass(frozen=True, slots=True)
class QuorumDescription:
    """The quorum as known to its leader. Other nodes only fill in leadership, high watermark and voters."""

    leadership: Leadership
    high_watermark: int
    voters: tuple[ReplicaDescription, ...]
    observers: tuple[ReplicaDescription, ...]

"""Partition replication: the leader's high watermark and ISR, the follower's fetch position and truncation.

A node creates a new machine per leader epoch: a `LeaderMachine` if it leads, a `FollowerMachine` if it follows. Nothing
carries over from an older epoch except the log, its leader epochs and the high watermark. At most one incarnation of a
process leads a leader epoch: a restarted node must not lead because of an image from before its registration. A
partition with a single replica needs no machine.
"""

from moldau.machines.replication.divergence import EpochEnd, ReplicaLog, find_divergence
from moldau.machines.replication.effects import ProposeIsr, RestartAt, TruncateTo, Truncation
from moldau.machines.replication.follower import FollowerMachine
from moldau.machines.replication.leader import NOT_ELIGIBLE, LeaderMachine
from moldau.machines.replication.progress import FollowerProgress

__all__ = [
    "NOT_ELIGIBLE",
    "EpochEnd",
    "FollowerMachine",
    "FollowerProgress",
    "LeaderMachine",
    "ProposeIsr",
    "ReplicaLog",
    "RestartAt",
    "TruncateTo",
    "Truncation",
    "find_divergence",
]

"""How the copies of one partition stay the same: what its leader counts, and what its followers keep and cut.

A node makes a new machine for each leader epoch that it learns of: a `LeaderMachine` where it leads, a
`FollowerMachine` where it follows. Nothing that was known in an older epoch is carried into a newer one but the log,
its epochs and the high watermark. A leader epoch is led by one life of one process at most: a node that starts again
must not lead on the word of an image from before its registration. A partition with one replica needs no machine.
"""

from moldau.machines.replication.divergence import EpochEnd, ReplicaLog, find_divergence
from moldau.machines.replication.effects import Cut, ProposeIsr, RestartAt, TruncateTo
from moldau.machines.replication.follower import FollowerMachine
from moldau.machines.replication.leader import NOT_ELIGIBLE, LeaderMachine
from moldau.machines.replication.progress import FollowerProgress

__all__ = [
    "NOT_ELIGIBLE",
    "Cut",
    "EpochEnd",
    "FollowerMachine",
    "FollowerProgress",
    "LeaderMachine",
    "ProposeIsr",
    "ReplicaLog",
    "RestartAt",
    "TruncateTo",
    "find_divergence",
]

"""What a node can be in an epoch."""

from enum import Enum


class RoleName(Enum):
    """A node that may not vote is an observer when it follows, and unattached otherwise."""

    UNATTACHED = "unattached"
    PROSPECTIVE = "prospective"
    CANDIDATE = "candidate"
    LEADER = "leader"
    RESIGNED = "resigned"
    FOLLOWER = "follower"
    OBSERVER = "observer"

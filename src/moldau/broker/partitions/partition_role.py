"""The role of a replica in the current leader epoch.

    alone      `leads_alone`: one replica; records are committed when they are appended (or flushed, where required)
    leader     `leading` (LeaderRole): the high watermark comes from its replication machine
    follower   `following` (FollowerRole): the high watermark comes from the leader's fetch responses
    closed     not `is_open`: the replica was removed, or the broker stops

`is_leader` is true in the first two. A new epoch ends the LeaderRole or FollowerRole of the last one; the partition
then fails or keeps its waiters, and notifies the followers that fetch from it.
"""

from typing import TYPE_CHECKING

from moldau.model.errors import FencedLeaderEpoch, NotLeaderOrFollower, UnknownLeaderEpoch
from moldau.model.ids import NO_EPOCH, NO_NODE, TopicPartition

if TYPE_CHECKING:
    from moldau.broker.partitions.follower_role import FollowerRole
    from moldau.broker.partitions.leader_role import LeaderRole


class PartitionRole:
    """Alone, leader, follower or closed, with the leader epoch; begins as alone."""

    __slots__ = ("_name", "following", "is_leader", "is_open", "leader_epoch", "leading", "leads_alone")

    def __init__(self, name: TopicPartition, leader_epoch: int) -> None:
        self._name = name
        self.leader_epoch = leader_epoch
        self.is_open = True
        self.is_leader = True
        self.leads_alone = True  # no other replica counts for the high watermark
        self.leading: LeaderRole | None = None  # set while this broker leads with followers
        self.following: FollowerRole | None = None

    def lead_alone(self, leader_epoch: int) -> None:
        self._begin(leader_epoch, is_leader=True)
        self.leads_alone = True

    def lead(self, leader_epoch: int, leading: "LeaderRole") -> None:
        self._begin(leader_epoch, is_leader=True)
        self.leading = leading

    def follow(self, leader_epoch: int, following: "FollowerRole") -> None:
        self._begin(leader_epoch, is_leader=False)
        self.following = following

    def close(self) -> None:
        self._begin(self.leader_epoch, is_leader=False)
        self.is_open = False

    def _begin(self, leader_epoch: int, *, is_leader: bool) -> None:
        self.leader_epoch = leader_epoch
        self.is_leader = is_leader
        self.leads_alone = False
        if self.leading is not None:
            self.leading.end()
        self.leading = self.following = None

    @property
    def is_followed(self) -> bool:
        """Whether this broker is a follower, and learns the high watermark from a leader."""
        return self.following is not None and self.following.machine.leader != NO_NODE

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Reject a client whose leader epoch is older or newer than ours."""
        if not self.is_open:
            raise self.no_replica_error()
        if current_leader_epoch in (NO_EPOCH, self.leader_epoch):
            return
        if current_leader_epoch < self.leader_epoch:
            raise FencedLeaderEpoch(
                f"{self._name} has leader epoch {self.leader_epoch}, but the request has an older one."
            )
        raise UnknownLeaderEpoch(f"{self._name} has leader epoch {self.leader_epoch}, but the request has a newer one.")

    def not_leader_error(self) -> NotLeaderOrFollower:
        return NotLeaderOrFollower(f"This broker is no longer the leader of {self._name}.")

    def no_replica_error(self) -> NotLeaderOrFollower:
        return NotLeaderOrFollower(f"This broker no longer has a replica of {self._name}.")

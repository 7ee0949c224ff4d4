"""Log divergence (KIP-101, KIP-595): find where a follower's log stops being a prefix of the leader's.

Offsets alone cannot tell: after an unclean failover two logs may hold different records at the same offset. But a
leader epoch has one leader, so two logs that share the last epoch are equal up to the smaller of that epoch's end
offsets. A follower sends the epoch of its last record with every fetch. The leader responds with the largest epoch not
above it and that epoch's end offset; the follower truncates to the common end and fetches again. Each round drops at
least one epoch of the follower, so the exchange terminates.

    leader    epoch 1: 0-9   epoch 3: 10-14        fetch offset 14, last epoch 2
    follower  epoch 1: 0-11  epoch 2: 12-13   ->   diverging (epoch 1, end 10): truncate to 10, fetch again
"""

from typing import NamedTuple, Protocol

from moldau.model.errors import OffsetOutOfRange
from moldau.model.ids import NO_EPOCH


class EpochEnd(NamedTuple):
    """A leader epoch and the offset after its last record."""

    epoch: int
    end_offset: int


class EpochHistory(Protocol):
    """The leader epochs of a log."""

    @property
    def latest(self) -> int:
        """The latest epoch, -1 if there is none."""
        ...

    def end_offset_of(self, epoch: int, log_end_offset: int, /) -> tuple[int, int]:
        """Return the largest known epoch not above `epoch` and its end offset; (-1, -1) if unknown."""
        ...


class ReplicaLog(Protocol):
    """The part of a replica's log that the machines read."""

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def epochs(self) -> EpochHistory: ...


def find_divergence(log: ReplicaLog, last_fetched_epoch: int, fetch_offset: int) -> EpochEnd | None:
    """Return the diverging epoch for a follower whose log is not a prefix of the leader's; None if it is one.

    A fetch that gets a diverging epoch or an error does not count as progress of the follower. The leader's own epoch
    must be in its history as soon as it leads: otherwise a follower with extra records would not be detected.
    """
    if last_fetched_epoch == NO_EPOCH:
        return None
    epoch, end_offset = log.epochs.end_offset_of(last_fetched_epoch, log.end_offset)
    if epoch == NO_EPOCH:
        raise OffsetOutOfRange(f"leader epoch {last_fetched_epoch} is not in the leader's epoch history")
    if epoch < last_fetched_epoch or end_offset < fetch_offset:
        return EpochEnd(epoch, end_offset)
    return None


def truncation_offset(log: ReplicaLog, leader_end: EpochEnd) -> int:
    """Return the offset to truncate a follower's log to, given the leader's end of the diverging epoch.

    Truncates no more than necessary. Without records of the leader's epoch, the follower truncates to the end of its
    own epoch before that and fetches again.
    """
    epoch, own_end_offset = log.epochs.end_offset_of(leader_end.epoch, log.end_offset)
    if epoch == NO_EPOCH:
        own_end_offset = leader_end.end_offset
    elif epoch == leader_end.epoch:
        own_end_offset = min(own_end_offset, leader_end.end_offset)
    return min(own_end_offset, log.end_offset)

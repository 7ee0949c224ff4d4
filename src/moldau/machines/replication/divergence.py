"""Where two logs part: each side tells the other in which leader epoch it is and where that epoch ends."""

from typing import NamedTuple, Protocol

from moldau.model.errors import OffsetOutOfRange
from moldau.model.ids import NO_EPOCH


class EpochEnd(NamedTuple):
    """A leader epoch, and the offset after its last record."""

    epoch: int
    end_offset: int


class EpochHistory(Protocol):
    """The leader epochs of a log."""

    @property
    def latest(self) -> int:
        """The newest, -1 if there is none."""
        ...

    def end_offset_of(self, epoch: int, log_end_offset: int, /) -> tuple[int, int]:
        """The largest known epoch not above `epoch`, and the offset at which it ended; (-1, -1) if unknown."""
        ...


class ReplicaLog(Protocol):
    """What the machines look at in the log of a replica."""

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def epochs(self) -> EpochHistory: ...


def find_divergence(log: ReplicaLog, last_fetched_epoch: int, fetch_offset: int) -> EpochEnd | None:
    """What a leader tells a follower whose log is not a prefix of its own; None if it may go on from `fetch_offset`.

    A fetch that gets anything but None here, or an error, has said nothing about how far the follower is. The leader's
    own epoch must be in its history from the moment it leads, or a follower that has more would not be told.
    """
    if last_fetched_epoch == NO_EPOCH:
        return None
    epoch, end_offset = log.epochs.end_offset_of(last_fetched_epoch, log.end_offset)
    if epoch == NO_EPOCH:
        raise OffsetOutOfRange(f"leader epoch {last_fetched_epoch} is not known here")
    if epoch < last_fetched_epoch or end_offset < fetch_offset:
        return EpochEnd(epoch, end_offset)
    return None


def shared_end_offset(log: ReplicaLog, leaders: EpochEnd) -> int:
    """Where a follower cuts its log after the leader told it of a divergence: never more than must go.

    If it has no records of the leader's epoch, it goes back to the end of its own epoch before that, and asks again.
    """
    epoch, own_end_offset = log.epochs.end_offset_of(leaders.epoch, log.end_offset)
    if epoch == NO_EPOCH:
        own_end_offset = leaders.end_offset
    elif epoch == leaders.epoch:
        own_end_offset = min(own_end_offset, leaders.end_offset)
    return min(own_end_offset, log.end_offset)

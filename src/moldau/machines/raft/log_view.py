"""The machine's read-only view of the log, and how the logs of two replicas relate."""

from typing import NamedTuple, Protocol


class OffsetAndEpoch(NamedTuple):
    """End of a log, an epoch or a snapshot: everything below `offset`; `epoch` is that of the last record."""

    offset: int
    epoch: int


class LogView(Protocol):
    """The metadata log in its current state, unsynced records included."""

    @property
    def start_offset(self) -> int:
        """First offset in the log; if above 0, a snapshot covers everything before it."""

    @property
    def end_offset(self) -> int:
        """Offset of the next record."""

    @property
    def last_epoch(self) -> int:
        """Epoch of the last record; of the snapshot below `start_offset` if the log is empty; else 0."""

    @property
    def latest_snapshot(self) -> OffsetAndEpoch | None:
        """Newest complete snapshot on disk, or None. The bootstrap checkpoint (0, 0) does not count."""

    @property
    def earliest_snapshot(self) -> OffsetAndEpoch | None:
        """Oldest snapshot on disk; `start_offset` is not above it."""

    def end_of_epoch(self, epoch: int) -> OffsetAndEpoch:
        """Return the largest epoch of the log that is not above `epoch`, and its end offset. For the last epoch and
        later ones that is the log end; if all epochs are above, it is `start_offset` with the epoch before it."""


class Diverged(NamedTuple):
    """The replica has records that are not in this log, beginning at the common end."""

    end: OffsetAndEpoch


class SnapshotRequired(NamedTuple):
    """The next offset of the replica is no longer in this log: it needs a snapshot."""

    snapshot: OffsetAndEpoch


def compare(log: LogView, offset: int, last_epoch: int) -> Diverged | SnapshotRequired | None:
    """Compare a replica's log, ending at `offset` with `last_epoch`, with this one; None if it is a prefix."""
    if offset == 0 and log.start_offset == 0:
        return None
    earliest, latest = log.earliest_snapshot, log.latest_snapshot
    if earliest is not None and latest is not None and _is_before(log.start_offset, earliest, offset, last_epoch):
        return SnapshotRequired(latest)
    end = log.end_of_epoch(last_epoch)
    return None if end.epoch == last_epoch and offset <= end.offset else Diverged(end)


def _is_before(start_offset: int, earliest: OffsetAndEpoch, offset: int, last_epoch: int) -> bool:
    if offset < start_offset or last_epoch < earliest.epoch:
        return True
    return offset == start_offset != 0 and offset == earliest.offset and last_epoch != earliest.epoch


def truncation_offset(log: LogView, end: OffsetAndEpoch) -> int:
    """Return the offset to truncate to when `end` is the leader's end of its diverging epoch."""
    mine = log.end_of_epoch(end.epoch)
    return min(mine.offset, end.offset) if mine.epoch == end.epoch else mine.offset

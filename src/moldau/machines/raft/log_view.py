"""What the machine may ask of the log. The driver has the log; the machine only looks at it."""

from typing import NamedTuple, Protocol


class OffsetAndEpoch(NamedTuple):
    """The end of a log, of an epoch or of a snapshot: everything below `offset`; `epoch` is that of the last record."""

    offset: int
    epoch: int


class LogView(Protocol):
    """The metadata log as it is at this moment, what is not synced included."""

    @property
    def start_offset(self) -> int:
        """The first offset that is still there; above 0 a snapshot leads to it."""

    @property
    def end_offset(self) -> int:
        """The offset that the next record gets."""

    @property
    def last_epoch(self) -> int:
        """Of the last record; of the snapshot that leads to `start_offset`, if there is none; else 0."""

    @property
    def latest_snapshot(self) -> OffsetAndEpoch | None:
        """The newest snapshot on disk that is whole, or None. The bootstrap checkpoint (0, 0) is none."""

    @property
    def earliest_snapshot(self) -> OffsetAndEpoch | None:
        """The oldest snapshot that is kept; `start_offset` is not above it."""

    def end_of_epoch(self, epoch: int) -> OffsetAndEpoch:
        """The largest epoch of the log that is not above this one, and where it ends. The log's end offset for its last
        epoch and all later ones; `start_offset` with the epoch that leads there, when all epochs are above."""


class Diverged(NamedTuple):
    """The replica has records that are not in this log: those after the common end."""

    end: OffsetAndEpoch


class Superseded(NamedTuple):
    """What the replica wants next is not in this log any more: it needs a snapshot."""

    snapshot: OffsetAndEpoch


def compare(log: LogView, offset: int, last_epoch: int) -> Diverged | Superseded | None:
    """How a replica's log that ends at `offset` with `last_epoch` relates to this one; None if it is a prefix of it."""
    if offset == 0 and log.start_offset == 0:
        return None
    earliest, latest = log.earliest_snapshot, log.latest_snapshot
    if earliest is not None and latest is not None and _is_before(log.start_offset, earliest, offset, last_epoch):
        return Superseded(latest)
    end = log.end_of_epoch(last_epoch)
    return None if end.epoch == last_epoch and offset <= end.offset else Diverged(end)


def _is_before(start_offset: int, earliest: OffsetAndEpoch, offset: int, last_epoch: int) -> bool:
    if offset < start_offset or last_epoch < earliest.epoch:
        return True
    return offset == start_offset != 0 and offset == earliest.offset and last_epoch != earliest.epoch


def truncation_point(log: LogView, end: OffsetAndEpoch) -> int:
    """Where a log has to be cut whose leader says that its own epoch ends there."""
    mine = log.end_of_epoch(end.epoch)
    return min(mine.offset, end.offset) if mine.epoch == end.epoch else mine.offset

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

"""Follower of a partition: fetch position, high watermark, and truncation of its own log."""

from moldau.machines.replication.divergence import EpochEnd, ReplicaLog, truncation_offset
from moldau.machines.replication.effects import RestartAt, TruncateTo, Truncation


class FollowerMachine:
    """A follower in a leader epoch.

    It needs no step before its first fetch: every fetch carries the epoch of the last record, and the leader responds
    with a diverging epoch instead of records if the logs differ. Call `expects` first for each response and discard the
    response if it returns False; a response to an outdated fetch position must not reach any other method.

    The driver compares the high watermark after each call: it grows with the leader's and only shrinks with a
    truncation.
    """

    __slots__ = ("_log", "high_watermark", "leader", "leader_epoch", "log_start_offset")

    def __init__(self, log: ReplicaLog, *, leader: int, leader_epoch: int, high_watermark: int) -> None:
        self._log = log
        self.leader = leader
        self.leader_epoch = leader_epoch
        self.high_watermark = min(high_watermark, log.end_offset)
        self.log_start_offset = log.start_offset  # the target; the driver applies it to the log

    @property
    def fetch_offset(self) -> int:
        return self._log.end_offset

    @property
    def last_fetched_epoch(self) -> int:
        return self._log.epochs.latest

    def expects(self, leader_epoch: int, fetch_offset: int, last_fetched_epoch: int) -> bool:
        """Whether the response to a fetch with these positions still fits the log.

        An end offset and the epoch of the record before it identify a log uniquely, so a response that fits is valid
        even if it is late or duplicated.
        """
        log = self._log
        return (
            fetch_offset == log.end_offset
            and leader_epoch == self.leader_epoch
            and last_fetched_epoch == log.epochs.latest
        )

    def fetched(self, leader_high_watermark: int, leader_start_offset: int) -> None:
        """The records of a response, if any, are appended; apply the leader's high watermark and log start offset."""
        committed = min(leader_high_watermark, self._log.end_offset)
        # A new leader may know a lower high watermark than this node: committed records stay committed.
        if committed > self.high_watermark:
            self.high_watermark = committed
        if leader_start_offset > self.log_start_offset:
            self.log_start_offset = min(leader_start_offset, self.high_watermark)

    def diverged(self, leader_end: EpochEnd) -> TruncateTo:
        """Truncate to the common end. To be done even if it removes no record: it may remove a leader epoch."""
        cut = TruncateTo(truncation_offset(self._log, leader_end))
        self._lower_to(cut.end_offset)
        return cut

    def offset_out_of_range(self, leader_start_offset: int, leader_end_offset: int) -> Truncation | None:
        """The fetch offset is outside the leader's log, whose bounds these are. None: fetch again."""
        end_offset = self._log.end_offset
        if leader_start_offset > end_offset or leader_end_offset < self._log.start_offset:
            self.high_watermark = self.log_start_offset = leader_start_offset
            return RestartAt(leader_start_offset)
        if leader_end_offset < end_offset:
            self._lower_to(leader_end_offset)
            return TruncateTo(leader_end_offset)
        return None

    def _lower_to(self, end_offset: int) -> None:
        self.high_watermark = min(self.high_watermark, end_offset)
        self.log_start_offset = min(self.log_start_offset, end_offset)

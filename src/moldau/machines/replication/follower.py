"""A partition that this node follows: what it asks its leader for, and what it cuts from its own log."""

from moldau.machines.replication.divergence import EpochEnd, ReplicaLog, shared_end_offset
from moldau.machines.replication.effects import Cut, RestartAt, TruncateTo


class FollowerMachine:
    """A follower in one leader epoch.

    It has nothing to do before its first fetch: every fetch says in which epoch the follower's last record is, and the
    leader answers with a divergence instead of records where the logs part. Before an answer is looked at, `expects`
    says whether it is still one: nothing else may be called for an answer that is not.

    The high watermark is to be compared after each call: it grows with what the leader says, and falls only with a cut.
    """

    __slots__ = ("_log", "high_watermark", "leader", "leader_epoch", "log_start_offset")

    def __init__(self, log: ReplicaLog, *, leader: int, leader_epoch: int, high_watermark: int) -> None:
        self._log = log
        self.leader = leader
        self.leader_epoch = leader_epoch
        self.high_watermark = min(high_watermark, log.end_offset)
        self.log_start_offset = log.start_offset  # where the log shall begin; the driver makes it so

    @property
    def fetch_offset(self) -> int:
        return self._log.end_offset

    @property
    def last_fetched_epoch(self) -> int:
        return self._log.epochs.latest

    def expects(self, leader_epoch: int, fetch_offset: int, last_fetched_epoch: int) -> bool:
        """Does the answer to a fetch that said this still fit the log?

        An end offset and the epoch of the record before it name one log and no other, so an answer that fits is right
        however late it comes, and though it come twice.
        """
        log = self._log
        return (
            fetch_offset == log.end_offset
            and leader_epoch == self.leader_epoch
            and last_fetched_epoch == log.epochs.latest
        )

    def fetched(self, leader_high_watermark: int, leader_start_offset: int) -> None:
        """The records of an answer, if any, are in the log now; this is what the leader said beside them."""
        committed = min(leader_high_watermark, self._log.end_offset)
        # A new leader learns the high watermark later than we may have: what was committed stays so.
        if committed > self.high_watermark:
            self.high_watermark = committed
        if leader_start_offset > self.log_start_offset:
            self.log_start_offset = min(leader_start_offset, self.high_watermark)

    def diverged(self, leaders: EpochEnd) -> TruncateTo:
        """The leader's log is another one from some point on. To be done even where no record goes: an epoch may."""
        cut = TruncateTo(shared_end_offset(self._log, leaders))
        self._keep_below(cut.end_offset)
        return cut

    def went_out_of_range(self, leader_start_offset: int, leader_end_offset: int) -> Cut | None:
        """The leader has nothing at our offset; these are its ends, asked for in this epoch. None: just fetch again."""
        end_offset = self._log.end_offset
        if leader_start_offset > end_offset or leader_end_offset < self._log.start_offset:
            self.high_watermark = self.log_start_offset = leader_start_offset
            return RestartAt(leader_start_offset)
        if leader_end_offset < end_offset:
            self._keep_below(leader_end_offset)
            return TruncateTo(leader_end_offset)
        return None

    def _keep_below(self, end_offset: int) -> None:
        self.high_watermark = min(self.high_watermark, end_offset)
        self.log_start_offset = min(self.log_start_offset, end_offset)

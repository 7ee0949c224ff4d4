"""A partition that this node leads: how far its followers are, who of them is in sync, and what is committed."""

from collections.abc import Callable, Sequence
from typing import Final

from moldau.machines.replication.effects import ProposeIsr
from moldau.machines.replication.progress import NEVER_MS, FollowerProgress
from moldau.model.errors import ErrorCode, NotLeaderOrFollower, OffsetOutOfRange
from moldau.model.ids import NO_EPOCH, NO_OFFSET

NOT_ELIGIBLE: Final = -1
REFUSED_WAIT_MS: Final = 100.0  # after a refusal, before the next proposal

NOT_APPLIED: Final = frozenset(
    {ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INVALID_REQUEST}
)
NEWS_TO_COME: Final = frozenset(
    {
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.NEW_LEADER_ELECTED,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)


class LeaderMachine:
    """A leader in one leader epoch.

    Plain methods, because one of them runs with every fetch of a follower. Each returns the ISR to propose, or None;
    after each the high watermark is to be compared with what it was: it only grows, but for `taken_back`.

    Counted for the high watermark is everybody who may be in the true ISR: the committed ISR, and whoever was proposed,
    until the controller has surely decided. A follower that is about to join is waited for as well, or under a steady
    load it would never meet the high watermark.
    """

    __slots__ = (
        "_broker_epoch_of",
        "_counted",
        "_followers",
        "_held_offset",
        "_isr",
        "_lag_max_ms",
        "_me",
        "_min_isr",
        "_proposal",
        "_quiet_until_ms",
        "_replicas",
        "end_offset",
        "epoch_start_offset",
        "high_watermark",
        "is_under_min_isr",
        "leader_epoch",
        "partition_epoch",
    )

    def __init__(
        self,
        me: int,
        *,
        leader_epoch: int,
        partition_epoch: int,
        replicas: Sequence[int],
        isr: Sequence[int],
        end_offset: int,
        high_watermark: int,
        min_isr: int,
        lag_max_ms: float,
        broker_epoch_of: Callable[[int], int],
        now_ms: float,
        held_offset: int | None = None,
    ) -> None:
        """`broker_epoch_of` gives the epoch of a broker that may join an ISR, NOT_ELIGIBLE for any other.

        `held_offset` is up to where this node's own copy counts, if that is not the end of the log.
        """
        self._me = me
        self.leader_epoch = leader_epoch
        self.partition_epoch = partition_epoch
        self.end_offset = self.epoch_start_offset = end_offset
        self.high_watermark = high_watermark
        self._held_offset = end_offset if held_offset is None else held_offset
        self._min_isr = min_isr
        self._lag_max_ms = lag_max_ms
        self._broker_epoch_of = broker_epoch_of
        self._replicas: tuple[int, ...] = ()
        self._isr: tuple[int, ...] = tuple(isr)
        self._counted: frozenset[int] = frozenset(isr)
        self._followers: dict[int, FollowerProgress] = {}
        self._proposal: ProposeIsr | None = None
        self._quiet_until_ms = NEVER_MS
        self.is_under_min_isr = True  # too few are in sync for anything to be committed; acks=all is refused
        self._set_replicas(replicas, now_ms)
        self._advance(now_ms)

    # ── What it knows ──

    @property
    def isr(self) -> tuple[int, ...]:
        """The ISR that the controller has committed, as far as known here."""
        return self._isr

    @property
    def replicas(self) -> tuple[int, ...]:
        return self._replicas

    @property
    def followers(self) -> dict[int, FollowerProgress]:
        """The progress of each replica but this node. To be read only."""
        return self._followers

    @property
    def proposal(self) -> ProposeIsr | None:
        """What the controller was asked for and has not decided, as far as known here."""
        return self._proposal

    @property
    def successors(self) -> frozenset[int]:
        """Everybody who may have been made leader by now, without a word to this node."""
        return self._counted - {self._me}

    def is_known(self, replica: int, broker_epoch: int) -> bool:
        """Whether this is the life of a broker that the image has here."""
        return self._broker_epoch_of(replica) == broker_epoch != NOT_ELIGIBLE

    @property
    def has_reached_epoch_start(self) -> bool:
        """Is everything that the log held when this epoch began committed? Before, its end is nobody's business."""
        return self.high_watermark >= self.epoch_start_offset

    @property
    def low_watermark(self) -> int:
        """The smallest log start offset of this log's copies on brokers that are up; -1 while one has not said."""
        return min(
            (each.log_start_offset for replica, each in self._followers.items() if self._is_eligible(replica)),
            default=2**63 - 1,
        )

    # ── What happens ──

    def appended(self, end_offset: int, held_offset: int, now_ms: float) -> None:
        """The log has grown, or more of it is on disk: it ends here, and this node's copy counts up to there."""
        self.end_offset = end_offset
        limits = self._held_offset <= self.high_watermark
        self._held_offset = held_offset
        if limits:
            self._advance(now_ms)

    def taken_back(self, end_offset: int) -> None:
        """What was appended could not be written and is gone; nobody has fetched any of it."""
        self.end_offset = end_offset
        self._held_offset = min(self._held_offset, end_offset)
        self.high_watermark = min(self.high_watermark, end_offset)

    def follower_fetched(
        self, replica: int, broker_epoch: int, fetch_offset: int, now_ms: float, log_start_offset: int = NO_OFFSET
    ) -> ProposeIsr | None:
        """A follower asked, in this leader epoch and without a divergence, for what is at `fetch_offset`."""
        follower = self._followers.get(replica)
        if follower is None or broker_epoch < follower.broker_epoch:
            raise NotLeaderOrFollower(f"broker {replica} of epoch {broker_epoch} does not follow here")
        if fetch_offset > self.end_offset:
            raise OffsetOutOfRange(f"offset {fetch_offset} is beyond the end {self.end_offset}")
        limits = follower.end_offset <= self.high_watermark
        follower.broker_epoch = broker_epoch
        follower.log_start_offset = log_start_offset
        follower.fetched(fetch_offset, self.end_offset, now_ms)
        if limits:
            self._advance(now_ms)
        if replica in self._counted:
            return None if fetch_offset >= self.high_watermark else self._propose_without_lost(now_ms)
        return self._propose_with_joining(now_ms)

    def ticked(self, now_ms: float) -> ProposeIsr | None:
        """Time has gone by, or brokers came and went: somebody may have fallen behind, or need not be waited for."""
        self._advance(now_ms)
        if self._counted.difference(self._isr) and self._may_propose(now_ms):
            return self._settle()
        return self._propose_without_lagging(now_ms) or self._propose_with_joining(now_ms)

    def min_isr_changed(self, min_isr: int, now_ms: float) -> None:
        self._min_isr = min_isr
        self._look_at_min_isr()
        self._advance(now_ms)

    def image_changed(
        self, partition_epoch: int, replicas: Sequence[int], isr: Sequence[int], now_ms: float
    ) -> ProposeIsr | None:
        """The image has another state of the partition, in the same leader epoch."""
        if partition_epoch <= self.partition_epoch:
            return None
        self._commit(partition_epoch, isr)
        self._set_replicas(replicas, now_ms)
        self._advance(now_ms)
        return self._propose_with_joining(now_ms)

    def isr_answered(
        self, proposal: ProposeIsr, partition_epoch: int, isr: Sequence[int], now_ms: float
    ) -> ProposeIsr | None:
        """The controller did as proposed; this is the partition's state now."""
        if proposal is not self._proposal or partition_epoch < self.partition_epoch:
            return None
        self._commit(partition_epoch, isr)
        self._advance(now_ms)
        return self._propose_with_joining(now_ms)

    def isr_refused(self, proposal: ProposeIsr, code: ErrorCode, now_ms: float) -> ProposeIsr | None:
        """The controller refused, or it is unknown what it did (any other error): then the proposal is sent again."""
        if proposal is not self._proposal:
            return None
        if code in NEWS_TO_COME:
            return None  # the image will say what is the case; until then we count everybody it may name
        if code not in NOT_APPLIED:
            return proposal
        self._quiet_until_ms = now_ms + REFUSED_WAIT_MS
        self._proposal = None
        is_expansion = any(each not in self._isr for each in proposal.isr)
        return self._settle() if is_expansion else None

    # ── High watermark ──

    def _advance(self, now_ms: float) -> None:
        if self.is_under_min_isr:
            return
        offset = self._held_offset
        for replica, follower in self._followers.items():
            if follower.end_offset < offset and (replica in self._counted or self._is_joining(replica, now_ms)):
                offset = follower.end_offset
        if offset > self.high_watermark:
            self.high_watermark = offset

    def _is_joining(self, replica: int, now_ms: float) -> bool:
        follower = self._followers[replica]
        is_caught_up = follower.is_caught_up(self.end_offset, now_ms, self._lag_max_ms)
        return is_caught_up and follower.broker_epoch == self._broker_epoch_of(replica)

    # ── ISR ──

    def _is_eligible(self, replica: int) -> bool:
        return self._broker_epoch_of(replica) != NOT_ELIGIBLE

    def _may_propose(self, now_ms: float) -> bool:
        return self._proposal is None and now_ms >= self._quiet_until_ms

    def _propose_with_joining(self, now_ms: float) -> ProposeIsr | None:
        """Followers that have all that is committed, and all that there was when this epoch began."""
        if not self._may_propose(now_ms):
            return None
        needed = max(self.high_watermark, self.epoch_start_offset)
        joining = tuple(
            replica
            for replica, each in self._followers.items()
            if replica not in self._counted
            and each.end_offset >= needed
            and each.broker_epoch == self._broker_epoch_of(replica) != NOT_ELIGIBLE
        )
        return self._propose(self._isr + joining) if joining else None

    def _propose_without_lagging(self, now_ms: float) -> ProposeIsr | None:
        """Without those who have not been caught up for too long."""
        return self._propose_only(lambda each: each.is_caught_up(self.end_offset, now_ms, self._lag_max_ms), now_ms)

    def _propose_without_lost(self, now_ms: float) -> ProposeIsr | None:
        """Without those who asked for what they had: they have lost committed records."""
        return self._propose_only(
            lambda each: each.end_offset == NO_OFFSET or each.end_offset >= self.high_watermark, now_ms
        )

    def _propose_only(self, stays: Callable[[FollowerProgress], bool], now_ms: float) -> ProposeIsr | None:
        if not self._may_propose(now_ms):
            return None
        followers = self._followers
        isr = tuple(each for each in self._isr if each == self._me or (each in followers and stays(followers[each])))
        return self._propose(isr) if len(isr) < len(self._isr) else None

    def _propose(self, isr: tuple[int, ...]) -> ProposeIsr:
        epochs = tuple(self._known_broker_epoch(each) for each in isr)
        self._proposal = ProposeIsr(isr, epochs, self.leader_epoch, self.partition_epoch)
        self._counted = self._counted.union(isr)
        return self._proposal

    def _settle(self) -> ProposeIsr:
        """Ask for the ISR as it is, and go on counting those who were refused until that is answered.

        A copy of the refused proposal may still be on its way and be accepted later; once the partition is in another
        partition epoch it cannot.
        """
        self._proposal = ProposeIsr(self._isr, (NO_EPOCH,) * len(self._isr), self.leader_epoch, self.partition_epoch)
        return self._proposal

    def _known_broker_epoch(self, replica: int) -> int:
        follower = self._followers.get(replica)
        return self._broker_epoch_of(replica) if follower is None else follower.broker_epoch

    def _commit(self, partition_epoch: int, isr: Sequence[int]) -> None:
        self.partition_epoch = partition_epoch
        self._isr = tuple(isr)
        self._counted = frozenset(isr)
        self._proposal = None
        self._look_at_min_isr()

    def _set_replicas(self, replicas: Sequence[int], now_ms: float) -> None:
        self._replicas = tuple(replicas)
        known = self._followers
        self._followers = {
            each: known.get(each) or FollowerProgress(now_ms if each in self._counted else NEVER_MS)
            for each in replicas
            if each != self._me
        }
        self._look_at_min_isr()

    def _look_at_min_isr(self) -> None:
        self.is_under_min_isr = len(self._isr) < min(self._min_isr, len(self._replicas))

"""Leader of a partition: follower progress, high watermark, and ISR changes (KIP-497, KIP-966's min ISR rule).

High watermark. It is the smallest end offset of all replicas in the *maximal ISR*: the ISR that the controller has
committed plus every replica of a proposal whose outcome is unknown. Counting the union is what makes an in-flight
proposal safe: whichever ISR the controller has chosen, each of its members has everything below the high watermark. It
does not move while the committed ISR is smaller than min.insync.replicas.

ISR changes. At most one proposal is in flight. A follower joins once it has reached both the high watermark and the
start of this leader epoch, and only with its current broker epoch, so that a restarted broker cannot join with the
progress of its previous incarnation. A follower leaves when it has not been caught up for replica.lag.time.max.ms, or
at once if it fetches below the high watermark (it lost committed records).

    no proposal --propose--> in flight --accepted--> committed ISR, new partition epoch
                                |------rejected--->  backoff; an expansion is followed by `_repropose_committed_isr`
                                |------stale------>  wait for the metadata image
                                '------unknown---->  send the same proposal again
"""

from collections.abc import Callable, Sequence
from typing import Final

from moldau.machines.replication.effects import ProposeIsr
from moldau.machines.replication.progress import NEVER_MS, FollowerProgress
from moldau.model.errors import ErrorCode, NotLeaderOrFollower, OffsetOutOfRange
from moldau.model.ids import NO_EPOCH, NO_OFFSET

NOT_ELIGIBLE: Final = -1
REJECTION_BACKOFF_MS: Final = 100.0  # backoff after a rejected proposal

REJECTED: Final = frozenset(
    {ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INVALID_REQUEST}
)
STALE_PROPOSAL: Final = frozenset(
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
    """A leader in a leader epoch.

    Plain methods instead of `step`, because `follower_fetched` runs with every follower fetch. Each returns the ISR to
    propose, or None; the driver compares the high watermark after each call. It only grows, except in `append_undone`.

    A follower that is about to join holds back the high watermark too; otherwise it would never reach it under load.
    """

    __slots__ = (
        "_backoff_until_ms",
        "_broker_epoch_of",
        "_durable_offset",
        "_followers",
        "_isr",
        "_lag_max_ms",
        "_maximal_isr",
        "_me",
        "_min_isr",
        "_proposal",
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
        durable_offset: int | None = None,
    ) -> None:
        """`broker_epoch_of` returns the epoch of a broker eligible for the ISR, NOT_ELIGIBLE for any other.

        `durable_offset` is the end of this node's own durable records, if that is not the log end.
        """
        self._me = me
        self.leader_epoch = leader_epoch
        self.partition_epoch = partition_epoch
        self.end_offset = self.epoch_start_offset = end_offset
        self.high_watermark = high_watermark
        self._durable_offset = end_offset if durable_offset is None else durable_offset
        self._min_isr = min_isr
        self._lag_max_ms = lag_max_ms
        self._broker_epoch_of = broker_epoch_of
        self._replicas: tuple[int, ...] = ()
        self._isr: tuple[int, ...] = tuple(isr)
        self._maximal_isr: frozenset[int] = frozenset(isr)
        self._followers: dict[int, FollowerProgress] = {}
        self._proposal: ProposeIsr | None = None
        self._backoff_until_ms = NEVER_MS
        self.is_under_min_isr = True  # nothing commits and acks=all is rejected
        self._set_replicas(replicas, now_ms)
        self._advance(now_ms)

    # ── State ──

    @property
    def isr(self) -> tuple[int, ...]:
        """The last committed ISR known to this node."""
        return self._isr

    @property
    def replicas(self) -> tuple[int, ...]:
        return self._replicas

    @property
    def followers(self) -> dict[int, FollowerProgress]:
        """Progress of each replica except this node. Read only."""
        return self._followers

    @property
    def proposal(self) -> ProposeIsr | None:
        """The proposal in flight, if any."""
        return self._proposal

    @property
    def potential_leaders(self) -> frozenset[int]:
        """Replicas that may have become the leader without this node knowing."""
        return self._maximal_isr - {self._me}

    def is_known(self, replica: int, broker_epoch: int) -> bool:
        """Whether this is the broker epoch in the current image."""
        return self._broker_epoch_of(replica) == broker_epoch != NOT_ELIGIBLE

    @property
    def has_reached_epoch_start(self) -> bool:
        """Whether everything in the log at the start of this epoch is committed. Before that its end is not exposed."""
        return self.high_watermark >= self.epoch_start_offset

    @property
    def low_watermark(self) -> int:
        """Smallest log start offset of the replicas on live brokers; -1 until each has sent it."""
        return min(
            (each.log_start_offset for replica, each in self._followers.items() if self._is_eligible(replica)),
            default=2**63 - 1,
        )

    # ── Events ──

    def appended(self, end_offset: int, durable_offset: int, now_ms: float) -> None:
        """The log or its durable part has grown: new log end, and new end of this node's durable records."""
        self.end_offset = end_offset
        was_limiting = self._durable_offset <= self.high_watermark
        self._durable_offset = durable_offset
        if was_limiting:
            self._advance(now_ms)

    def append_undone(self, end_offset: int) -> None:
        """An append failed and was removed from the log before any follower fetched it."""
        self.end_offset = end_offset
        self._durable_offset = min(self._durable_offset, end_offset)
        self.high_watermark = min(self.high_watermark, end_offset)

    def follower_fetched(
        self, replica: int, broker_epoch: int, fetch_offset: int, now_ms: float, log_start_offset: int = NO_OFFSET
    ) -> ProposeIsr | None:
        """A follower fetched at `fetch_offset`, in this leader epoch and without divergence."""
        follower = self._followers.get(replica)
        if follower is None or broker_epoch < follower.broker_epoch:
            raise NotLeaderOrFollower(f"broker {replica} of epoch {broker_epoch} is not a replica of this partition")
        if fetch_offset > self.end_offset:
            raise OffsetOutOfRange(f"offset {fetch_offset} is beyond the log end {self.end_offset}")
        was_limiting = follower.end_offset <= self.high_watermark
        follower.broker_epoch = broker_epoch
        follower.log_start_offset = log_start_offset
        follower.fetched(fetch_offset, self.end_offset, now_ms)
        if was_limiting:
            self._advance(now_ms)
        if replica in self._maximal_isr:
            return None if fetch_offset >= self.high_watermark else self._propose_without_truncated(now_ms)
        return self._propose_with_joining(now_ms)

    def ticked(self, now_ms: float) -> ProposeIsr | None:
        """Time passed or brokers changed: shrink the ISR, or stop waiting for a replica."""
        self._advance(now_ms)
        if self._maximal_isr.difference(self._isr) and self._may_propose(now_ms):
            return self._repropose_committed_isr()
        return self._propose_without_lagging(now_ms) or self._propose_with_joining(now_ms)

    def min_isr_changed(self, min_isr: int, now_ms: float) -> None:
        self._min_isr = min_isr
        self._update_under_min_isr()
        self._advance(now_ms)

    def image_changed(
        self, partition_epoch: int, replicas: Sequence[int], isr: Sequence[int], now_ms: float
    ) -> ProposeIsr | None:
        """The image has a newer state of the partition in the same leader epoch."""
        if partition_epoch <= self.partition_epoch:
            return None
        self._commit(partition_epoch, isr)
        self._set_replicas(replicas, now_ms)
        self._advance(now_ms)
        return self._propose_with_joining(now_ms)

    def isr_accepted(
        self, proposal: ProposeIsr, partition_epoch: int, isr: Sequence[int], now_ms: float
    ) -> ProposeIsr | None:
        """The controller accepted the proposal; this is the new state of the partition."""
        if proposal is not self._proposal or partition_epoch < self.partition_epoch:
            return None
        self._commit(partition_epoch, isr)
        self._advance(now_ms)
        return self._propose_with_joining(now_ms)

    def isr_rejected(self, proposal: ProposeIsr, code: ErrorCode, now_ms: float) -> ProposeIsr | None:
        """The controller rejected the proposal. Any other error leaves the outcome unknown: send the proposal again."""
        if proposal is not self._proposal:
            return None
        if code in STALE_PROPOSAL:
            return None  # the image will bring the new state; until then the maximal ISR covers every possible outcome
        if code not in REJECTED:
            return proposal
        self._backoff_until_ms = now_ms + REJECTION_BACKOFF_MS
        self._proposal = None
        is_expansion = any(each not in self._isr for each in proposal.isr)
        return self._repropose_committed_isr() if is_expansion else None

    # ── High watermark ──

    def _advance(self, now_ms: float) -> None:
        if self.is_under_min_isr:
            return
        offset = self._durable_offset
        for replica, follower in self._followers.items():
            if follower.end_offset < offset and (replica in self._maximal_isr or self._is_joining(replica, now_ms)):
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
        return self._proposal is None and now_ms >= self._backoff_until_ms

    def _propose_with_joining(self, now_ms: float) -> ProposeIsr | None:
        """Propose adding followers that have reached the high watermark and the start of this epoch."""
        if not self._may_propose(now_ms):
            return None
        needed = max(self.high_watermark, self.epoch_start_offset)
        joining = tuple(
            replica
            for replica, each in self._followers.items()
            if replica not in self._maximal_isr
            and each.end_offset >= needed
            and each.broker_epoch == self._broker_epoch_of(replica) != NOT_ELIGIBLE
        )
        return self._propose(self._isr + joining) if joining else None

    def _propose_without_lagging(self, now_ms: float) -> ProposeIsr | None:
        """Propose removing followers that have not been caught up for too long."""
        return self._propose_only(lambda each: each.is_caught_up(self.end_offset, now_ms, self._lag_max_ms), now_ms)

    def _propose_without_truncated(self, now_ms: float) -> ProposeIsr | None:
        """Propose removing followers that fetched below the high watermark: they lost committed records."""
        return self._propose_only(
            lambda each: each.end_offset == NO_OFFSET or each.end_offset >= self.high_watermark, now_ms
        )

    def _propose_only(self, is_kept: Callable[[FollowerProgress], bool], now_ms: float) -> ProposeIsr | None:
        if not self._may_propose(now_ms):
            return None
        followers = self._followers
        isr = tuple(each for each in self._isr if each == self._me or (each in followers and is_kept(followers[each])))
        return self._propose(isr) if len(isr) < len(self._isr) else None

    def _propose(self, isr: tuple[int, ...]) -> ProposeIsr:
        epochs = tuple(self._known_broker_epoch(each) for each in isr)
        self._proposal = ProposeIsr(isr, epochs, self.leader_epoch, self.partition_epoch)
        self._maximal_isr = self._maximal_isr.union(isr)
        return self._proposal

    def _repropose_committed_isr(self) -> ProposeIsr:
        """Propose the committed ISR again, and keep counting the rejected replicas until the response.

        A duplicate of the rejected proposal may still arrive and be accepted; a new partition epoch rules that out.
        """
        self._proposal = ProposeIsr(self._isr, (NO_EPOCH,) * len(self._isr), self.leader_epoch, self.partition_epoch)
        return self._proposal

    def _known_broker_epoch(self, replica: int) -> int:
        follower = self._followers.get(replica)
        return self._broker_epoch_of(replica) if follower is None else follower.broker_epoch

    def _commit(self, partition_epoch: int, isr: Sequence[int]) -> None:
        self.partition_epoch = partition_epoch
        self._isr = tuple(isr)
        self._maximal_isr = frozenset(isr)
        self._proposal = None
        self._update_under_min_isr()

    def _set_replicas(self, replicas: Sequence[int], now_ms: float) -> None:
        self._replicas = tuple(replicas)
        known = self._followers
        self._followers = {
            each: known.get(each) or FollowerProgress(now_ms if each in self._maximal_isr else NEVER_MS)
            for each in replicas
            if each != self._me
        }
        self._update_under_min_isr()

    def _update_under_min_isr(self) -> None:
        self.is_under_min_isr = len(self._isr) < min(self._min_isr, len(self._replicas))

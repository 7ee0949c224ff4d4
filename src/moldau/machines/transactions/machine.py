"""The transactional ids of one shard, a partition of `__transaction_state`: decided by requests, changed by records."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from moldau.machines.decision import ASKER, Decision, Now, answered
from moldau.machines.transactions import end_txn, init_producer_id
from moldau.machines.transactions.description import described, listed
from moldau.machines.transactions.effects import SendMarkers
from moldau.machines.transactions.records import Record
from moldau.machines.transactions.settings import TransactionSettings
from moldau.machines.transactions.state import (
    BUMPS_EPOCH_FROM,
    EPOCH_MAX,
    PREPARED,
    SETTLED,
    ProducerIdentity,
    Transaction,
    TransactionsState,
    TransactionState,
    record_of,
)
from moldau.machines.transactions.sweeps import Sweep
from moldau.model.errors import (
    ErrorCode,
    InvalidProducerIdMapping,
    InvalidRequest,
    InvalidTransactionTimeout,
    InvalidTxnState,
    ProducerFenced,
)
from moldau.model.ids import NO_PRODUCER_EPOCH, ProducerId, TopicPartition
from moldau.wire import messages


class _Sent(NamedTuple):
    """Markers under way, and the partitions of which nobody has said that they have theirs."""

    markers: SendMarkers
    unmarked: dict[TopicPartition, None]


class TransactionsMachine:
    """What producers, admins and time ask of a shard.

    `state` is replicated; everything else is soft. Refusals are raised: `ProducerFenced` is `INVALID_PRODUCER_EPOCH` to
    clients of versions that do not know it, which is the handlers' business.
    """

    def __init__(
        self,
        settings: TransactionSettings,
        *,
        wall_ahead_ms: float = 0.0,
        coordinator_epoch: Callable[[], int] = lambda: 0,
    ) -> None:
        """`wall_ahead_ms` is by how much wall time is ahead of monotonic time, until a request tells it anew.

        `coordinator_epoch` gives the leader epoch of the shard's partition, by which markers of a former coordinator
        are refused.
        """
        self.settings = settings  # may be replaced while running
        self.state = TransactionsState()
        self._wall_ahead_ms = wall_ahead_ms
        self._coordinator_epoch = coordinator_epoch
        self._last_epochs: dict[str, int] = {}  # with which the last InitProducerId or EndTxn came: it may come again
        self._deadlines_ms: dict[str, float] = {}  # of ongoing transactions
        self._sent: dict[str, _Sent] = {}  # of prepared ones
        self._overdue = Sweep("overdue transactions", lambda: self.state.open)
        self._expired = Sweep("expired transactional ids", lambda: self.state.transactions)

    def apply(self, record: Record, offset: int) -> None:  # noqa: ARG002
        self.state.apply(record)

    # Producers

    def decide_init_producer_id(
        self,
        transactional_id: str,
        timeout_ms: int,
        *,
        expected: ProducerIdentity | None,
        fresh_producer_id: ProducerId | None = None,
        now: Now,
    ) -> Decision[Record, ProducerIdentity]:
        """A producer begins, and fences whoever had the id before it, or goes on after an error if it is `expected`.

        An open transaction is aborted first; meanwhile `ConcurrentTransactions` is the answer. Raises
        `ProducerIdNeeded` where there has to be a fresh id and none is given.
        """
        self._hear(now)
        self._check_initialise(transactional_id, timeout_ms)
        current = self.state.transactions.get(transactional_id)
        if current is None:
            current = Transaction(init_producer_id.needed(fresh_producer_id), NO_PRODUCER_EPOCH, timeout_ms)
            expected = None
        init_producer_id.check_expected(current, expected)
        if current.state in PREPARED:
            raise end_txn.concurrent()
        if current.state is TransactionState.ONGOING:
            return self._replace_producer(transactional_id, current, expected, now)
        transaction, last_epoch = init_producer_id.initialised(
            current, self._last_epoch(transactional_id, current), timeout_ms, expected, fresh_producer_id, now.wall_ms
        )
        self._last_epochs[transactional_id] = last_epoch
        return answered(transaction.identity, [record_of(transactional_id, transaction)])

    def _check_initialise(self, transactional_id: str, timeout_ms: int) -> None:
        if not transactional_id:
            raise InvalidRequest("A transactional id is needed.")
        if not 0 < timeout_ms <= self.settings.transaction_max_timeout_ms:
            raise InvalidTransactionTimeout(
                f"A transaction timeout is at most {self.settings.transaction_max_timeout_ms} ms here."
            )

    def _replace_producer(
        self, transactional_id: str, current: Transaction, expected: ProducerIdentity | None, now: Now
    ) -> Decision[Record, ProducerIdentity]:
        """The open transaction is aborted; whoever asked tries again until that is complete."""
        if expected is not None and expected != current.identity:
            raise ProducerFenced("A transaction was begun under another epoch since.")
        self._last_epochs[transactional_id] = NO_PRODUCER_EPOCH if expected is None else expected.epoch
        transaction = init_producer_id.fenced(current, now.wall_ms, is_replaced=expected is None)
        records, effects = self._prepare(transactional_id, transaction)
        return Decision(records, {ASKER: end_txn.concurrent()}, effects=effects)

    def decide_add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Sequence[TopicPartition],
        *,
        client_version: int,
        now: Now,
    ) -> Decision[Record, None]:
        """Partitions join the transaction, which begins with the first; all of them, or none and a refusal is raised.

        Offsets of a group join as the partition of `__consumer_offsets` that holds the group.
        """
        self._hear(now)
        current = self._of_producer(transactional_id, producer)
        added = dict.fromkeys(each for each in partitions if each not in current.partitions)
        if not added:
            return answered(None)
        is_begin = current.state is not TransactionState.ONGOING
        if is_begin:
            self._deadlines_ms[transactional_id] = now.ms + current.timeout_ms
        transaction = replace(
            current,
            state=TransactionState.ONGOING,
            partitions={**current.partitions, **added},
            previous_producer_id=current.producer_id,
            start_ms=now.wall_ms if is_begin else current.start_ms,
            last_update_ms=now.wall_ms,
            client_version=client_version,
        )
        return answered(None, [record_of(transactional_id, transaction)])

    def verify_partitions(
        self, transactional_id: str, producer: ProducerIdentity, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Whether each is part of the open transaction: `NONE`, or `TRANSACTION_ABORTABLE` where it is not."""
        current = self._of_producer(transactional_id, producer)
        return {
            each: ErrorCode.NONE if each in current.partitions else ErrorCode.TRANSACTION_ABORTABLE
            for each in partitions
        }

    def _of_producer(self, transactional_id: str, producer: ProducerIdentity) -> Transaction:
        """The id as its producer may write to it now."""
        current = self._known(transactional_id)
        end_txn.check_producer(current, producer)
        if current.state in PREPARED:
            raise end_txn.concurrent()
        return current

    def _known(self, transactional_id: str) -> Transaction:
        if not transactional_id:
            raise InvalidRequest("A transactional id is needed.")
        current = self.state.transactions.get(transactional_id)
        if current is None:
            raise InvalidProducerIdMapping(f"No producer has the transactional id {transactional_id}.")
        return current

    def decide_end(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        *,
        is_commit: bool,
        client_version: int,
        fresh_producer_id: ProducerId | None = None,
        now: Now,
    ) -> Decision[Record, ProducerIdentity]:
        """The transaction is committed or aborted; effects then tell its partitions.

        The answer is who the producer is from now on: from version 2 on its epoch is another after each transaction.
        The same request again gets the same answer. Raises `ProducerIdNeeded` where epochs are exhausted and no fresh
        id is given.
        """
        self._hear(now)
        current = self._known(transactional_id)
        if end_txn.is_repeated(current, producer, client_version):
            return self._end_again(transactional_id, current, is_commit, fresh_producer_id, now)
        current = self._of_producer(transactional_id, producer)
        bumps = client_version >= BUMPS_EPOCH_FROM
        is_empty = current.state is not TransactionState.ONGOING
        if is_empty and (is_commit or not bumps):
            raise InvalidTxnState("There is no transaction to end.")
        if is_empty:
            current = replace(current, start_ms=now.wall_ms)
        transaction = end_txn.prepared(
            current,
            is_commit=is_commit,
            client_version=client_version,
            fresh_producer_id=fresh_producer_id,
            wall_ms=now.wall_ms,
        )
        if bumps:
            self._last_epochs[transactional_id] = producer.epoch
        records, effects = self._prepare(transactional_id, transaction)
        return answered(transaction.identity, records, effects=effects)

    def _end_again(
        self,
        transactional_id: str,
        current: Transaction,
        is_commit: bool,
        fresh_producer_id: ProducerId | None,
        now: Now,
    ) -> Decision[Record, ProducerIdentity]:
        end_txn.check_outcome(current, is_commit=is_commit)
        if current.state in PREPARED:
            raise end_txn.concurrent()
        if current.epoch < EPOCH_MAX:
            return answered(current.identity)
        transaction = end_txn.rotated(current, fresh_producer_id, now.wall_ms)
        return answered(transaction.identity, [record_of(transactional_id, transaction)])

    # Markers

    def _prepare(self, transactional_id: str, transaction: Transaction) -> tuple[list[Record], list[SendMarkers]]:
        """The end of a transaction is decided: its partitions are told, or it is complete if it has none."""
        self._deadlines_ms.pop(transactional_id, None)
        if not transaction.partitions:
            return [record_of(transactional_id, end_txn.completed(transaction, transaction.last_update_ms))], []
        return [record_of(transactional_id, transaction)], [self._send_markers(transactional_id, transaction)]

    def _send_markers(self, transactional_id: str, transaction: Transaction) -> SendMarkers:
        markers = SendMarkers(
            transactional_id,
            transaction.producer_id,
            transaction.epoch,
            transaction.state is TransactionState.PREPARE_COMMIT,
            self._coordinator_epoch(),
            tuple(transaction.partitions),
            transaction.client_version,
        )
        self._sent[transactional_id] = _Sent(markers, dict(transaction.partitions))
        return markers

    def decide_markers_written(
        self, markers: SendMarkers, partitions: Sequence[TopicPartition], *, now: Now
    ) -> Decision[Record, None]:
        """These partitions need no marker of this effect any more; with the last, the transaction is complete.

        What is told twice, or of an effect that is not the last of its id, changes nothing: in version 1 another end
        may look just like it, so that only the effect itself tells them apart.
        """
        self._hear(now)
        transactional_id = markers.transactional_id
        sent = self._sent.get(transactional_id)
        if sent is None or sent.markers is not markers:
            return answered(None)
        for each in partitions:
            sent.unmarked.pop(each, None)
        if sent.unmarked:
            return answered(None)
        del self._sent[transactional_id]
        current = self.state.transactions[transactional_id]
        return answered(None, [record_of(transactional_id, end_txn.completed(current, now.wall_ms))])

    # Admins

    def describe(self, transactional_id: str) -> messages.DescribeTransactionsResponse.TransactionState:
        """The answer carries its error code."""
        return described(transactional_id, self.state.transactions.get(transactional_id))

    def list_transactions(
        self,
        *,
        states: Sequence[str] = (),
        producer_ids: Sequence[int] = (),
        longer_than_ms: int = -1,
        now: Now,
    ) -> list[messages.ListTransactionsResponse.TransactionState]:
        """All of them, or those in one of these states, of one of these producers, begun longer ago than that."""
        return listed(self.state.transactions, states, producer_ids, longer_than_ms, now.wall_ms)

    @property
    def open_count(self) -> int:
        """How many transactions have begun and are not complete."""
        return len(self.state.open)

    def oldest_open_ms(self, now: Now) -> int:
        """For how long the oldest open transaction has been so; 0 where there is none."""
        starts = (self.state.transactions[each].start_ms for each in self.state.open)
        return max(0, now.wall_ms - min(starts, default=now.wall_ms))

    # Time

    def decide_elected(self, now_ms: float) -> Decision[Record, None]:
        """Markers of all prepared ends are sent again; transactions time out as their records say."""
        now = self._now(now_ms)
        records: list[Record] = []
        effects: list[SendMarkers] = []
        for transactional_id in self.state.open:
            transaction = self.state.transactions[transactional_id]
            if transaction.state is TransactionState.ONGOING:
                self._deadlines_ms[transactional_id] = now.ms + _time_left_ms(transaction, now.wall_ms)
            else:
                more, markers = self._resume(transactional_id, transaction, now)
                records += more
                effects += markers
        timers = [
            self._overdue.next_due(self.settings.transaction_abort_timed_out_transaction_cleanup_interval_ms),
            self._expired.next_due(self.settings.transaction_remove_expired_transaction_cleanup_interval_ms),
        ]
        return Decision(records, timers=timers, effects=effects)

    def _resume(
        self, transactional_id: str, transaction: Transaction, now: Now
    ) -> tuple[list[Record], list[SendMarkers]]:
        """Which partitions have the marker nobody wrote down, so all of them get it again."""
        if not transaction.partitions:
            return [record_of(transactional_id, end_txn.completed(transaction, now.wall_ms))], []
        return [], [self._send_markers(transactional_id, transaction)]

    def decide_timed_out(self, event: Hashable, now_ms: float) -> Decision[Record, None]:
        now = self._now(now_ms)
        work = self._overdue.step(event, self.settings.transaction_abort_timed_out_transaction_cleanup_interval_ms)
        if work is not None:
            records, effects = self._abort_overdue(work[0], now)
            return Decision(records, timers=work[1], effects=effects)
        work = self._expired.step(event, self.settings.transaction_remove_expired_transaction_cleanup_interval_ms)
        if work is not None:
            return Decision(self._forget_expired(work[0], now), timers=work[1])
        raise AssertionError(f"nobody set a timer for {event}")

    def _abort_overdue(self, transactional_ids: Sequence[str], now: Now) -> tuple[list[Record], list[SendMarkers]]:
        records: list[Record] = []
        effects: list[SendMarkers] = []
        for transactional_id in transactional_ids:
            current = self.state.transactions.get(transactional_id)
            if current is None or self._deadlines_ms.get(transactional_id, now.ms) >= now.ms:
                continue
            self._last_epochs[transactional_id] = current.epoch  # its producer may go on, with the next epoch
            transaction = init_producer_id.fenced(current, now.wall_ms, is_replaced=False)
            more, markers = self._prepare(transactional_id, transaction)
            records += more
            effects += markers
        return records, effects

    def _forget_expired(self, transactional_ids: Sequence[str], now: Now) -> list[Record]:
        until_ms = now.wall_ms - self.settings.transactional_id_expiration_ms
        records = []
        for transactional_id in transactional_ids:
            current = self.state.transactions.get(transactional_id)
            if current is not None and current.state in SETTLED and current.last_update_ms <= until_ms:
                self._last_epochs.pop(transactional_id, None)
                records.append(record_of(transactional_id, None))
        return records

    def _last_epoch(self, transactional_id: str, current: Transaction) -> int:
        if transactional_id in self._last_epochs:
            return self._last_epochs[transactional_id]
        return init_producer_id.last_epoch_of(current)

    def _hear(self, now: Now) -> None:
        self._wall_ahead_ms = now.wall_ms - now.ms

    def _now(self, now_ms: float) -> Now:
        """A timer knows monotonic time alone; what the wall clock says then follows from the last request."""
        return Now(now_ms, round(now_ms + self._wall_ahead_ms))


def _time_left_ms(transaction: Transaction, wall_ms: int) -> float:
    """Another coordinator saw it begin; clocks may differ, but it never lasts longer than it would have from now."""
    return min(max(transaction.start_ms + transaction.timeout_ms - wall_ms, 0), transaction.timeout_ms)

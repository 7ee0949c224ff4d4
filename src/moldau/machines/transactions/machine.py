"""Transactions machine: the transactional ids of a shard (a partition of `__transaction_state`).

State machine of a transactional id, as in Kafka's TransactionMetadata:

    Empty --AddPartitions--> Ongoing --EndTxn--> PrepareCommit --markers written--> CompleteCommit
                                |                                                        |
                                +--EndTxn, timeout, InitProducerId--> PrepareAbort --> CompleteAbort
                                ^--------------------- AddPartitions --------------------+

The prepare record decides the outcome: once it is committed the transaction cannot change its mind. Only then does the
driver write markers (`SendMarkers`), and only when every partition has its marker is the complete record written. After
a failover `decide_elected` sends the markers of all prepared transactions again; writing a marker twice is harmless.

Soft state, rebuilt on election: deadlines of ongoing transactions, markers in flight, and the epoch of the last
InitProducerId or EndTxn, by which a retry of that request is recognized.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from moldau.machines.decision import REQUESTER, Decision, Now, respond
from moldau.machines.transactions import end_txn, init_producer_id
from moldau.machines.transactions.description import describe_transaction, list_matching
from moldau.machines.transactions.effects import SendMarkers
from moldau.machines.transactions.records import Record
from moldau.machines.transactions.settings import TransactionSettings
from moldau.machines.transactions.state import (
    EPOCH_BUMP_VERSION,
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


class _PendingMarkers(NamedTuple):
    """Markers in flight, and the partitions not yet reported as written."""

    markers: SendMarkers
    unmarked: dict[TopicPartition, None]


class TransactionsMachine:
    """Decisions for requests of producers and admin clients, and for timers.

    Only `state` is replicated. Rejected requests raise: handlers map `ProducerFenced` to `INVALID_PRODUCER_EPOCH` for
    client versions that do not know it.
    """

    def __init__(
        self,
        settings: TransactionSettings,
        *,
        wall_offset_ms: float = 0.0,
        coordinator_epoch: Callable[[], int] = lambda: 0,
    ) -> None:
        """`wall_offset_ms` is the offset of wall time to monotonic time, updated by each request.

        `coordinator_epoch` returns the leader epoch of the shard's partition; it fences markers of a former
        coordinator.
        """
        self.settings = settings  # may be replaced while running
        self.state = TransactionsState()
        self._wall_offset_ms = wall_offset_ms
        self._coordinator_epoch = coordinator_epoch
        self._last_epochs: dict[str, int] = {}  # of the last InitProducerId or EndTxn, to recognize a retry
        self._deadlines_ms: dict[str, float] = {}  # of ongoing transactions
        self._pending_markers: dict[str, _PendingMarkers] = {}  # of prepared transactions
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
        new_producer_id: ProducerId | None = None,
        now: Now,
    ) -> Decision[Record, ProducerIdentity]:
        """Start a producer and fence the previous owner of the id, or resume after an error if `expected` is given.

        An open transaction is aborted first; until that is complete the response is `ConcurrentTransactions`. Raises
        `ProducerIdNeeded` if a new id is required and not given.
        """
        self._sync_wall_clock(now)
        self._validate_init(transactional_id, timeout_ms)
        current = self.state.transactions.get(transactional_id)
        if current is None:
            current = Transaction(init_producer_id.require_producer_id(new_producer_id), NO_PRODUCER_EPOCH, timeout_ms)
            expected = None
        init_producer_id.check_expected(current, expected)
        if current.state in PREPARED:
            raise end_txn.concurrent_transactions()
        if current.state is TransactionState.ONGOING:
            return self._replace_producer(transactional_id, current, expected, now)
        transaction, last_epoch = init_producer_id.initialize(
            current, self._last_epoch(transactional_id, current), timeout_ms, expected, new_producer_id, now.wall_ms
        )
        self._last_epochs[transactional_id] = last_epoch
        return respond(transaction.identity, [record_of(transactional_id, transaction)])

    def _validate_init(self, transactional_id: str, timeout_ms: int) -> None:
        if not transactional_id:
            raise InvalidRequest("The transactional id is empty.")
        if not 0 < timeout_ms <= self.settings.transaction_max_timeout_ms:
            raise InvalidTransactionTimeout(
                f"Transaction timeout {timeout_ms} ms is not between 1 and "
                f"{self.settings.transaction_max_timeout_ms} ms."
            )

    def _replace_producer(
        self, transactional_id: str, current: Transaction, expected: ProducerIdentity | None, now: Now
    ) -> Decision[Record, ProducerIdentity]:
        """Abort the open transaction; the client retries until that is complete."""
        if expected is not None and expected != current.identity:
            raise ProducerFenced("A transaction has started with another epoch.")
        self._last_epochs[transactional_id] = NO_PRODUCER_EPOCH if expected is None else expected.epoch
        transaction = init_producer_id.fence_and_abort(current, now.wall_ms, is_replaced=expected is None)
        records, effects = self._prepare(transactional_id, transaction)
        return Decision(records, {REQUESTER: end_txn.concurrent_transactions()}, effects=effects)

    def decide_add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Sequence[TopicPartition],
        *,
        client_version: int,
        now: Now,
    ) -> Decision[Record, None]:
        """Add partitions to the transaction and begin it with the first ones; all or none.

        Offsets of a group count as the partition of `__consumer_offsets` that stores the group.
        """
        self._sync_wall_clock(now)
        current = self._validate_producer(transactional_id, producer)
        added = dict.fromkeys(each for each in partitions if each not in current.partitions)
        if not added:
            return respond(None)
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
        return respond(None, [record_of(transactional_id, transaction)])

    def verify_partitions(
        self, transactional_id: str, producer: ProducerIdentity, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Return for each partition `NONE` if it is in the open transaction, else `TRANSACTION_ABORTABLE`."""
        current = self._validate_producer(transactional_id, producer)
        return {
            each: ErrorCode.NONE if each in current.partitions else ErrorCode.TRANSACTION_ABORTABLE
            for each in partitions
        }

    def _validate_producer(self, transactional_id: str, producer: ProducerIdentity) -> Transaction:
        """Return the transaction if this producer may write to it now."""
        current = self._get_existing(transactional_id)
        end_txn.check_producer(current, producer)
        if current.state in PREPARED:
            raise end_txn.concurrent_transactions()
        return current

    def _get_existing(self, transactional_id: str) -> Transaction:
        if not transactional_id:
            raise InvalidRequest("The transactional id is empty.")
        current = self.state.transactions.get(transactional_id)
        if current is None:
            raise InvalidProducerIdMapping(f"Unknown transactional id {transactional_id}.")
        return current

    def decide_end(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        *,
        is_commit: bool,
        client_version: int,
        new_producer_id: ProducerId | None = None,
        now: Now,
    ) -> Decision[Record, ProducerIdentity]:
        """Commit or abort the transaction; effects write its markers.

        Returns the producer's identity for the next transaction: from version 2 on the epoch changes each time. A retry
        gets the same response. Raises `ProducerIdNeeded` if the epochs are exhausted and no new id is given.
        """
        self._sync_wall_clock(now)
        current = self._get_existing(transactional_id)
        if end_txn.is_retry(current, producer, client_version):
            return self._retry_end(transactional_id, current, is_commit, new_producer_id, now)
        current = self._validate_producer(transactional_id, producer)
        bumps = client_version >= EPOCH_BUMP_VERSION
        is_empty = current.state is not TransactionState.ONGOING
        if is_empty and (is_commit or not bumps):
            raise InvalidTxnState("There is no open transaction to end.")
        if is_empty:
            current = replace(current, start_ms=now.wall_ms)
        transaction = end_txn.prepare_end(
            current,
            is_commit=is_commit,
            client_version=client_version,
            new_producer_id=new_producer_id,
            wall_ms=now.wall_ms,
        )
        if bumps:
            self._last_epochs[transactional_id] = producer.epoch
        records, effects = self._prepare(transactional_id, transaction)
        return respond(transaction.identity, records, effects=effects)

    def _retry_end(
        self,
        transactional_id: str,
        current: Transaction,
        is_commit: bool,
        new_producer_id: ProducerId | None,
        now: Now,
    ) -> Decision[Record, ProducerIdentity]:
        end_txn.check_outcome(current, is_commit=is_commit)
        if current.state in PREPARED:
            raise end_txn.concurrent_transactions()
        if current.epoch < EPOCH_MAX:
            return respond(current.identity)
        transaction = end_txn.rotate_producer_id(current, new_producer_id, now.wall_ms)
        return respond(transaction.identity, [record_of(transactional_id, transaction)])

    # Markers

    def _prepare(self, transactional_id: str, transaction: Transaction) -> tuple[list[Record], list[SendMarkers]]:
        """Write the prepare record and send markers, or complete a transaction without partitions at once."""
        self._deadlines_ms.pop(transactional_id, None)
        if not transaction.partitions:
            return [record_of(transactional_id, end_txn.complete_end(transaction, transaction.last_update_ms))], []
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
        self._pending_markers[transactional_id] = _PendingMarkers(markers, dict(transaction.partitions))
        return markers

    def decide_markers_written(
        self, markers: SendMarkers, partitions: Sequence[TopicPartition], *, now: Now
    ) -> Decision[Record, None]:
        """Record partitions that need no marker any more; complete the transaction after the last.

        Ignores duplicates and reports of an earlier effect. The effect's identity decides: in version 1 two ends of the
        same id may be equal in every field.
        """
        self._sync_wall_clock(now)
        transactional_id = markers.transactional_id
        pending = self._pending_markers.get(transactional_id)
        if pending is None or pending.markers is not markers:
            return respond(None)
        for each in partitions:
            pending.unmarked.pop(each, None)
        if pending.unmarked:
            return respond(None)
        del self._pending_markers[transactional_id]
        current = self.state.transactions[transactional_id]
        return respond(None, [record_of(transactional_id, end_txn.complete_end(current, now.wall_ms))])

    # Admins

    def describe(self, transactional_id: str) -> messages.DescribeTransactionsResponse.TransactionState:
        """Describe a transactional id; an error is part of the response."""
        return describe_transaction(transactional_id, self.state.transactions.get(transactional_id))

    def list_transactions(
        self,
        *,
        states: Sequence[str] = (),
        producer_ids: Sequence[int] = (),
        longer_than_ms: int = -1,
        now: Now,
    ) -> list[messages.ListTransactionsResponse.TransactionState]:
        """List transactions, filtered by state, producer id and minimum age."""
        return list_matching(self.state.transactions, states, producer_ids, longer_than_ms, now.wall_ms)

    @property
    def open_count(self) -> int:
        """Number of transactions that have begun and are not complete."""
        return len(self.state.open)

    def oldest_open_age_ms(self, now: Now) -> int:
        """Age of the oldest open transaction; 0 if there is none."""
        starts = (self.state.transactions[each].start_ms for each in self.state.open)
        return max(0, now.wall_ms - min(starts, default=now.wall_ms))

    # Timers

    def decide_elected(self, now_ms: float) -> Decision[Record, None]:
        """Send the markers of all prepared transactions again; restore the timeouts of ongoing ones."""
        now = self._now(now_ms)
        records: list[Record] = []
        effects: list[SendMarkers] = []
        for transactional_id in self.state.open:
            transaction = self.state.transactions[transactional_id]
            if transaction.state is TransactionState.ONGOING:
                self._deadlines_ms[transactional_id] = now.ms + _remaining_timeout_ms(transaction, now.wall_ms)
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
        """Send markers to all partitions again: the log does not show which have been written."""
        if not transaction.partitions:
            return [record_of(transactional_id, end_txn.complete_end(transaction, now.wall_ms))], []
        return [], [self._send_markers(transactional_id, transaction)]

    def decide_timed_out(self, event: Hashable, now_ms: float) -> Decision[Record, None]:
        now = self._now(now_ms)
        work = self._overdue.step(event, self.settings.transaction_abort_timed_out_transaction_cleanup_interval_ms)
        if work is not None:
            records, effects = self._abort_overdue(work[0], now)
            return Decision(records, timers=work[1], effects=effects)
        work = self._expired.step(event, self.settings.transaction_remove_expired_transaction_cleanup_interval_ms)
        if work is not None:
            return Decision(self._expire_ids(work[0], now), timers=work[1])
        raise AssertionError(f"unknown timer {event}")

    def _abort_overdue(self, transactional_ids: Sequence[str], now: Now) -> tuple[list[Record], list[SendMarkers]]:
        records: list[Record] = []
        effects: list[SendMarkers] = []
        for transactional_id in transactional_ids:
            current = self.state.transactions.get(transactional_id)
            if current is None or self._deadlines_ms.get(transactional_id, now.ms) >= now.ms:
                continue
            self._last_epochs[transactional_id] = current.epoch  # the producer may continue with the next epoch
            transaction = init_producer_id.fence_and_abort(current, now.wall_ms, is_replaced=False)
            more, markers = self._prepare(transactional_id, transaction)
            records += more
            effects += markers
        return records, effects

    def _expire_ids(self, transactional_ids: Sequence[str], now: Now) -> list[Record]:
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

    def _sync_wall_clock(self, now: Now) -> None:
        self._wall_offset_ms = now.wall_ms - now.ms

    def _now(self, now_ms: float) -> Now:
        """Derive wall time for a timer from the last request: timers only carry monotonic time."""
        return Now(now_ms, round(now_ms + self._wall_offset_ms))


def _remaining_timeout_ms(transaction: Transaction, wall_ms: int) -> float:
    """Return the remaining timeout. Clocks of two coordinators may differ, but it never exceeds the full timeout."""
    return min(max(transaction.start_ms + transaction.timeout_ms - wall_ms, 0), transaction.timeout_ms)

"""Replicated state of a shard: its transactional ids. Only `apply` changes it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple

from moldau.machines.transactions.records import Record
from moldau.model.ids import NO_PRODUCER_ID, NO_TIMESTAMP, ProducerId, TopicPartition
from moldau.wire import messages

FIRST_EPOCH: Final = 0
EPOCH_MAX: Final = 2**15 - 1
EPOCH_EXHAUSTED: Final = EPOCH_MAX - 1
"""The last epoch that a producer may use: one more is reserved for fencing it."""

EPOCH_BUMP_VERSION: Final = 2
"""The transaction version since which each transaction has its own epoch (KIP-890)."""


class TransactionState(IntEnum):
    """State of a transactional id, with Kafka's numbers. The last two are never written to the log."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def kafka_name(self) -> str:
        """The name shown to admin clients, such as PrepareCommit."""
        return _KAFKA_NAMES[self]


_KAFKA_NAMES: Final = {each: each.name.title().replace("_", "") for each in TransactionState}
PREPARED: Final = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
COMPLETED: Final = (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
NEVER_WRITTEN: Final = (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE)
SETTLED: Final = (TransactionState.EMPTY, *COMPLETED)
"""No transaction is open: the next may begin, and the id may expire."""


class ProducerIdentity(NamedTuple):
    """Identity under which a producer writes: partitions fence all earlier epochs of the id."""

    producer_id: ProducerId
    epoch: int


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transactional id: its producer, and its current or last transaction."""

    producer_id: ProducerId
    epoch: int
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: Mapping[TopicPartition, None] = field(default_factory=dict)  # an ordered set
    previous_producer_id: ProducerId = NO_PRODUCER_ID  # before the last change
    next_producer_id: ProducerId = NO_PRODUCER_ID  # takes effect when the prepared end completes
    start_ms: int = NO_TIMESTAMP  # wall time
    last_update_ms: int = NO_TIMESTAMP  # wall time
    client_version: int = 0  # transaction version of the client's last request

    @property
    def identity(self) -> ProducerIdentity:
        """The identity last returned to the producer: the one after a prepared end, not the one of its markers."""
        if self.next_producer_id != NO_PRODUCER_ID:
            return ProducerIdentity(self.next_producer_id, FIRST_EPOCH)
        return ProducerIdentity(self.producer_id, self.epoch)


class TransactionsState:
    """The transactional ids of a shard, and which of them have an open transaction."""

    __slots__ = ("open", "transactions")

    def __init__(self) -> None:
        self.transactions: dict[str, Transaction] = {}
        self.open: dict[str, None] = {}  # ongoing or prepared

    def apply(self, record: Record) -> None:
        """Apply a record."""
        key, value = record
        transactional_id = key.transactional_id
        if value is None:
            self.transactions.pop(transactional_id, None)
            self.open.pop(transactional_id, None)
            return
        transaction = self.transactions[transactional_id] = transaction_from(value)
        if transaction.state in SETTLED:
            self.open.pop(transactional_id, None)
        else:
            self.open[transactional_id] = None

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, TransactionsState) and self.transactions == other.transactions and self.open == other.open
        )

    __hash__ = None  # type: ignore[assignment]


def record_of(transactional_id: str, transaction: Transaction | None) -> Record:
    """Return the record that sets the state of a transactional id, or its tombstone."""
    key = messages.TransactionLogKey(transactional_id=transactional_id)
    return key, None if transaction is None else _value_of(transaction)


def _value_of(transaction: Transaction) -> messages.TransactionLogValue:
    return messages.TransactionLogValue(
        producer_id=transaction.producer_id,
        previous_producer_id=transaction.previous_producer_id,
        next_producer_id=transaction.next_producer_id,
        producer_epoch=transaction.epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state,
        transaction_partitions=None if transaction.state is TransactionState.EMPTY else _by_topic(transaction),
        transaction_last_update_timestamp_ms=transaction.last_update_ms,
        transaction_start_timestamp_ms=transaction.start_ms,
        client_transaction_version=transaction.client_version,
    )


def _by_topic(transaction: Transaction) -> list[messages.TransactionLogValue.PartitionsSchema]:
    topics: dict[str, list[int]] = {}
    for topic, partition in transaction.partitions:
        topics.setdefault(topic, []).append(partition)
    return [
        messages.TransactionLogValue.PartitionsSchema(topic=topic, partition_ids=partitions)
        for topic, partitions in topics.items()
    ]


def transaction_from(value: messages.TransactionLogValue) -> Transaction:
    """Parse a record value. Raises ValueError for a state that is never written: such a log is corrupt."""
    state = TransactionState(value.transaction_status)
    if state in NEVER_WRITTEN:
        raise ValueError(f"invalid state {state.kafka_name} in the transaction log")
    return Transaction(
        producer_id=ProducerId(value.producer_id),
        epoch=value.producer_epoch,
        timeout_ms=value.transaction_timeout_ms,
        state=state,
        partitions={
            TopicPartition(each.topic, partition): None
            for each in value.transaction_partitions or ()
            for partition in each.partition_ids
        },
        previous_producer_id=ProducerId(value.previous_producer_id),
        next_producer_id=ProducerId(value.next_producer_id),
        start_ms=value.transaction_start_timestamp_ms,
        last_update_ms=value.transaction_last_update_timestamp_ms,
        client_version=value.client_transaction_version,
    )

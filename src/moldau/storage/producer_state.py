"""Producer state of a partition: detects duplicates, sequence gaps and fenced epochs, and tracks open transactions.

Per producer id it keeps the epoch, the last five batches (an idempotent producer has at most five in flight) and the
start of an open transaction. `check` validates a batch before its append; `appended` and `ended` apply what is in the
log, without checks, so replication and recovery rebuild exactly the same state.

Two sets of transactions bound the last stable offset: open ones, and ended ones whose marker is above the high
watermark. A transaction leaves the second set only when its marker is committed; before that a truncation could still
reopen it.

The state is rebuilt from the latest snapshot plus the batches after it (see recovery.py). It is bounded: producers
expire after producer.id.expiration.ms, and beyond PRODUCERS_MAX the longest idle ones are evicted.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from moldau.model.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    OutOfOrderSequence,
    TransactionCoordinatorFenced,
)
from moldau.model.ids import NO_OFFSET, NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_TIMESTAMP
from moldau.model.units import DAY_MS
from moldau.records.control import ControlType, iterate_control_records, read_coordinator_epoch
from moldau.records.header import (
    ATTRIBUTES_FIELD,
    BASE_SEQUENCE_FIELD,
    LAST_OFFSET_DELTA_FIELD,
    PRODUCER_EPOCH_FIELD,
    PRODUCER_ID_FIELD,
    SEQUENCE_MODULUS,
    TRANSACTIONAL,
    BatchHeader,
    Buffer,
)
from moldau.storage.transaction_index import AbortedTransaction
from moldau.storage.transaction_verification import VerificationEntries

BATCHES_KEPT: Final = 5  # maximum in flight for an idempotent producer
PRODUCERS_MAX: Final = 20_000  # per partition; beyond it the longest idle ones are evicted
_EVICTION_COUNT: Final = PRODUCERS_MAX // 16
EPOCH_BUMP_VERSION: Final = (
    2  # the version of transactions whose markers carry the epoch that follows the transaction's
)
_new_tuple = tuple.__new__


class AppendedBatch(NamedTuple):
    """One of a producer's last batches."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


class Marker(NamedTuple):
    """The contents of an end transaction marker."""

    is_abort: bool
    coordinator_epoch: int


def read_marker(batch: Buffer) -> Marker | None:
    """Parse an end transaction marker; None for other control batches and those emptied by compaction."""
    for kind, record in iterate_control_records(batch):
        if kind in (ControlType.ABORT, ControlType.COMMIT):
            return Marker(kind is ControlType.ABORT, read_coordinator_epoch(record.value))
    return None


@dataclass(slots=True)
class Producer:
    """State of a producer id in this partition."""

    epoch: int = NO_PRODUCER_EPOCH
    next_sequence: int = 0
    last_timestamp: int = NO_TIMESTAMP
    last_seen_ms: int = NO_TIMESTAMP  # local clock: a producer of old records is not idle
    coordinator_epoch: int = -1
    transaction_start: int = NO_OFFSET
    batches: list[AppendedBatch] = field(default_factory=list)  # the last few; a deque would take 600 bytes more

    def find_duplicate(self, header: BatchHeader) -> AppendedBatch | None:
        last_sequence = header.last_sequence
        for batch in self.batches:
            if batch.first_sequence == header.base_sequence and batch.last_sequence == last_sequence:
                return batch
        return None


class Producers:
    """All producers of a partition."""

    __slots__ = ("_ended", "_open", "by_id", "end_offset", "expiration_ms", "known_from", "now_ms", "verifications")

    def __init__(self, expiration_ms: int = DAY_MS, now_ms: int = 0) -> None:
        self.now_ms = now_ms  # set by the caller of appends
        self.by_id: dict[int, Producer] = {}
        self.verifications = VerificationEntries()
        self.end_offset = 0  # the state covers the log up to here
        self.known_from = 0  # transaction ends below are unknown
        self.expiration_ms = expiration_ms
        self._open: dict[int, int] = {}  # first offset by producer id, in offset order
        self._ended: list[tuple[int, int]] = []  # (first offset, marker offset) above the high watermark

    def check(self, header: BatchHeader) -> AppendedBatch | None:
        """Return the duplicate of a batch, or None if the batch is next; raises otherwise."""
        producer = self.by_id.get(header[PRODUCER_ID_FIELD])
        if producer is None:
            return None  # unknown or expired: any sequence is valid, as in Kafka
        epoch, sequence = header[PRODUCER_EPOCH_FIELD], header[BASE_SEQUENCE_FIELD]
        if epoch == producer.epoch:
            if sequence != producer.next_sequence and sequence >= 0:
                duplicate = producer.find_duplicate(header)
                if duplicate is not None:
                    return duplicate
                raise OutOfOrderSequence(
                    f"producer {header.producer_id} sent sequence {sequence}, expected {producer.next_sequence}"
                )
        elif epoch < producer.epoch:
            raise InvalidProducerEpoch(
                f"producer {header.producer_id} sent epoch {epoch}, current epoch is {producer.epoch}"
            )
        elif sequence > 0:
            raise OutOfOrderSequence(
                f"producer {header.producer_id} starts epoch {epoch} with sequence {sequence} instead of 0"
            )
        if producer.transaction_start >= 0 and not header[ATTRIBUTES_FIELD] & TRANSACTIONAL:
            raise InvalidTxnState(
                f"producer {header.producer_id} has an open transaction but sent a non-transactional batch"
            )
        return None

    def appended(
        self,
        producer_id: int,
        epoch: int,
        sequence: int,
        base_offset: int,
        last_offset: int,
        max_timestamp: int,
        attributes: int,
    ) -> None:
        """Apply a data batch in the log; without checks, for replication and recovery too."""
        producer = self.by_id.get(producer_id)
        if producer is None:
            producer = self._add(producer_id)
        if epoch != producer.epoch:
            producer.epoch = epoch
            producer.batches.clear()
            producer.next_sequence = 0
        if sequence >= 0:
            last_sequence = (sequence + last_offset - base_offset) % SEQUENCE_MODULUS
            producer.next_sequence = (last_sequence + 1) % SEQUENCE_MODULUS
        else:
            last_sequence = NO_SEQUENCE
        batches = producer.batches
        batches.append(_new_tuple(AppendedBatch, (sequence, last_sequence, base_offset, last_offset, max_timestamp)))
        if len(batches) > BATCHES_KEPT:
            del batches[0]
        producer.last_timestamp = max_timestamp
        producer.last_seen_ms = self.now_ms
        if attributes & TRANSACTIONAL and producer.transaction_start < 0:
            producer.transaction_start = base_offset
            self._open[producer_id] = base_offset
            self.verifications.discard(producer_id)

    def appended_batch(self, header: BatchHeader, base_offset: int, max_timestamp: int) -> None:
        """Apply a data batch given its header."""
        last_offset = base_offset + header[LAST_OFFSET_DELTA_FIELD]
        self.appended(
            header[PRODUCER_ID_FIELD],
            header[PRODUCER_EPOCH_FIELD],
            header[BASE_SEQUENCE_FIELD],
            base_offset,
            last_offset,
            max_timestamp,
            header[ATTRIBUTES_FIELD],
        )

    def _add(self, producer_id: int) -> Producer:
        if len(self.by_id) >= PRODUCERS_MAX:
            self.evict_idle(_EVICTION_COUNT)
        producer = self.by_id[producer_id] = Producer()
        return producer

    def evict_idle(self, count: int) -> None:
        """Evict the longest idle producers without an open transaction."""
        idle = ((each.last_seen_ms, key) for key, each in self.by_id.items() if each.transaction_start < 0)
        for _, producer_id in heapq.nsmallest(count, idle):
            del self.by_id[producer_id]

    def is_in_transaction(self, producer_id: int, epoch: int) -> bool:
        """Whether a transaction of this epoch is open, so that the next batch is part of it."""
        producer = self.by_id.get(producer_id)
        return producer is not None and producer.transaction_start >= 0 and producer.epoch == epoch

    def check_verified(self, header: BatchHeader) -> None:
        """Reject a transactional batch outside a verified transaction, unless it is a duplicate.

        A sequence error takes precedence: only that makes the producer reset.
        """
        if self.check(header) is None:
            self.check_in_transaction(header.producer_id, header.producer_epoch, header.base_sequence)

    def check_in_transaction(self, producer_id: int, epoch: int, sequence: int = NO_SEQUENCE) -> None:
        """Reject a fenced producer, and one without an open or verified transaction."""
        producer = self.by_id.get(producer_id)
        if producer is not None and epoch < producer.epoch:
            raise InvalidProducerEpoch(f"producer {producer_id} sent epoch {epoch}, current epoch is {producer.epoch}")
        if self.is_in_transaction(producer_id, epoch):
            return
        verification = self.verifications.verified(producer_id, epoch)
        if verification is None:
            raise InvalidTxnState(f"producer {producer_id} has no open transaction in this partition")
        if sequence > verification.lowest_sequence:
            raise OutOfOrderSequence(
                f"producer {producer_id} starts a transaction with sequence {sequence}, but has sent "
                f"{verification.lowest_sequence} before"
            )

    def check_end(self, producer_id: int, epoch: int, coordinator_epoch: int, transaction_version: int) -> bool:
        """Return whether to write a marker; False if it is a duplicate. Raises for another transaction."""
        producer = self.by_id.get(producer_id)
        if producer is None:
            return True
        if coordinator_epoch < producer.coordinator_epoch:
            raise TransactionCoordinatorFenced(
                f"a marker of producer {producer_id} has coordinator epoch {coordinator_epoch}, "
                f"current is {producer.coordinator_epoch}"
            )
        if epoch > producer.epoch:
            return True
        if epoch < producer.epoch or (transaction_version >= EPOCH_BUMP_VERSION and producer.transaction_start >= 0):
            raise InvalidProducerEpoch(
                f"a marker of producer {producer_id} has epoch {epoch}, current is {producer.epoch}"
            )
        return transaction_version < EPOCH_BUMP_VERSION

    def check_marker(self, header: BatchHeader) -> None:
        """Reject a marker of a fenced epoch."""
        producer = self.by_id.get(header.producer_id)
        if producer is not None and header.producer_epoch < producer.epoch:
            raise InvalidProducerEpoch(
                f"a marker of producer {header.producer_id} has epoch {header.producer_epoch}, "
                f"current is {producer.epoch}"
            )

    def ended(self, header: BatchHeader, offset: int, marker: Marker) -> AbortedTransaction | None:
        """Apply a marker in the log at `offset`. Returns the transaction index entry of an abort."""
        producer_id = header.producer_id
        producer = self.by_id.get(producer_id)
        if producer is None:
            producer = self._add(producer_id)
        if header.producer_epoch != producer.epoch:
            producer.epoch = header.producer_epoch
            producer.batches.clear()
            producer.next_sequence = 0
        producer.coordinator_epoch = marker.coordinator_epoch
        producer.last_timestamp = header.max_timestamp
        producer.last_seen_ms = self.now_ms
        producer.transaction_start = NO_OFFSET
        self.verifications.discard(producer_id)
        first_offset = self._open.pop(producer_id, None)
        if first_offset is None:
            return None  # a transaction without records here
        self._ended.append((first_offset, offset))
        if not marker.is_abort:
            return None
        stable = next(iter(self._open.values()), offset + 1)
        return AbortedTransaction(producer_id, first_offset, offset, stable)

    @property
    def first_unstable_offset(self) -> int | None:
        """Return the first offset of a transaction that is open or whose marker is not committed."""
        first_open = next(iter(self._open.values()), None)
        if not self._ended:
            return first_open
        first_ended = min(first for first, _ in self._ended)
        return first_ended if first_open is None else min(first_open, first_ended)

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the last stable offset: every transaction below has a committed marker."""
        if self._ended:
            self._ended = self.unreplicated_from(high_watermark)
        if not self._open and not self._ended:
            return high_watermark
        unstable = self.first_unstable_offset
        return high_watermark if unstable is None else min(unstable, high_watermark)

    def unreplicated_from(self, offset: int) -> list[tuple[int, int]]:
        """Return first and marker offset of the transactions ended at an offset or later, as far as known."""
        return [each for each in self._ended if each[1] >= offset]

    def restore_unreplicated(self, ends: Iterable[tuple[int, int]], known_from: int) -> None:
        """Restore ended transactions that the snapshot lacks; below `known_from` there may be more."""
        self._ended.extend(ends)
        self.known_from = known_from

    def expire(self, now_ms: int) -> None:
        """Expire idle producers without an open transaction."""
        horizon = now_ms - self.expiration_ms
        silent = [
            key for key, each in self.by_id.items() if each.last_seen_ms <= horizon and each.transaction_start < 0
        ]
        for producer_id in silent:
            del self.by_id[producer_id]
        self.verifications.expire(horizon)

    def load(self, entries: Iterable[tuple[int, Producer]], end_offset: int, now_ms: int) -> None:
        """Replace the state with a snapshot's, without expired producers."""
        self.clear(end_offset)
        self.by_id.update(entries)
        started = [(each.transaction_start, key) for key, each in self.by_id.items() if each.transaction_start >= 0]
        self._open = {producer_id: first_offset for first_offset, producer_id in sorted(started)}
        self.expire(now_ms)

    def restore_recent(self, producer_id: int, batches: list[AppendedBatch]) -> None:
        """Restore the batches before a producer's last one, if they lead up to it."""
        producer = self.by_id[producer_id]
        if producer.batches and batches[-1].last_offset == producer.batches[-1].last_offset:
            producer.batches = batches[-BATCHES_KEPT:]

    def replace_with(self, other: "Producers", end_offset: int) -> None:
        """Take over the state of `other`, which must not be used afterwards."""
        self.clear(end_offset)
        self.by_id, self._open, self._ended = other.by_id, other._open, other._ended
        self.known_from = other.known_from

    def clear(self, end_offset: int) -> None:
        self.by_id = {}
        self._open = {}
        self._ended = []
        self.verifications.clear()
        self.end_offset = self.known_from = end_offset

    def last_offsets(self) -> dict[int, tuple[int, int]]:
        """Return each producer's last data offset (-1 if only a marker is left) and epoch, kept by compaction."""
        return {
            key: (each.batches[-1].last_offset if each.batches else NO_OFFSET, each.epoch)
            for key, each in self.by_id.items()
        }

"""Retention rules of compaction within a batch: the newest record of each key, tombstones until they expire, and the
state of producers and transactions."""

from collections.abc import Iterable
from dataclasses import dataclass

from moldau.model.errors import CorruptMessage
from moldau.model.ids import NO_OFFSET
from moldau.records.builder import build_batch
from moldau.records.header import BatchHeader
from moldau.records.record import Record, iterate_records
from moldau.storage.offset_map import OffsetMap
from moldau.storage.producer_state import read_marker
from moldau.storage.segment import NEVER
from moldau.storage.transaction_index import AbortedTransaction


class CleanedTransactions:
    """The transactions of a cleaning pass: aborted records, and markers that are still needed."""

    __slots__ = ("_aborted", "_committed", "_seen", "_upcoming", "kept")

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._upcoming = sorted(aborted, key=lambda each: -each.first_offset)  # next one last
        self._aborted: dict[int, AbortedTransaction] = {}
        self._committed: set[int] = set()
        self._seen: set[int] = set()  # aborted ones with a batch seen in this pass
        self.kept: list[AbortedTransaction] = []  # those with a batch still in the log

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether a data batch belongs to an aborted transaction."""
        self._advance_to(header.last_offset)
        if not header.is_transactional:
            return False
        if header.producer_id in self._aborted:
            self._seen.add(header.producer_id)
            return True
        self._committed.add(header.producer_id)
        return False

    def is_removable(self, header: BatchHeader, batch: memoryview) -> bool:
        """Whether the log has no more records of the transaction that this marker ends."""
        self._advance_to(header.last_offset)
        marker = read_marker(batch)
        if marker is None:
            return header.records_count == 0  # emptied before; other control records stay
        if not marker.is_abort:
            was_met = header.producer_id in self._committed
            self._committed.discard(header.producer_id)
            return not was_met
        transaction = self._aborted.pop(header.producer_id, None)
        if transaction is None or header.producer_id not in self._seen:
            return True
        self._seen.discard(header.producer_id)
        self.kept.append(transaction)
        return False

    def _advance_to(self, offset: int) -> None:
        while self._upcoming and self._upcoming[-1].first_offset <= offset:
            transaction = self._upcoming.pop()
            self._aborted.setdefault(transaction.producer_id, transaction)


def read_ordered_records(header: BatchHeader, batch: memoryview) -> list[Record]:
    """Read records; raises `CorruptMessage` if their offsets are out of order, as the newest could not be determined.

    Records produced while the topic was not compacted have not been validated for this.
    """
    records = list(iterate_records(batch))
    next_offset = header.base_offset
    for record in records:
        if not next_offset <= record.offset <= header.last_offset:
            raise CorruptMessage(f"a record of the batch at offset {header.base_offset} has offset {record.offset}")
        next_offset = record.offset + 1
    return records


@dataclass(slots=True)
class BatchFilter:
    """Decides per batch, in log order."""

    newest: OffsetMap
    transactions: CleanedTransactions
    last_of_producers: dict[int, tuple[int, int]]  # last data offset and epoch by producer id
    end_offset: int  # of this round
    now_ms: int
    delete_retention_ms: int

    def retain(self, header: BatchHeader, batch: memoryview) -> bytes | bytearray | memoryview | None:
        """Return the retained batch: unchanged, with fewer records, empty, or None."""
        is_discarded, is_removable_marker = self._classify(header, batch)
        if header.base_offset >= self.newest.end_offset:
            return batch  # outside this round, though in the same segment
        must_stay = self._is_last_of_producer(header) or header.next_offset == self.end_offset
        if is_discarded:
            return self._empty_batch(header) if must_stay else None
        records = read_ordered_records(header, batch)
        kept = records if header.is_control else [each for each in records if self._retains(header, each)]
        if not kept:
            return self._empty_batch(header) if must_stay else None
        starts_horizon = header.delete_horizon_ms is None and (
            is_removable_marker or any(record.value is None for record in kept)
        )
        if len(kept) == len(records) and not starts_horizon:
            return batch
        horizon_ms = min(self.now_ms + self.delete_retention_ms, NEVER) if starts_horizon else header.delete_horizon_ms
        return self._rebuild(header, kept, horizon_ms)

    def _classify(self, header: BatchHeader, batch: memoryview) -> tuple[bool, bool]:
        """Return whether all records of a batch are removed, and whether it is a marker of a removed transaction."""
        if not header.is_control:
            return self.transactions.is_aborted(header), False
        is_removable = self.transactions.is_removable(header, batch)
        return is_removable and self._is_past(header.delete_horizon_ms), is_removable

    def _is_past(self, horizon_ms: int | None) -> bool:
        return horizon_ms is not None and horizon_ms <= self.now_ms

    def _retains(self, header: BatchHeader, record: Record) -> bool:
        if record.key is None or not self.newest.is_newest(record.key, record.offset):
            return False
        return record.value is not None or not self._is_past(header.delete_horizon_ms)

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        """The last batch of an active producer carries its sequence, or its epoch if only a marker is left; keep it."""
        last = self.last_of_producers.get(header.producer_id)
        if last is None or header.producer_id < 0:
            return False
        last_data_offset, epoch = last
        if last_data_offset != NO_OFFSET:
            return header.last_offset == last_data_offset
        return header.is_control and header.producer_epoch == epoch

    def _empty_batch(self, header: BatchHeader) -> bytearray:
        return self._rebuild(header, [], None)

    def _rebuild(self, header: BatchHeader, records: list[Record], horizon_ms: int | None) -> bytearray:
        return build_batch(
            records,
            base_offset=header.base_offset,
            compression=header.compression,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            is_transactional=header.is_transactional,
            is_control=header.is_control,
            leader_epoch=header.partition_leader_epoch,
            log_append_time_ms=header.max_timestamp if header.has_log_append_time else None,
            last_offset_delta=header.last_offset_delta,
            max_timestamp=None if records else header.max_timestamp,
            delete_horizon_ms=horizon_ms,
        )

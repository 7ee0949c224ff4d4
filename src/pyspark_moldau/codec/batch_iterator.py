"""Iterates over the valid batches of a Fetch response: CRC checked, not aborted, within the requested range."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from moldau.client.types import AbortedTransaction
from moldau.model.errors import CorruptMessage
from moldau.records.control import ControlType, read_control_type
from moldau.records.header import BatchHeader, Buffer, checksum
from moldau.records.record import iterate_batches, iterate_records


class Batch(NamedTuple):
    """One complete batch, still compressed, and its position in the response."""

    header: BatchHeader
    content: memoryview
    start: int


@dataclass(slots=True)
class BatchIterator:
    """The batches of one response. After the iteration, `next_offset` is the offset of the next fetch."""

    records: Buffer
    from_offset: int
    until_offset: int
    aborted: Iterable[AbortedTransaction] = ()
    next_offset: int = -1
    _aborted_producers: dict[int, None] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Batch]:
        """Yield batches with requested records. A partial batch at the end is left for the next fetch."""
        waiting = sorted(self.aborted, key=lambda each: each.first_offset, reverse=True)
        self.next_offset = self.from_offset
        end = 0
        for header, content in iterate_batches(self.records):
            _check(header, content)
            start, end = end, end + len(content)
            self.next_offset = max(self.next_offset, header.next_offset)
            while waiting and waiting[-1].first_offset <= header.last_offset:
                self._aborted_producers[waiting.pop().producer_id] = None
            if self._is_wanted(header, content):
                yield Batch(header, content, start)

    def _is_wanted(self, header: BatchHeader, content: memoryview) -> bool:
        if header.is_control:
            if header.producer_id in self._aborted_producers and _is_abort(content):
                del self._aborted_producers[header.producer_id]
            return False
        if header.is_transactional and header.producer_id in self._aborted_producers:
            return False
        is_in_range = header.base_offset < self.until_offset and header.last_offset >= self.from_offset
        return is_in_range and header.records_count > 0


def _check(header: BatchHeader, content: memoryview) -> None:
    computed = checksum(content, 0, len(content))
    if computed != header.crc:
        raise CorruptMessage(
            f"the batch at offset {header.base_offset} has CRC {header.crc:#010x}, computed {computed:#010x}"
        )
    # Compaction removes records but keeps the offset range, so there may be fewer records than offsets.
    if header.base_offset < 0 or not 0 <= header.records_count <= header.last_offset_delta + 1:
        raise CorruptMessage(
            f"the batch at offset {header.base_offset} claims {header.records_count} records "
            f"and a last offset delta of {header.last_offset_delta}"
        )


def _is_abort(content: memoryview) -> bool:
    return any(read_control_type(record.key) is ControlType.ABORT for record in iterate_records(content))

"""Condenses a range of a coordinator's log in a worker process: fewer batches with the same result when replayed.

Only the newest record of each key is kept. Tombstones are kept as well, because the key may occur before the range,
and so is the first marker of each producer, whose transaction may have started before it. So ranges can be condensed
one by one and replayed in order, each within its memory limit.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, NamedTuple

from moldau.broker.coordinators.key_compaction import NewestValues
from moldau.model.errors import KafkaError
from moldau.model.ports import Disk
from moldau.model.units import MiB
from moldau.records.builder import build_batch
from moldau.records.header import BatchHeader
from moldau.records.record import Record
from moldau.storage.log_range import LogRange

CONDENSED_BYTES_MAX: Final = 4 * MiB
SIZE_CHECK_BYTES: Final = MiB  # of the log, between two checks of the size
BATCHES_AT_ONCE: Final = 256
BATCH_OFFSETS: Final = 32  # offset range of one batch, which bounds the work of reading one
RECORD_OVERHEAD_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class CondensingJob:
    """The picklable argument of `condense`."""

    name: str  # of the log, for error messages
    log_range: LogRange
    condensed_bytes_max: int = CONDENSED_BYTES_MAX


class Condensed(NamedTuple):
    """Condensed batches, and the offset after the originals. One bytes object: the event loop gets it in one copy."""

    batches: bytes
    next_offset: int


def condense(disk: Disk, job: CondensingJob) -> Condensed | None:
    """Condense the range, or as much of it as fits the limit. None if it cannot be read: the event loop then reads it
    and reports the error."""
    newest = CondensedValues(job.name)
    next_offset = -1
    try:
        for piece in job.log_range.pieces:
            batches = job.log_range.read(disk, piece)
            position = checked = 0
            while position < len(batches):
                position, next_offset = newest.add(batches, position, BATCHES_AT_ONCE)
                if position - checked >= SIZE_CHECK_BYTES or position == len(batches):
                    checked = position
                    if newest.size_bytes >= job.condensed_bytes_max:
                        return Condensed(newest.batches(), next_offset)
    except (OSError, KafkaError):
        return None
    return Condensed(newest.batches(), next_offset)


class CondensedValues(NewestValues):
    """The newest values, plus tombstones and markers that matter to earlier ranges."""

    __slots__ = ("_ends", "_tombstones")

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._tombstones: dict[bytes, int] = {}  # offsets of tombstones
        self._ends: dict[int, bytes] = {}  # by producer, its first marker

    @property
    def size_bytes(self) -> int:
        """The approximate length of `batches`."""
        settled = sum(len(key) + len(value) for key, (_, value) in self._newest.items())
        pending = sum(
            len(key) + len(each.value or b"") + RECORD_OVERHEAD_BYTES
            for records in self._pending.values()
            for key, each in records.items()
        )
        tombstones = sum(map(len, self._tombstones))
        ends = sum(map(len, self._ends.values()))
        return (
            settled + pending + tombstones + ends + RECORD_OVERHEAD_BYTES * (len(self._newest) + len(self._tombstones))
        )

    def _set(self, key: bytes, offset: int, value: bytes | None) -> None:
        super()._set(key, offset, value)
        if value is None:
            self._tombstones[key] = offset

    def _end(self, header: BatchHeader, batch: memoryview) -> None:
        self._ends.setdefault(header.producer_id, bytes(batch))
        super()._end(header, batch)

    def batches(self) -> bytes:
        """Markers first, because they end transactions of earlier ranges; open transactions last."""
        return b"".join(self._iterate_batches())

    def _iterate_batches(self) -> Iterator[bytes | bytearray]:
        yield from self._ends.values()
        yield from _build_batches((offset, key, None) for key, offset in self._tombstones.items())
        yield from _build_batches(self)
        for producer_id, records in self._pending.items():
            for epoch, items in groupby(records.items(), lambda item: item[1].producer_epoch):
                open_ones = ((each.offset, key, each.value) for key, each in items)
                yield from _build_batches(
                    open_ones, producer_id=producer_id, producer_epoch=epoch, is_transactional=True
                )


def _build_batches(records: Iterable[tuple[int, bytes, bytes | None]], **options: Any) -> Iterator[bytearray]:
    """Build batches of records with nearby offsets."""
    near: list[Record] = []
    for offset, key, value in records:
        if near and not near[-1].offset < offset < near[0].offset + BATCH_OFFSETS:
            yield build_batch(near, base_offset=near[0].offset, **options)
            near = []
        near.append(Record(offset, 0, key, value, ()))
    if near:
        yield build_batch(near, base_offset=near[0].offset, **options)

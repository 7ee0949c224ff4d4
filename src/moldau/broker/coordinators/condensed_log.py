"""A stretch of a log made shorter, in a worker process: fewer batches that say the same to whoever replays them.

Of each key only the newest record is left; tombstones stay, since the key may have been named before the stretch, and
so does the first end of each producer's transactions, which may have begun before it. So stretches can be condensed
one by one and replayed one after the other, and none of them takes more memory than its bound allows.
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
LOOK_BYTES: Final = MiB  # of the log, between two checks of the size
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
    """Condense the stretch, or as much of it as fits the limit. None if it cannot be read: the event loop then reads it
    and reports the error."""
    newest = CondensedValues(job.name)
    next_offset = -1
    try:
        for piece in job.log_range.pieces:
            batches = job.log_range.read(disk, piece)
            position = looked = 0
            while position < len(batches):
                position, next_offset = newest.note(batches, position, BATCHES_AT_ONCE)
                if position - looked >= LOOK_BYTES or position == len(batches):
                    looked = position
                    if newest.size_bytes >= job.condensed_bytes_max:
                        return Condensed(newest.batches(), next_offset)
    except (OSError, KafkaError):
        return None
    return Condensed(newest.batches(), next_offset)


class CondensedValues(NewestValues):
    """The newest values, plus tombstones and markers that matter to earlier stretches."""

    __slots__ = ("_ends", "_gone")

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._gone: dict[bytes, int] = {}  # offsets of tombstones
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
        gone = sum(map(len, self._gone))
        ends = sum(map(len, self._ends.values()))
        return settled + pending + gone + ends + RECORD_OVERHEAD_BYTES * (len(self._newest) + len(self._gone))

    def _set(self, key: bytes, offset: int, value: bytes | None) -> None:
        super()._set(key, offset, value)
        if value is None:
            self._gone[key] = offset

    def _end(self, header: BatchHeader, batch: memoryview) -> None:
        self._ends.setdefault(header.producer_id, bytes(batch))
        super()._end(header, batch)

    def batches(self) -> bytes:
        """Markers first, because they end transactions of earlier stretches; open transactions last."""
        return b"".join(self._each_batch())

    def _each_batch(self) -> Iterator[bytes | bytearray]:
        yield from self._ends.values()
        yield from _built((offset, key, None) for key, offset in self._gone.items())
        yield from _built(self)
        for producer_id, records in self._pending.items():
            for epoch, items in groupby(records.items(), lambda item: item[1].producer_epoch):
                open_ones = ((each.offset, key, each.value) for key, each in items)
                yield from _built(open_ones, producer_id=producer_id, producer_epoch=epoch, is_transactional=True)


def _built(records: Iterable[tuple[int, bytes, bytes | None]], **options: Any) -> Iterator[bytearray]:
    """Build batches of records with nearby offsets."""
    near: list[Record] = []
    for offset, key, value in records:
        if near and not near[-1].offset < offset < near[0].offset + BATCH_OFFSETS:
            yield build_batch(near, base_offset=near[0].offset, **options)
            near = []
        near.append(Record(offset, 0, key, value, ()))
    if near:
        yield build_batch(near, base_offset=near[0].offset, **options)

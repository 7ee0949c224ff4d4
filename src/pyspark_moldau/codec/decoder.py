"""Decodes the record batches of a Fetch response into Arrow columns.

No record becomes a Python object: `record_fields` locates the fields of thousands of records at once, and Arrow copies
keys and values from the fetched bytes.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import accumulate
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from moldau.client.types import AbortedTransaction
from moldau.model.errors import CorruptMessage
from moldau.model.units import MiB
from moldau.records.compression import Compression
from moldau.records.header import HEADER_BYTES, BatchHeader, Buffer
from moldau.records.record import records_body
from pyspark_moldau.codec import columns
from pyspark_moldau.codec.batch_iterator import Batch, BatchIterator
from pyspark_moldau.codec.header_decoder import decode_headers
from pyspark_moldau.codec.record_fields import Fields, Numbers, Rows, copy_fields, read_fields
from pyspark_moldau.codec.record_starts import Span, find_record_starts

Kinds: TypeAlias = npt.NDArray[np.int32]

ROWS_MAX: Final = 10_000  # of one Arrow batch
CONTENT_BYTES_MAX: Final = 16 * MiB
_TIMESTAMP_MS_MAX: Final = (1 << 63) // 2000 - 1


class DecodeRange(NamedTuple):
    """The requested part of a partition: offsets from `from_offset`, before `until_offset`."""

    topic: str
    partition: int
    from_offset: int
    until_offset: int
    with_headers: bool = False


def decode(records: Buffer, place: DecodeRange, aborted: Iterable[AbortedTransaction] = ()) -> Iterator[pa.RecordBatch]:
    """Decode the bytes of one response; raises CorruptMessage for invalid batches."""
    yield from decode_batches(BatchIterator(records, place.from_offset, place.until_offset, aborted), place)


def decode_batches(batches: Iterable[Batch], place: DecodeRange) -> Iterator[pa.RecordBatch]:
    """Decode batches from a BatchIterator."""
    for group in _groups(batches):
        rows = _rows(group, place)
        content_bytes = sum(len(each.content) for each in group)
        step = max(1, min(ROWS_MAX, rows.num_rows * CONTENT_BYTES_MAX // content_bytes))
        for start in range(0, rows.num_rows, step):
            yield rows.slice(start, step)


class _Body(NamedTuple):
    """The decompressed records of one batch, and their position in the response if it was not compressed."""

    header: BatchHeader
    content: bytes | memoryview
    start: int | None


def _groups(batches: Iterable[Batch]) -> Iterator[list[_Body]]:
    """Group small batches, because most of the cost is per group."""
    group: list[_Body] = []
    rows = content_bytes = 0
    for batch in batches:
        body = _body(batch)
        rows += body.header.records_count
        content_bytes += len(body.content)
        if group and (rows > ROWS_MAX or content_bytes > CONTENT_BYTES_MAX):
            yield group
            group, rows, content_bytes = [], body.header.records_count, len(body.content)
        group.append(body)
    if group:
        yield group


def _rows(group: list[_Body], place: DecodeRange) -> pa.RecordBatch:
    content, starts, ends = _records(group)
    octets = np.frombuffer(content, np.uint8)
    fields = read_fields(octets, starts, ends)
    offsets, timestamps, kinds = _numbers(group, fields)
    rows = _wanted(offsets, place)
    keys, values = copy_fields(
        content, fields.key_starts, fields.key_lengths, fields.value_starts, fields.value_lengths, rows
    )
    made = [
        keys,
        values,
        *_origins(place, len(keys)),
        pa.array(offsets[rows]),
        pa.array(timestamps[rows] * 1000).view(columns.ROW.field("timestamp").type),
        pa.array(kinds[rows]),
    ]
    if place.with_headers:
        made.append(decode_headers(content, fields, np.arange(len(starts))[rows]))
    return pa.RecordBatch.from_arrays(made, schema=columns.schema(with_headers=place.with_headers))


def _origins(place: DecodeRange, count: int) -> tuple[pa.Array, pa.Array]:
    """Return the constant columns topic and partition, as slices of a cached array."""
    topics, partitions = _same(place.topic, place.partition, -(-count // ROWS_MAX) * ROWS_MAX)
    return topics.slice(0, count), partitions.slice(0, count)


@lru_cache(maxsize=4)
def _same(topic: str, partition: int, count: int) -> tuple[pa.Array, pa.Array]:
    return pa.repeat(pa.scalar(topic, pa.string()), count), pa.repeat(pa.scalar(partition, pa.int32()), count)


def _wanted(offsets: Numbers, place: DecodeRange) -> Rows:
    """Select the rows in the range; a slice, without cost, if it is all of them."""
    if offsets.min() >= place.from_offset and offsets.max() < place.until_offset:
        return slice(None)
    return np.flatnonzero((offsets >= place.from_offset) & (offsets < place.until_offset))


def _records(group: list[_Body]) -> tuple[bytes, Numbers, Numbers]:
    """Return the records of all batches in one buffer, with the start and end of each record."""
    content, spans = _in_place(group) or _joined(group)
    counts = np.array([each.records for each in spans])
    try:
        starts = find_record_starts(content, spans)
    except IndexError:
        raise CorruptMessage("the records of a batch exceed its length") from None
    ends = np.append(starts[1:], 0)
    ends[np.cumsum(counts) - 1] = [each.end for each in spans]
    return content, starts, ends


def _in_place(group: list[_Body]) -> tuple[bytes, list[Span]] | None:
    """Return the response buffer itself, without a copy, if no batch was compressed."""
    first = group[0].content
    if any(each.start is None for each in group) or not isinstance(first, memoryview) or type(first.obj) is not bytes:
        return None
    whole = first.obj
    moved = _address(first) - _address(whole) - (group[0].start or 0)
    starts = [moved + (each.start or 0) for each in group]
    return whole, [
        Span(start, start + len(each.content), each.header.records_count)
        for start, each in zip(starts, group, strict=True)
    ]


def _address(memory: bytes | memoryview) -> int:
    return int(np.frombuffer(memory, np.uint8).__array_interface__["data"][0])


def _joined(group: list[_Body]) -> tuple[bytes, list[Span]]:
    ends = list(accumulate(len(each.content) for each in group))
    spans = map(Span, [0, *ends], ends, (each.header.records_count for each in group))
    return b"".join(each.content for each in group), list(spans)


def _body(batch: Batch) -> _Body:
    if batch.header.compression == Compression.NONE:
        return _Body(batch.header, batch.content[HEADER_BYTES:], batch.start + HEADER_BYTES)
    return _Body(batch.header, records_body(batch.content, batch.header), None)


def _numbers(group: list[_Body], fields: Fields) -> tuple[Numbers, Numbers, Kinds]:
    """Return offset, timestamp in milliseconds and timestamp type of each record."""
    headers = [each.header for each in group]
    counts = [each.records_count for each in headers]
    last_deltas = np.repeat([each.last_offset_delta for each in headers], counts)
    if fields.offset_deltas.min() < 0 or np.any(fields.offset_deltas > last_deltas):
        raise CorruptMessage("a record has an offset outside its batch")
    offsets = np.repeat(np.array([each.base_offset for each in headers], np.int64), counts) + fields.offset_deltas
    kinds = np.repeat(np.array([each.has_log_append_time for each in headers], np.int32), counts)
    return offsets, _timestamps(headers, counts, fields, kinds), kinds


def _timestamps(headers: list[BatchHeader], counts: list[int], fields: Fields, kinds: Kinds) -> Numbers:
    bases = np.array([each.base_timestamp for each in headers], np.int64)
    stamps = np.array([each.max_timestamp for each in headers], np.int64)
    for part in (bases, stamps, fields.timestamp_deltas):  # neither the sum nor its microseconds may overflow
        if part.max() > _TIMESTAMP_MS_MAX or part.min() < -_TIMESTAMP_MS_MAX:
            raise CorruptMessage("a record has a timestamp out of range")
    timestamps = np.repeat(bases, counts) + fields.timestamp_deltas
    return np.where(kinds == columns.LOG_APPEND_TIME, np.repeat(stamps, counts), timestamps)

"""Encodes rows into record batches per partition, complete except for the producer fields.

Tasks do this in parallel, so that the publishing driver only sends bytes.
"""

import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from moldau.model.units import MiB
from moldau.records.compression import Compression, compress
from pyspark_moldau.codec.encoder import EncodedBatches, encode
from pyspark_moldau.codec.partitioner import partitions_of
from pyspark_moldau.codec.record_fields import Numbers
from pyspark_moldau.options.sink_options import SinkOptions
from pyspark_moldau.sink.raw_sender import PartitionCounts
from pyspark_moldau.sink.records import RECORD, find_missing_partitions, split_rejected
from pyspark_moldau.sink.sender import DeliveryFailed

BATCH: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("rows", pa.int32()),
        ("codec", pa.int8()),
        ("base_timestamp", pa.int64()),
        ("max_timestamp", pa.int64()),
        ("body", pa.binary()),
    ]
)
_CHUNK_BYTES: Final = 4 * MiB  # input size per encoding step
_CHUNK_BYTES_MAX: Final = 64 * MiB
_STICKY_ROWS: Final = 1_000  # number of keyless rows before the sticky partition changes
_ANY_PARTITION: Final = -1


class _Places(NamedTuple):
    """Rows sorted by partition: row order, first row, topic and partition of each group."""

    order: Numbers
    starts: Numbers
    topics: Numbers
    partitions: Numbers


class BatchBuilder:
    """Builds the batches of one task. `partitions_of` returns a topic's partition count or raises if it is missing."""

    def __init__(self, options: SinkOptions, partitions_of: Callable[[str], int], now_ms: Callable[[], int]) -> None:
        self._options, self._partitions_of, self._now_ms = options, partitions_of, now_ms
        self._codec, self._level = options.codec, options.codec_level
        self._keyless_rows = random.randrange(1 << 20) * _STICKY_ROWS

    def batches(self, records: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Encode records; each resulting row (schema `BATCH`) is a record batch."""
        for chunk in chunks(records):
            for each in self._split_missing_partitions(chunk):
                if each.num_rows:
                    yield self._batches(each)

    def _split_missing_partitions(self, records: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Route rows for missing partitions to the dead-letter topic; without one, raise."""
        rejected = find_missing_partitions(records, self._partitions_of)
        if not rejected:
            return [records]
        if self._options.dead_letter_topic is None:
            row = min(rejected)
            where = f"{records['topic'][row].as_py()}-{records['partition'][row].as_py()}"
            raise DeliveryFailed(f"A record for {where} was not delivered: the partition does not exist.")
        return split_rejected(records, rejected, self._options.dead_letter_topic, self._options.row_bytes_max)

    def _batches(self, records: pa.RecordBatch) -> pa.RecordBatch:
        places = self._places(records)
        keys, values, headers = (records[name] for name in ("key", "value", "headers"))
        times = np.asarray(pc.fill_null(records["timestamp_ms"], self._now_ms()))
        most = self._options.batch_bytes_max
        encoded = encode(keys, values, headers, times, places.order, places.starts, most)
        at = np.searchsorted(places.starts, encoded.first_rows, "right") - 1
        count = len(encoded.rows)
        return pa.RecordBatch.from_arrays(
            [
                pc.take(records["topic"].dictionary, pa.array(places.topics[at])),
                pa.array(places.partitions[at].astype(np.int32)),
                pa.array(encoded.rows.astype(np.int32)),
                pa.array(np.full(count, self._codec, np.int8)),
                pa.array(encoded.base_timestamps),
                pa.array(encoded.max_timestamps),
                self._compressed(encoded),
            ],
            schema=BATCH,
        )

    def _compressed(self, encoded: EncodedBatches) -> pa.Array:
        if self._codec is Compression.NONE:
            return encoded.bodies
        bodies = (compress(self._codec, each.as_py(), self._level) for each in encoded.bodies)
        return pa.array(bodies, pa.binary())

    def _places(self, records: pa.RecordBatch) -> _Places:
        topics = np.asarray(records["topic"].indices).astype(np.int64)
        partitions = np.asarray(pc.fill_null(records["partition"], _ANY_PARTITION)).astype(np.int64)
        names = records["topic"].dictionary.to_pylist()
        for number in np.unique(topics).tolist() if len(names) > 1 else [0]:
            is_ours = (partitions == _ANY_PARTITION) & (topics == number)
            if is_ours.any():
                self._choose(partitions, np.flatnonzero(is_ours), records["key"], self._partitions_of(names[number]))
        numbers = topics * (partitions.max() + 1) + partitions
        order = np.arange(len(numbers))
        if numbers.min() != numbers.max():
            # NumPy sorts 16-bit integers with radix sort, in linear time.
            order = np.argsort(numbers.astype(np.uint16) if numbers.max() < 1 << 16 else numbers, kind="stable")
            numbers, topics, partitions = numbers[order], topics[order], partitions[order]
        starts = np.append(0, np.flatnonzero(np.diff(numbers)) + 1)
        return _Places(order, starts, topics[starts], partitions[starts])

    def _choose(self, partitions: Numbers, rows: Numbers, keys: pa.Array, count: int) -> None:
        """Choose partitions by key hash; keyless rows use a sticky partition that changes periodically."""
        if len(rows) != len(keys):
            keys = keys.take(pa.array(rows))
        has_key = np.asarray(keys.is_valid())
        if has_key.any():
            partitions[rows[has_key]] = partitions_of(keys.drop_null() if keys.null_count else keys, count)
        keyless = rows[~has_key]
        if len(keyless):
            turns = (self._keyless_rows + np.arange(len(keyless))) // _STICKY_ROWS
            partitions[keyless] = turns % count
            self._keyless_rows += len(keyless)


def chunks(records: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Regroup rows into chunks of some MiB: smaller ones give small batches, larger ones need more memory."""
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in records:
        held.append(batch)
        held_bytes += batch.nbytes
        if held_bytes >= _CHUNK_BYTES:
            yield from _whole(held, held_bytes)
            held, held_bytes = [], 0
    if held:
        yield from _whole(held, held_bytes)


def _whole(held: list[pa.RecordBatch], held_bytes: int) -> Iterator[pa.RecordBatch]:
    if held_bytes > _CHUNK_BYTES_MAX:  # only the last element can be large
        for batch in held:
            step = max(1, batch.num_rows * _CHUNK_BYTES // max(batch.nbytes, 1))
            yield from (batch.slice(start, step) for start in range(0, batch.num_rows, step))
        return
    whole = pa.Table.from_batches(held, RECORD).unify_dictionaries().combine_chunks()
    yield from whole.to_batches()


@contextmanager
def staging_batches(records: Iterable[pa.RecordBatch], options: SinkOptions) -> Iterator[Iterable[pa.RecordBatch]]:
    """Return what a task stages: encoded batches for the raw sender, records for librdkafka."""
    if not options.is_raw:
        yield records
        return
    counts = PartitionCounts(options)
    try:
        yield BatchBuilder(options, counts, lambda: time.time_ns() // 1_000_000).batches(records)
    finally:
        counts.close()

"""Encodes rows as record batches for Produce requests: the counterpart of `decoder`.

No record becomes a Python object: lengths and varints are computed for thousands of rows at once, and combined with
keys and values by `byte_rows`. The encoded rows of a chunk are contiguous, so a batch is a slice of them.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from moldau.records.header import HEADER_BYTES
from pyspark_moldau.codec.byte_rows import ByteRowBuilder, merge_runs, varint_bytes, varint_column
from pyspark_moldau.codec.record_fields import Numbers

ROWS_MAX: Final = 10_000  # of one batch
_HEAD_BYTES: Final = 26  # typical size of a record's varints; batches may exceed the limit slightly
_ATTRIBUTES_BYTES: Final = 1


@dataclass(frozen=True, slots=True)
class EncodedBatches:
    """Encoded batches: first row, row count, base and maximum timestamp, and bytes of each."""

    first_rows: Numbers
    rows: Numbers
    base_timestamps: Numbers
    max_timestamps: Numbers
    bodies: pa.Array  # binary, one for each batch


def encode(
    keys: pa.Array,
    values: pa.Array,
    headers: pa.Array,
    times_ms: Numbers,
    order: Numbers,
    groups: Numbers,
    bytes_max: int,
) -> EncodedBatches:
    """Encode rows in the given order; each of `groups` is the first row of another partition.

    No batch spans two partitions or exceeds `bytes_max` by more than a few bytes per record.
    """
    key_lengths, value_lengths = lengths(keys)[order], lengths(values)[order]
    blobs = header_blobs(headers)
    header_lengths = np.ones(len(order), np.int64) if blobs is None else lengths(blobs)[order]
    sizes = np.maximum(key_lengths, 0) + np.maximum(value_lengths, 0) + header_lengths
    first_rows = batch_starts(sizes + _HEAD_BYTES, groups, bytes_max - HEADER_BYTES)
    rows = np.diff(np.append(first_rows, len(order)))
    times_ms = times_ms[order]
    base_timestamps = times_ms[first_rows]
    time_deltas = times_ms - np.repeat(base_timestamps, rows)
    deltas = np.arange(len(order)) - np.repeat(first_rows, rows)
    numbers = [time_deltas, deltas, key_lengths, value_lengths]
    record_lengths = sizes + sum(map(varint_bytes, numbers), start=_ATTRIBUTES_BYTES)

    byte_rows = ByteRowBuilder()
    if time_deltas.any():
        byte_rows.add_varints(record_lengths, zeros_after=_ATTRIBUTES_BYTES)  # attributes are unused
        byte_rows.add_varints(time_deltas)
    else:
        byte_rows.add_varints(record_lengths, zeros_after=_ATTRIBUTES_BYTES + 1)
    byte_rows.add_varints(deltas)
    byte_rows.add_varints(key_lengths)
    byte_rows.add(keys, order)
    byte_rows.add_varints(value_lengths)
    byte_rows.add(values, order)
    if blobs is None:
        byte_rows.add_varints(np.zeros(len(order), np.int64))
    else:
        byte_rows.add(blobs, order)
    max_timestamps = np.maximum.reduceat(times_ms, first_rows)
    return EncodedBatches(first_rows, rows, base_timestamps, max_timestamps, byte_rows.build(first_rows))


def batch_starts(sizes: Numbers, groups: Numbers, bytes_max: int) -> Numbers:
    """Return the first rows of batches: at each group start, and where a batch would become too large."""
    ends = np.cumsum(sizes)
    found: list[int] = []
    for start, stop in zip(groups.tolist(), [*groups.tolist()[1:], len(sizes)], strict=True):
        while start < stop:
            found.append(start)
            filled = int(ends[start - 1]) if start else 0
            fits = int(np.searchsorted(ends, filled + bytes_max, "right"))
            start = min(max(fits, start + 1), start + ROWS_MAX, stop)
    return np.array(found, np.int64)


def lengths(column: pa.Array) -> Numbers:
    """Return the length of each value; -1 for null, as on the wire."""
    found = pc.fill_null(pc.binary_length(column), -1) if column.null_count else pc.binary_length(column)
    return np.asarray(found).astype(np.int64)


def header_blobs(headers: pa.Array) -> pa.Array | None:
    """Encode the headers of each row: count, then lengths and bytes of each; None if no row has headers."""
    if headers.null_count == len(headers):
        return None
    counts = np.asarray(pc.fill_null(pc.list_value_length(headers), 0)).astype(np.int64)
    pairs = headers.flatten()
    names, contents = pc.cast(pc.struct_field(pairs, "key"), pa.binary()), pc.struct_field(pairs, "value")
    joined = pc.binary_join_element_wise(
        varint_column(lengths(names)),
        names,
        varint_column(lengths(contents)),
        contents,
        b"",
        null_handling="replace",
        null_replacement=b"",
    )
    firsts = np.cumsum(counts) - counts
    return pc.binary_join_element_wise(varint_column(counts), merge_runs(joined, firsts), b"")

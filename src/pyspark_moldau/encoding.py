"""Rows become record batches, as a Produce carries them: the counterpart of `decoding`.

No record is ever an object: lengths and numbers are computed for thousands of rows at once, and Arrow puts them
together with keys and values. The rows of a chunk lie one behind the other then, so a batch is a slice of it.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from moldau.records.header import HEADER_BYTES
from pyspark_moldau.positions import Numbers, Octets

ROWS_MAX: Final = 10_000  # of one batch
_HEAD_BYTES: Final = 26  # what numbers and lengths of a record may take in most cases; batches may be a little larger
_VARINT_BYTES_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class Encoded:
    """Batches one behind the other: where each begins among the rows, its bytes, the first and the last time."""

    first_rows: Numbers
    rows: Numbers
    base_timestamps: Numbers
    max_timestamps: Numbers
    bodies: pa.Array  # binary, one for each batch


def encode(
    keys: pa.Array, values: pa.Array, headers: pa.Array, times_ms: Numbers, groups: Numbers, bytes_max: int
) -> Encoded:
    """`groups` says where the batches of a place begin: no batch goes over such a border, nor far over `bytes_max`."""
    key_lengths, value_lengths = lengths(keys), lengths(values)
    blobs = header_blobs(headers)
    sizes = np.maximum(key_lengths, 0) + np.maximum(value_lengths, 0) + lengths(blobs)
    first_rows = cuts(sizes + _HEAD_BYTES, groups, bytes_max - HEADER_BYTES)
    rows = np.diff(np.append(first_rows, len(keys)))
    base_timestamps = times_ms[first_rows]
    deltas = np.arange(len(keys)) - np.repeat(first_rows, rows)
    after_length = [
        (np.zeros((len(keys), 1), np.uint8), np.ones(len(keys), np.int64)),  # attributes, of which none is in use
        varints(times_ms - np.repeat(base_timestamps, rows)),
        varints(deltas),
        varints(key_lengths),
    ]
    before_value = [varints(value_lengths)]
    numbers_lengths = sum(part[1] for part in after_length) + before_value[0][1]
    head = texts([varints(numbers_lengths + sizes), *after_length])
    joined = pc.binary_join_element_wise(
        head, keys, texts(before_value), values, blobs, b"", null_handling="replace", null_replacement=b""
    )
    return Encoded(
        first_rows, rows, base_timestamps, np.maximum.reduceat(times_ms, first_rows), runs(joined, first_rows)
    )


def cuts(sizes: Numbers, groups: Numbers, bytes_max: int) -> Numbers:
    """Where batches begin: at the beginning of each group, and where a batch would become too large."""
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
    """-1 for null, as it is written."""
    found = pc.fill_null(pc.binary_length(column), -1) if column.null_count else pc.binary_length(column)
    return np.asarray(found).astype(np.int64)


def varints(numbers: Numbers) -> tuple[Octets, Numbers]:
    """Each number zigzag in a row of a matrix, and how many bytes of its row it takes."""
    encoded = ((numbers << 1) ^ (numbers >> 63)).astype(np.uint64)
    largest = int(encoded.max()) if len(encoded) else 0
    width = max(-(-largest.bit_length() // 7), 1)
    if width == 1:
        return encoded.astype(np.uint8)[:, None], np.ones(len(numbers), np.int64)
    taken = np.ones(len(numbers), np.int64)
    for index in range(1, width):
        taken += encoded >= np.uint64(1 << 7 * index)
    octets = np.empty((len(numbers), width), np.uint8)
    for index in range(width):
        octets[:, index] = (encoded >> np.uint64(7 * index)).astype(np.uint8) & 0x7F
        octets[:, index] |= ((taken > index + 1) << 7).astype(np.uint8)
    return octets, taken


def texts(parts: list[tuple[Octets, Numbers]]) -> pa.Array:
    """The bytes of all parts of a row, side by side."""
    rows, width = len(parts[0][0]), sum(octets.shape[1] for octets, _ in parts)
    side_by_side = np.empty((rows, width), np.uint8)
    is_taken = np.ones((rows, width), np.bool_)
    left = 0
    for octets, taken in parts:
        right = left + octets.shape[1]
        side_by_side[:, left:right] = octets
        for index in range(1, octets.shape[1]):
            np.greater(taken, index, out=is_taken[:, left + index])
        left = right
    bounds = np.zeros(rows + 1, np.int32)
    np.cumsum(sum(taken for _, taken in parts), out=bounds[1:])
    flat = side_by_side[is_taken]
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(bounds), pa.py_buffer(flat)])


def header_blobs(headers: pa.Array) -> Any:
    """The headers of each row as they stand in a record: their count, then each with its lengths."""
    if headers.null_count == len(headers):
        return pa.array(np.zeros(len(headers), np.uint8)).view(pa.binary(1)).cast(pa.binary())
    counts = np.asarray(pc.fill_null(pc.list_value_length(headers), 0)).astype(np.int64)
    pairs = headers.flatten()
    names, contents = pc.cast(pc.struct_field(pairs, "key"), pa.binary()), pc.struct_field(pairs, "value")
    joined = pc.binary_join_element_wise(
        texts([varints(lengths(names))]),
        names,
        texts([varints(lengths(contents))]),
        contents,
        b"",
        null_handling="replace",
        null_replacement=b"",
    )
    firsts = np.cumsum(counts) - counts
    return pc.binary_join_element_wise(texts([varints(counts)]), runs(joined, firsts), b"")


def runs(pieces: pa.Array, firsts: Numbers) -> pa.Array:
    """Neighbours become one: those from each of `firsts` up to the next. Nothing is copied."""
    bounds = np.frombuffer(pieces.buffers()[1], np.int32)[pieces.offset : pieces.offset + len(pieces) + 1]
    taken = np.append(bounds[firsts], bounds[-1])
    return pa.Array.from_buffers(pa.binary(), len(firsts), [None, pa.py_buffer(taken), pieces.buffers()[2]])

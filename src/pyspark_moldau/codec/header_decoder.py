"""Decodes record headers into an Arrow column: a list per record, null for a record without headers.

Rounds: the first headers of all records are read at once, then the second ones. Records with many headers are read
"""

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from moldau.model.errors import CorruptMessage
from moldau.records.varint import read_varint
from pyspark_moldau.codec import columns
from pyspark_moldau.codec.record_fields import (
    VARINT_BYTES_MAX,
    Fields,
    Numbers,
    Octets,
    copy_fields,
    field_ends,
    read_varints,
)

_HEADER_BYTES_MIN: Final = 2  # two lengths
_ROUNDS_MAX: Final = 64


def decode_headers(content: bytes, fields: Fields, rows: Numbers) -> pa.Array:
    """Decode the headers of these rows. Invalid UTF-8 in keys becomes replacement characters, as in Java."""
    octets = np.frombuffer(content, np.uint8)
    ends = fields.ends[rows]
    counts, starts = read_varints(octets, fields.header_starts[rows], VARINT_BYTES_MAX)
    if np.any((counts < 0) | (counts > (ends - starts) // _HEADER_BYTES_MIN)):
        raise CorruptMessage("a record has more headers than bytes")
    if counts.size == 0 or counts.max() == 0:
        _check_ends(starts, ends)
        return pa.nulls(len(rows), columns.HEADERS)
    if counts.max() > _ROUNDS_MAX:
        keys, values = _read_one_by_one(content, counts.tolist(), starts.tolist(), ends.tolist())
    else:
        keys, values = _read_in_rounds(content, octets, counts, starts, ends)
    bounds = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(counts, out=bounds[1:])
    pairs = pa.StructArray.from_arrays([keys, values], fields=list(columns.HEADERS.value_type))
    has_none = np.append(counts == 0, False)
    return pa.ListArray.from_arrays(pa.array(bounds, mask=has_none), pairs, type=columns.HEADERS)


def _check_ends(positions: Numbers, ends: Numbers) -> None:
    if np.any(positions != ends):
        raise CorruptMessage("the headers of a record do not end at its end")


def _read_in_rounds(
    content: bytes, octets: Octets, counts: Numbers, starts: Numbers, ends: Numbers
) -> tuple[pa.Array, pa.Array]:
    total = int(counts.sum())
    key_starts, key_lengths, value_starts, value_lengths = (np.empty(total, np.int64) for _ in range(4))
    first_headers = np.cumsum(counts) - counts
    position = starts.copy()
    for number in range(int(counts.max())):
        rows = np.flatnonzero(counts > number)
        at, limit = first_headers[rows] + number, ends[rows]
        key_lengths[at], key_starts[at] = read_varints(octets, position[rows], VARINT_BYTES_MAX)
        after_key = field_ends(key_starts[at], key_lengths[at], limit)
        value_lengths[at], value_starts[at] = read_varints(octets, after_key, VARINT_BYTES_MAX)
        position[rows] = field_ends(value_starts[at], value_lengths[at], limit)
    _check_ends(position, ends)
    if np.any(key_lengths < 0):
        raise CorruptMessage("a record header has no key")
    keys, values = copy_fields(content, key_starts, key_lengths, value_starts, value_lengths, slice(None))
    return _texts(keys), values


def _texts(keys: pa.Array) -> pa.Array:
    try:
        return pc.cast(keys, pa.string())
    except pa.ArrowInvalid:
        return pa.array([key.decode("utf-8", "replace") for key in keys.to_pylist()], pa.string())


def _read_one_by_one(
    content: bytes, counts: list[int], starts: list[int], ends: list[int]
) -> tuple[pa.Array, pa.Array]:
    keys: list[str] = []
    values: list[bytes | None] = []
    try:
        for count, start, end in zip(counts, starts, ends, strict=True):
            _read(content, count, start, end, keys, values)
    except IndexError:
        raise CorruptMessage("a record ends inside its headers") from None
    return pa.array(keys, pa.string()), pa.array(values, pa.binary())


def _read(content: bytes, count: int, position: int, end: int, keys: list[str], values: list[bytes | None]) -> None:
    for _ in range(count):
        key, position = _field(content, position, end)
        if key is None:
            raise CorruptMessage("a record header has no key")
        value, position = _field(content, position, end)
        keys.append(key.decode("utf-8", "replace"))
        values.append(value)
    if position != end:
        raise CorruptMessage("the headers of a record do not end at its end")


def _field(content: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = read_varint(content, position)
    stop = position + max(length, 0)
    if stop > end:
        raise CorruptMessage(f"a header has length {length}, but its record has only {end - position} bytes left")
    return (None if length < 0 else content[position:stop]), stop

"""Locates the fields of many records at once with vectorised arithmetic.

The start of each record comes from `record_starts`.
"""

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from moldau.model.errors import CorruptMessage

Numbers: TypeAlias = npt.NDArray[np.int64]
Octets: TypeAlias = npt.NDArray[np.uint8]
Rows: TypeAlias = Numbers | slice

VARINT_BYTES_MAX: Final = 5
_VARLONG_BYTES_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class Fields:
    """One entry per record; positions are relative to the start of the content."""

    timestamp_deltas: Numbers
    offset_deltas: Numbers
    key_starts: Numbers
    key_lengths: Numbers  # negative: null
    value_starts: Numbers
    value_lengths: Numbers
    header_starts: Numbers  # position of the header count
    ends: Numbers


def read_fields(content: Octets, starts: Numbers, ends: Numbers) -> Fields:
    """Parse the fields of each record; raises CorruptMessage if a field exceeds its record."""
    lengths, position = read_varints(content, starts, VARINT_BYTES_MAX)
    if np.any(lengths != ends - position):  # a negative length or a non-canonical varint
        raise CorruptMessage("a record's length does not match its content")
    timestamp_deltas, position = read_varints(content, position + 1, _VARLONG_BYTES_MAX)
    offset_deltas, position = read_varints(content, position, VARINT_BYTES_MAX)
    key_lengths, key_starts = read_varints(content, position, VARINT_BYTES_MAX)
    position = field_ends(key_starts, key_lengths, ends)
    value_lengths, value_starts = read_varints(content, position, VARINT_BYTES_MAX)
    header_starts = field_ends(value_starts, value_lengths, ends)
    if np.any(header_starts >= ends):
        raise CorruptMessage("a record ends before its count of headers")
    return Fields(
        timestamp_deltas, offset_deltas, key_starts, key_lengths, value_starts, value_lengths, header_starts, ends
    )


def field_ends(starts: Numbers, lengths: Numbers, ends: Numbers) -> Numbers:
    """Return the end of each field; raises CorruptMessage if it exceeds its record."""
    position = starts + np.maximum(lengths, 0)
    if np.any(position > ends):
        raise CorruptMessage("a field is longer than its record")
    return position


def read_varints(content: Octets, at: Numbers, bytes_max: int) -> tuple[Numbers, Numbers]:
    """Read the zigzag varint at each position; return the numbers and the positions after them.

    Most varints have one or two bytes: those are decoded with small integer types, which vectorise well.
    """
    octets = content.take(at, mode="clip")
    after = at + 1
    if octets.size == 0 or octets.max() < 0x80:
        return _unzigzag(octets), after
    goes_on = octets >= 0x80
    seconds = content.take(after, mode="clip") * goes_on  # zero if there is no second byte
    if seconds.max() < 0x80:
        return _unzigzag(octets & 0x7F | seconds.astype(np.uint16) << 7), after + goes_on
    return _read_long(content, octets, after, bytes_max)


def _read_long(content: Octets, octets: Octets, after: Numbers, bytes_max: int) -> tuple[Numbers, Numbers]:
    encoded = (octets & 0x7F).astype(np.uint64)
    rows: Any = np.flatnonzero(octets >= 0x80)
    for index in range(1, bytes_max):
        octets = content.take(after[rows], mode="clip")
        encoded[rows] |= (octets & 0x7F).astype(np.uint64) << np.uint64(7 * index)
        after[rows] += 1
        rows = rows[octets >= 0x80]
        if rows.size == 0:
            return _unzigzag(encoded), after
    raise CorruptMessage(f"a varint is longer than {bytes_max} bytes")


def _unzigzag(encoded: npt.NDArray[Any]) -> Numbers:
    # On unsigned integers the shift is logical and the subtraction wraps, which is correct for the full range.
    signed = (encoded >> 1) ^ (0 - (encoded & 1))
    return signed.view(f"i{encoded.itemsize}").astype(np.int64, copy=False)


def copy_fields(
    content: bytes,
    first_starts: Numbers,
    first_lengths: Numbers,
    second_starts: Numbers,
    second_lengths: Numbers,
    rows: Rows,
) -> tuple[pa.Array, pa.Array]:
    """Copy the first and the second field of these rows; a negative length means null.

    Positions are increasing, so the content can be viewed as an Arrow array of four elements
    per row: first field, gap, second field, gap before the next row.
    """
    bounds = np.empty(4 * len(first_starts) + 1, np.int32)
    bounds[0:-1:4] = first_starts
    bounds[1:-1:4] = first_starts + np.maximum(first_lengths, 0)
    bounds[2:-1:4] = second_starts
    bounds[3:-1:4] = second_starts + np.maximum(second_lengths, 0)
    bounds[-1] = len(content)
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(content)]
    elements = pa.Array.from_buffers(pa.binary(), len(bounds) - 1, buffers)
    firsts = np.arange(0, len(bounds) - 1, 4)[rows]
    return (
        pc.take(elements, _indices(firsts, first_lengths[rows]), boundscheck=False),
        pc.take(elements, _indices(firsts + 2, second_lengths[rows]), boundscheck=False),
    )


def _indices(elements: Numbers, lengths: Numbers) -> pa.Array:
    # `take` returns null for a null index.
    return pa.array(elements, mask=lengths < 0 if lengths.size and lengths.min() < 0 else None)

"""Pieces of bytes, put together for thousands of rows at once: numbers as varints, and columns.

All pieces are elements of one Arrow array, and a row is some of them one behind the other. So one `take` copies
everything to its place, in whatever order the rows shall have.
"""

from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_moldau.codec.record_fields import Numbers, Octets

# Numbers for which there are elements ready; others are made when they are needed.
_READY_MIN: Final = -1
_READY_END: Final = 1 << 14


class ByteRowBuilder:
    """The rows of a chunk, from their first piece to their last."""

    def __init__(self) -> None:
        self._arrays: list[pa.Array] = []
        self._elements = 0
        self._chosen: list[Numbers] = []

    def add(self, column: pa.Array, rows: Numbers) -> None:
        """The next piece of each row is this row of the column; nothing, where that is null."""
        self._chosen.append(rows + self._elements)
        self._arrays.append(column)
        self._elements += len(column)

    def add_varints(self, numbers: Numbers, zeros_after: int = 0) -> None:
        """The next piece is a number, and so many bytes that are zero."""
        if numbers.min() >= _READY_MIN and numbers.max() < _READY_END:
            self.add(_ready(zeros_after), numbers - _READY_MIN)
        else:
            self.add(varint_column(numbers, zeros_after), np.arange(len(numbers)))

    def build(self, firsts: Numbers) -> pa.Array:
        """The bytes of the rows from each of `firsts` up to the next, as one element."""
        width = len(self._chosen)
        chosen = np.empty((len(self._chosen[0]), width), np.int32)
        for place, column in enumerate(self._chosen):
            chosen[:, place] = column
        elements = pa.concat_arrays(self._arrays)
        return merge_runs(pc.take(elements, pa.array(chosen.reshape(-1)), boundscheck=False), firsts * width)


@lru_cache(maxsize=4)
def _ready(zeros_after: int) -> pa.Array:
    return varint_column(np.arange(_READY_MIN, _READY_END), zeros_after)


def varint_column(numbers: Numbers, zeros_after: int = 0) -> pa.Array:
    """Each number as a varint, and so many zeros behind it."""
    octets, taken = varints(numbers)
    rows = len(octets)
    side_by_side = np.hstack([octets, np.zeros((rows, zeros_after), np.uint8)])
    bounds = np.zeros(rows + 1, np.int32)
    np.cumsum(taken + zeros_after, out=bounds[1:])
    # Behind a number its row of the matrix is zero.
    flat = side_by_side[np.arange(side_by_side.shape[1]) < (taken + zeros_after)[:, None]]
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(bounds), pa.py_buffer(flat)])


def varints(numbers: Numbers) -> tuple[Octets, Numbers]:
    """Each number zigzag in a row of a matrix, and how many bytes of its row it takes; the rest is zero."""
    encoded = _zigzag(numbers)
    taken = _bytes_of(encoded)
    width = int(taken.max()) if len(taken) else 1
    octets = np.empty((len(numbers), width), np.uint8)
    for index in range(width):
        octets[:, index] = (encoded >> np.uint64(7 * index)).astype(np.uint8) & 0x7F
        octets[:, index] |= ((taken > index + 1) << 7).astype(np.uint8)
    return octets, taken


def varint_bytes(numbers: Numbers) -> Numbers:
    """How many bytes each number takes."""
    return _bytes_of(_zigzag(numbers))


def _zigzag(numbers: Numbers) -> npt.NDArray[np.uint64]:
    return ((numbers << 1) ^ (numbers >> 63)).astype(np.uint64)


def _bytes_of(encoded: npt.NDArray[np.uint64]) -> Numbers:
    taken = np.ones(len(encoded), np.int64)
    largest = int(encoded.max()) if len(encoded) else 0
    for bits in range(7, largest.bit_length(), 7):
        taken += encoded >= np.uint64(1 << bits)
    return taken


def merge_runs(pieces: pa.Array, firsts: Numbers) -> pa.Array:
    """Neighbours become one: those from each of `firsts` up to the next. Nothing is copied."""
    bounds = np.frombuffer(pieces.buffers()[1], np.int32)[pieces.offset : pieces.offset + len(pieces) + 1]
    taken = np.append(bounds[firsts], bounds[-1])
    return pa.Array.from_buffers(pa.binary(), len(firsts), [None, pa.py_buffer(taken), pieces.buffers()[2]])

"""Concatenates byte pieces (varints and column values) into rows, for thousands of rows at once.

All pieces are elements of one Arrow array, and a row is a sequence of them. So a single `take` copies
everything into place, in any row order.
"""

from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_moldau.codec.record_fields import Numbers, Octets

# Numbers with precomputed varints; others are encoded on demand.
_READY_MIN: Final = -1
_READY_END: Final = 1 << 14


class ByteRowBuilder:
    """Builds the rows of a chunk, piece by piece."""

    def __init__(self) -> None:
        self._arrays: list[pa.Array] = []
        self._elements = 0
        self._chosen: list[Numbers] = []

    def add(self, column: pa.Array, rows: Numbers) -> None:
        """Append the given rows of a column; a null appends nothing."""
        self._chosen.append(rows + self._elements)
        self._arrays.append(column)
        self._elements += len(column)

    def add_varints(self, numbers: Numbers, zeros_after: int = 0) -> None:
        """Append a varint and a number of zero bytes to each row."""
        if numbers.min() >= _READY_MIN and numbers.max() < _READY_END:
            self.add(_ready(zeros_after), numbers - _READY_MIN)
        else:
            self.add(varint_column(numbers, zeros_after), np.arange(len(numbers)))

    def build(self, firsts: Numbers) -> pa.Array:
        """Return one element per group of rows; groups start at `firsts`."""
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
    """Encode each number as a varint followed by zero bytes."""
    octets, taken = varints(numbers)
    rows = len(octets)
    side_by_side = np.hstack([octets, np.zeros((rows, zeros_after), np.uint8)])
    bounds = np.zeros(rows + 1, np.int32)
    np.cumsum(taken + zeros_after, out=bounds[1:])
    # The rest of each matrix row is zero.
    flat = side_by_side[np.arange(side_by_side.shape[1]) < (taken + zeros_after)[:, None]]
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(bounds), pa.py_buffer(flat)])


def varints(numbers: Numbers) -> tuple[Octets, Numbers]:
    """Encode numbers as zigzag varints, one zero-padded matrix row each; also return the lengths."""
    encoded = _zigzag(numbers)
    taken = _bytes_of(encoded)
    width = int(taken.max()) if len(taken) else 1
    octets = np.empty((len(numbers), width), np.uint8)
    for index in range(width):
        octets[:, index] = (encoded >> np.uint64(7 * index)).astype(np.uint8) & 0x7F
        octets[:, index] |= ((taken > index + 1) << 7).astype(np.uint8)
    return octets, taken


def varint_bytes(numbers: Numbers) -> Numbers:
    """Return the encoded length of each number."""
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
    """Merge adjacent elements, from each of `firsts` to the next, without copying."""
    bounds = np.frombuffer(pieces.buffers()[1], np.int32)[pieces.offset : pieces.offset + len(pieces) + 1]
    taken = np.append(bounds[firsts], bounds[-1])
    return pa.Array.from_buffers(pa.binary(), len(firsts), [None, pa.py_buffer(taken), pieces.buffers()[2]])

"""Finds the start of each record in a batch. Only a record's length gives the start of the next one.

So records are followed one by one. Long runs of records with equal length, typical for sensors and counters, are
detected at once.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np

from moldau.model.errors import CorruptMessage
from pyspark_moldau.codec.record_fields import Numbers

_LENGTH_BYTES_MAX: Final = 5
_RUN_MIN: Final = 64  # shorter runs are as fast to follow one by one

# Size of a record including its length prefix, indexed by the first and second byte. One-byte lengths need no second;
# for lengths of three or more bytes, the index is out of range.
_ONE_BYTE: Final = [[(first >> 1) + 1] * 0x100 for first in range(0x80)]
_TWO_BYTES: Final = [[(first >> 1) + (second << 6) + 2 for second in range(0x80)] for first in range(0x80)]
_SIZES: Final = _ONE_BYTE + _TWO_BYTES


class Span(NamedTuple):
    """The start, end and number of records of one batch."""

    start: int
    end: int
    records: int


def find_record_starts(content: bytes, spans: Iterable[Span]) -> Numbers:
    """Return the start of each record; raises IndexError if a length leads outside `content`."""
    return np.concatenate([part for span in spans for part in _parts(content, span)])


def _parts(content: bytes, span: Span) -> Iterator[Numbers]:
    position, end, left = span
    steps = _RUN_MIN
    while left and position < end:
        size, records = _run(content, position, end, left)
        if records >= _RUN_MIN:
            yield np.arange(position, position + size * records, size)
            position += size * records
        else:
            # Lengths vary here: follow increasingly many records before testing for a run again.
            records = min(left, steps, end - position)  # each takes at least one byte, whatever the header claims
            steps *= 8
            found = np.fromiter(_iterate_starts(content, position, records + 1), np.int64, records + 1)
            yield found[:-1]
            position = int(found[-1])
        left -= records
    if left or position != end:
        followed = f"{span.records - left} of {span.records} records"
        raise CorruptMessage(f"{followed} end at byte {position}, their batch at {end}")


def _run(content: bytes, position: int, end: int, left: int) -> tuple[int, int]:
    """Return the size of the record at `position` and the number of consecutive records of that size."""
    try:
        size = _SIZES[content[position]][content[position + 1]]
    except IndexError:  # a longer varint, or the end of the content
        return 0, 0
    last = position + size * (_RUN_MIN - 1)
    fits = min(left, (end - position) // size)
    if size < 2 or fits < _RUN_MIN or content[position : position + 2] != content[last : last + 2]:
        return size, 0
    # Compare the first two bytes of each record: the length, possibly followed by the attributes, which are constant.
    lengths: Numbers = np.ndarray((fits,), "<u2", content, position, (size,))
    is_same = lengths == lengths[0]
    return size, fits if is_same.all() else int(is_same.argmin())


def _iterate_starts(content: bytes, position: int, count: int) -> Iterator[int]:
    sizes = _SIZES
    yield position
    for _ in range(count - 1):
        try:
            position += sizes[content[position]][content[position + 1]]
        except IndexError:
            position = _skip_long_varint(content, position)
        yield position


def _skip_long_varint(content: bytes, position: int) -> int:
    encoded = 0
    for index in range(_LENGTH_BYTES_MAX):
        byte = content[position + index]
        encoded |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return position + index + 1 + (encoded >> 1)
    raise CorruptMessage(f"the record at byte {position} has no length")

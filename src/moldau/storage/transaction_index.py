"""Transaction index: the aborted transactions of a segment, for read_committed consumers.

An entry is Kafka's: version, producer id, first and last offset of the transaction, and the last stable offset when the
abort marker was written. Entries are ordered by last offset.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Final, NamedTuple

ENTRY_BYTES: Final = 34
_VERSION: Final = 0
_ENTRY: Final = Struct(">hqqqq")


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class CorruptTransactionIndex(ValueError):
    """The file is not a valid transaction index of this segment."""


def encode(entries: Iterable[AbortedTransaction]) -> bytes:
    return b"".join(_ENTRY.pack(_VERSION, *entry) for entry in entries)


def decode(data: bytes, base_offset: int) -> list[AbortedTransaction]:
    """Parse all entries; they must belong to the segment and be in order."""
    if len(data) % ENTRY_BYTES:
        raise CorruptTransactionIndex("truncated entry")
    entries: list[AbortedTransaction] = []
    last_offset = base_offset - 1
    for version, *fields in _ENTRY.iter_unpack(data):
        entry = AbortedTransaction._make(fields)
        if version != _VERSION or entry.last_offset <= last_offset or entry.first_offset > entry.last_offset:
            raise CorruptTransactionIndex(f"entry {len(entries)} is not an aborted transaction of this segment")
        last_offset = entry.last_offset
        entries.append(entry)
    return entries


def _last_offset(entry: AbortedTransaction) -> int:
    return entry.last_offset


def aborted_between(
    entries: Sequence[AbortedTransaction], start_offset: int, end_offset: int
) -> tuple[list[AbortedTransaction], bool]:
    """Return the transactions that overlap [start, end), and whether later segments cannot have more of them."""
    found = []
    for position in range(bisect_left(entries, start_offset, key=_last_offset), len(entries)):
        entry = entries[position]
        if entry.first_offset < end_offset:
            found.append(entry)
        if entry.last_stable_offset >= end_offset:
            return found, True
    return found, False

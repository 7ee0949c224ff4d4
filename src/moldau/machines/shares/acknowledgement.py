"""Acknowledgements of members for the records that they have acquired."""

from collections.abc import Sequence
from enum import IntEnum
from itertools import groupby
from typing import Final, NamedTuple

from moldau.model.errors import InvalidRequest


class AcknowledgeType(IntEnum):
    """A member's acknowledgement of a record, with Kafka's numbers."""

    GAP = 0  # there is no such record: it was compacted away, or is a control record
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


TYPES: Final = frozenset(AcknowledgeType)


class OffsetRange(NamedTuple):
    first_offset: int
    last_offset: int


class Acknowledgement(NamedTuple):
    """The acknowledgement of a range of records: one type for each of them, or one for all."""

    first_offset: int
    last_offset: int
    types: Sequence[int]


Change = tuple[OffsetRange, int]


def changes_of(acknowledgement: Acknowledgement) -> list[Change]:
    """Ranges of consecutive records with the same type of acknowledgement."""
    first_offset, last_offset, types = acknowledgement
    if first_offset > last_offset or len(types) not in (1, last_offset - first_offset + 1):
        raise InvalidRequest(f"{len(types)} acknowledgement types do not fit records {first_offset} to {last_offset}.")
    if len(types) == 1:
        return [(OffsetRange(first_offset, last_offset), types[0])]
    changes = []
    for kind, group in groupby(types):
        next_offset = first_offset + sum(1 for _ in group)
        changes.append((OffsetRange(first_offset, next_offset - 1), kind))
        first_offset = next_offset
    return changes

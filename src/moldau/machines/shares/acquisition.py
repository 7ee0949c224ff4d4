"""The acquisition of a fetch: the batches found in the log, its limits, and the acquired records."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from moldau.machines.shares.acknowledgement import OffsetRange


class AcquiredRange(NamedTuple):
    """Records acquired at once, with the number of their delivery attempts, this one included."""

    first_offset: int
    last_offset: int
    delivery_count: int


class AcquireLimits(NamedTuple):
    """The limits of one fetch."""

    records_max: int
    batch_size: int
    is_strict: bool  # share.acquire.mode=record_limit (KIP-1206); otherwise whole batches are acquired


class LogRead(NamedTuple):
    """A part of the log: the batches from `first_offset` on that may be delivered, and where the part ends.

    Offsets outside the batches hold nothing to deliver: gaps of compaction, control records, aborted transactions.
    """

    first_offset: int
    end_offset: int
    batches: Sequence[OffsetRange]


def join(acquired: list[AcquiredRange], more: Iterable[AcquiredRange], size_max: int) -> None:
    """Append ranges, joined with the ones before them where they are alike and not too large."""
    for each in more:
        newest = acquired[-1] if acquired else None
        if (
            newest is not None
            and newest[1:] == (each.first_offset - 1, each.delivery_count)
            and each.last_offset - newest.first_offset < size_max
        ):
            acquired[-1] = newest._replace(last_offset=each.last_offset)
        else:
            acquired.append(each)

"""Aborted transactions of a log across its segments, robust against lost and corrupt indexes."""

from moldau.storage.segment import Segment
from moldau.storage.segments import Segments
from moldau.storage.transaction_index import AbortedTransaction, aborted_between


class UnverifiedTransactionIndex(Exception):
    """The transaction index of a segment must be compared with the log before it is used."""

    def __init__(self, segment: Segment) -> None:
        super().__init__(f"{segment.aborted.path} is not verified")
        self.segment = segment


def find_aborted(segments: Segments, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
    """Return the transactions with records in [start, end). Raises `UnverifiedTransactionIndex`."""
    found: list[AbortedTransaction] = []
    for number in range(segments.index_for(start_offset), len(segments)):
        segment = segments.all[number]
        known = segment.aborted.entries
        if not segment.aborted.is_verified:
            raise UnverifiedTransactionIndex(segment)
        entries, is_complete = aborted_between(known, start_offset, end_offset)
        found += entries
        if is_complete:
            break
    return found

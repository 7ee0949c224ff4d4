"""The aborted transactions of a whole log, segment by segment, whatever happened to their indexes."""

from collections.abc import Sequence
from dataclasses import dataclass

from moldau.storage.producer_snapshots import Snapshots
from moldau.storage.producer_state import Producers
from moldau.storage.recovery import replay, replay_segments
from moldau.storage.segments import Segments
from moldau.storage.transaction_index import AbortedTransaction, CorruptTransactionIndex, aborted_between


@dataclass(frozen=True, slots=True)
class AbortedTransactions:
    """A log as far as its aborted transactions need it."""

    segments: Segments
    snapshots: Snapshots
    end_offset: int

    def between(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """The transactions that have records in [start, end)."""
        found: list[AbortedTransaction] = []
        for number in range(self.segments.index_for(start_offset), len(self.segments)):
            entries, is_complete = aborted_between(self._entries_of(number), start_offset, end_offset)
            found += entries
            if is_complete:
                break
        return found

    def restore(self, base_offsets: Sequence[int]) -> None:
        """Make the indexes of these segments from the log, as far as the segments are still there."""
        for number, segment in enumerate(self.segments.all):
            if segment.base_offset in base_offsets:
                segment.replace_transactions(self._entries_from_log(number))
                segment.sync_transactions()  # before the other indexes are: their loss is what tells of this one's

    def _entries_of(self, number: int) -> list[AbortedTransaction]:
        segment = self.segments.all[number]
        try:
            return segment.transactions
        except CorruptTransactionIndex:
            segment.replace_transactions(self._entries_from_log(number))
            return segment.transactions

    def _entries_from_log(self, number: int) -> list[AbortedTransaction]:
        """What the index of a segment should hold, from the state before it and its batches."""
        segment = self.segments.all[number]
        producers = Producers()
        self.snapshots.load_latest(producers, self.segments.bases[0], segment.base_offset, now_ms=0)
        replay_segments(self.segments.all[:number], producers, segment.base_offset)
        return replay(segment, producers, self.segments.bound_of(number, self.end_offset))

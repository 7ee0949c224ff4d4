"""Aborted transactions of a log across its segments, robust against lost indexes."""

from collections.abc import Sequence
from dataclasses import dataclass

from moldau.storage.producer_snapshots import Snapshots
from moldau.storage.producer_state import Producers
from moldau.storage.recovery import replay, replay_segments
from moldau.storage.segments import Segments
from moldau.storage.transaction_index import AbortedTransaction, CorruptTransactionIndex, aborted_between


@dataclass(frozen=True, slots=True)
class AbortedTransactions:
    """The parts of a log that the lookup of aborted transactions needs."""

    segments: Segments
    snapshots: Snapshots
    end_offset: int

    def between(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Return the transactions with records in [start, end)."""
        found: list[AbortedTransaction] = []
        for number in range(self.segments.index_for(start_offset), len(self.segments)):
            entries, is_complete = aborted_between(self._entries_of(number), start_offset, end_offset)
            found += entries
            if is_complete:
                break
        return found

    def restore(self, base_offsets: Sequence[int]) -> None:
        """Rebuild the transaction indexes of these segments from the log, if the segments still exist."""
        for number, segment in enumerate(self.segments.all):
            if segment.base_offset in base_offsets:
                segment.aborted.replace(self._entries_from_log(number))
                # Before the other indexes: their absence is what reveals the loss of this one
                segment.aborted.sync()

    def _entries_of(self, number: int) -> list[AbortedTransaction]:
        segment = self.segments.all[number]
        try:
            return segment.aborted.entries
        except CorruptTransactionIndex:
            segment.aborted.replace(self._entries_from_log(number))
            return segment.aborted.entries

    def _entries_from_log(self, number: int) -> list[AbortedTransaction]:
        """Compute a segment's transaction index from the producer state before it and its batches."""
        segment = self.segments.all[number]
        producers = Producers()
        self.snapshots.load_latest(producers, self.segments.bases[0], segment.base_offset, now_ms=0)
        replay_segments(self.segments.all[:number], producers, segment.base_offset)
        return replay(segment, producers, self.segments.bound_of(number, self.end_offset))

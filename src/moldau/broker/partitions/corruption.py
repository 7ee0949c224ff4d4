"""The corrupt ranges of a partition's log: they are not served, the batches beside them are."""

from collections.abc import Callable, Sequence

from moldau.broker.partitions.partition_role import PartitionRole
from moldau.model.errors import CorruptMessage, KafkaError, StorageFailed
from moldau.model.ids import TopicPartition
from moldau.storage.corrupt_range import CorruptRange, CorruptRanges, find_corruption_at
from moldau.storage.log import Log
from moldau.storage.segment import Segment


def _ignore(found: CorruptRange) -> None:
    """Ignore the corrupt range."""


class PartitionCorruption:
    """The corrupt ranges of a log, and the errors of reads that meet them."""

    __slots__ = ("_name", "_role", "first", "is_abandoned", "on_found", "ranges")

    def __init__(self, name: TopicPartition, role: PartitionRole) -> None:
        self._name = name
        self._role = role
        self.ranges = CorruptRanges()
        self.first: CorruptRange | None = None
        self.on_found: Callable[[CorruptRange], None] = _ignore
        self.is_abandoned = False  # another replica has the records: the log is reopened without the corrupt range

    def mark(self, found: CorruptRange) -> None:
        """Stop serving the corrupt range."""
        if not self.ranges.add(found):
            return
        if self.first is None or found.offset < self.first.offset:
            self.first = found
        self.on_found(found)

    def mark_segment(self, segment: Segment, found: Sequence[CorruptRange]) -> None:
        """A segment was verified: its corrupt ranges are not served, the batches beside them are."""
        for each in found:
            segment.verification.mark_corrupt(each)
            self.mark(each)

    def check_batch(self, log: Log, offset: int) -> None:
        """Verify a batch that a follower fetches repeatedly, because it cannot append it."""
        found = find_corruption_at(log, offset)
        if found is not None:
            self.mark(found)
            raise StorageFailed(f"{self._name} is corrupt: {found}.")

    def readable_until(self, offset: int, until_offset: int) -> int:
        """The end of a read from `offset`: at the next corrupt range, if it comes before `until_offset`."""
        found = self.ranges.first_after(offset)
        if found is None:
            return until_offset
        if found.offset <= offset:
            raise self._error(found)
        return min(until_offset, found.offset)

    def record_unreadable(self, found: CorruptRange) -> KafkaError:
        """A read came upon a corrupt batch: mark it, and return the error for the client."""
        self.mark(found)
        return self._error(found)

    def _error(self, found: CorruptRange) -> KafkaError:
        """Clients retry with another replica; without one they must know that the records are lost."""
        text = f"{self._name} is corrupt: {found}."
        return CorruptMessage(text) if self._role.leads_alone else StorageFailed(text)

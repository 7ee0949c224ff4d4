"""Batches that arrive together are written together: one call for all that a connection sent in one turn.

A write costs as much for the call as for the bytes. So while more frames of a turn follow, logs gather what is appended
to them, and it is written before the turn's answers leave. Nobody sees it earlier: nothing else runs within a turn.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moldau.broker.partitions.partition import Partition


class WriteCoalescer:
    """What is gathered in the turn that runs now."""

    __slots__ = ("_partitions", "is_empty", "is_open", "more_follows", "newest")

    def __init__(self) -> None:
        self.is_open = False  # only within a turn, while more of it follows
        self.is_empty = True
        self.more_follows = False  # whoever sent this is in the middle of another batch
        self.newest: Partition | None = None  # whose batch came last; mostly the next is its too
        self._partitions: dict[Partition, None] = {}

    def add(self, partition: "Partition") -> None:
        self._partitions[partition] = None
        self.newest = partition
        self.is_empty = False

    def write(self) -> None:
        """Before anything reads a log in the same turn. What fails is told by `end`."""
        for partition in self._partitions:
            partition.write_buffered()

    def close(self) -> None:
        """What is appended from now on is written at once, until a turn opens it again."""
        self.is_open = False
        if not self.is_empty:
            self.write()

    def end(self) -> OSError | None:
        """The turn is over: write what is left. The failure, if anything of the turn could not be written."""
        self.is_open = False
        self.write()
        failure = None
        for partition in self._partitions:
            failure = partition.take_gathered_failure() or failure
        self._partitions.clear()
        self.newest = None
        self.is_empty = True
        return failure

"""Coalesces writes: one write call per log for all batches of a connection in one turn of the event loop.

A write costs as much for the call as for the bytes. So while more frames of a turn follow, logs buffer their appends,
and the buffer is written before the turn's responses leave. Nothing else runs within a turn, so no reader misses it.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moldau.broker.partitions.partition import Partition


class WriteCoalescer:
    """The logs with buffered appends in the current turn."""

    __slots__ = ("_partitions", "is_empty", "is_open", "more_follows", "newest")

    def __init__(self) -> None:
        self.is_open = False  # only within a turn, while more frames follow
        self.is_empty = True
        self.more_follows = False  # the client is in the middle of sending another batch
        self.newest: Partition | None = None  # the partition of the last batch; usually of the next, too
        self._partitions: dict[Partition, None] = {}

    def add(self, partition: "Partition") -> None:
        self._partitions[partition] = None
        self.newest = partition
        self.is_empty = False

    def write(self) -> None:
        """Write before a log is read in the same turn. `end` returns the failure, if any."""
        for partition in self._partitions:
            partition.write_buffered()

    def close(self) -> None:
        """Write appends at once from now on, until a turn opens it again."""
        self.is_open = False
        if not self.is_empty:
            self.write()

    def end(self) -> OSError | None:
        """End the turn: write the rest and return the error if any write of the turn failed."""
        self.is_open = False
        self.write()
        failure = None
        for partition in self._partitions:
            failure = partition.take_coalesced_failure() or failure
        self._partitions.clear()
        self.newest = None
        self.is_empty = True
        return failure

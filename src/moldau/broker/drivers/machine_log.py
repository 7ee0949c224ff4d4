"""The log that a replicated machine stands on, as its driver sees it."""

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Protocol, TypeVar

Record = TypeVar("Record")


class MachineLog(Protocol[Record]):
    """Append, replay, and the news of what is committed. Nobody but the driver appends to it without `flush` first."""

    @property
    def end_offset(self) -> int:
        """Where the next record will stand."""
        ...

    @property
    def high_watermark(self) -> int:
        """All records below it are committed. It never goes back."""
        ...

    def append(self, decisions: Sequence[Sequence[Record]]) -> None:
        """Write the records of several decisions in order. After a crash all of a decision is there, or none of it.

        `NotLeaderOrFollower` and its like say that this node may not write any more; any other `KafkaError`, and an
        `OSError`, that it cannot write now.
        """
        ...

    def watch(self, committed: Callable[[int], None]) -> None:
        """Call `committed` with the high watermark, on the event loop, whenever it has advanced."""
        ...

    def replay(self) -> AsyncGenerator[Iterable[tuple[int, Record]], None]:
        """Every record with its offset, from the beginning to the end, in chunks.

        Reading a chunk may wait; iterating over it decodes record by record and does not. An empty one says that there
        is more to read.
        """
        ...

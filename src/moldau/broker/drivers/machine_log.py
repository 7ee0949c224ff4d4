"""The log of a replicated machine, as its driver sees it."""

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Protocol, TypeVar

Record = TypeVar("Record")


class MachineLog(Protocol[Record]):
    """Append, replay, and notification of commits. Any other writer must call the driver's `flush` first."""

    @property
    def end_offset(self) -> int:
        """The offset of the next record."""
        ...

    @property
    def high_watermark(self) -> int:
        """All records below it are committed. It never decreases."""
        ...

    def append(self, decisions: Sequence[Sequence[Record]]) -> None:
        """Append the records of several decisions in order. After a crash each decision is there completely or not at
        all.

        Raises `NotLeaderOrFollower` or the like if this node may no longer write; any other `KafkaError`, or an
        `OSError`, if it cannot write at present.
        """
        ...

    def watch(self, committed: Callable[[int], None]) -> None:
        """Call `committed` with the high watermark, on the event loop, whenever it has advanced."""
        ...

    def replay(self) -> AsyncGenerator[Iterable[tuple[int, Record]], None]:
        """Yield all records with their offsets, from start to end, in chunks.

        Reading a chunk may wait; iterating over it decodes record by record and does not. An empty chunk means that
        there is more to read.
        """
        ...

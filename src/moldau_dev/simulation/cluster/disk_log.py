"""The logs on a simulated disk, read without its faults, whether a process runs or not."""

from bisect import bisect_right
from itertools import zip_longest
from typing import NamedTuple

from moldau.model.ids import NO_PRODUCER_ID
from moldau.records.header import HEADER_BYTES, read_header
from moldau.testing.disk import SimulatedDisk
from moldau.testing.inodes import Folder, Inode


class Batch(NamedTuple):
    """One record batch: equal only if offsets, epoch and content are."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    crc: int
    producer_id: int = NO_PRODUCER_ID
    is_transactional: bool = False
    is_control: bool = False


class LogOnDisk:
    """The batches of one replica, read incrementally unless the log was truncated."""

    def __init__(self, disk: SimulatedDisk, path: str) -> None:
        self.batches: list[Batch] = []
        self.rereads = 0  # how often batches read before were gone
        self._disk, self._path = disk, path
        self._segment = ""  # the last segment read
        self._position = 0  # after the last batch read
        self._last_position = 0  # of that batch
        self._inode: Inode | None = None  # of that segment
        self._names = -1  # how many files there were
        self._ends: list[tuple[str, int]] = []  # segment and end position of each batch

    def durable_end_offset(self, since_offset: int = 0) -> int:
        """Return the end of what survives a power loss, as of the last `refresh`.

        Segments below `since_offset` are ignored: a snapshot covers them.
        """
        folder = self._disk.node(self._path)
        segments = _segments(folder) if isinstance(folder, Folder) else {}
        names = sorted(segments)
        for name, following in zip_longest(names, names[1:]):
            if following is not None and _base_offset(following) <= since_offset:
                continue
            is_named = isinstance(folder, Folder) and folder.durable.get(name) is segments[name]
            pending = _first_pending(segments[name]) if is_named else 0
            if pending is not None:
                count = bisect_right(self._ends, (name, pending))
                return self.batches[count - 1].last_offset + 1 if count else self.start_offset
        return self.end_offset

    @property
    def end_offset(self) -> int:
        return self.batches[-1].last_offset + 1 if self.batches else _base_offset(self._segment)

    @property
    def start_offset(self) -> int:
        return self.batches[0].base_offset if self.batches else _base_offset(self._segment)

    @property
    def durable_files(self) -> list[str]:
        """The names of the files in its folder that survive a power loss with their content."""
        folder = self._disk.node(self._path)
        if not isinstance(folder, Folder):
            return []
        return [
            name
            for name, node in folder.durable.items()
            if isinstance(node, Inode) and folder.entries.get(name) is node and _first_pending(node) is None
        ]

    def refresh(self) -> bool:
        """Read new batches; return whether batches read before are gone or replaced."""
        folder = self._disk.node(self._path)
        if not isinstance(folder, Folder) or self._is_unchanged(folder):
            return False
        segments = _segments(folder)
        names = sorted(segments)
        is_replaced = bool(self.batches) and not self._has_last_batch(segments)
        if is_replaced or not self.batches:
            self.rereads += is_replaced
            self.batches.clear()
            self._ends.clear()
            self._segment, self._position = "", 0
        for name in names:
            if name >= self._segment:
                self._read(name, segments[name].content)
        self._inode, self._names = segments.get(self._segment), len(folder.entries)
        self._drop_removed(names)
        return is_replaced

    def _is_unchanged(self, folder: Folder) -> bool:
        """Check cheaply: same number of files, and the last one with the same length and last batch."""
        inode = folder.entries.get(self._segment)
        return (
            inode is self._inode
            and isinstance(inode, Inode)
            and len(folder.entries) == self._names
            and len(inode.content) == self._position
            and (self._position == 0 or _batch_at(inode.content, self._last_position) == self.batches[-1])
        )

    def _has_last_batch(self, segments: dict[str, Inode]) -> bool:
        inode = segments.get(self._segment)
        if inode is None or not self.batches:
            return inode is not None or not self.batches
        if self._position == 0:  # a new segment, not read yet
            return True
        return _batch_at(inode.content, self._last_position) == self.batches[-1]

    def _read(self, name: str, content: bytearray) -> None:
        position = self._position if name == self._segment else 0
        self._segment, self._position = name, position
        while (batch := _batch_at(content, position)) is not None:
            self.batches.append(batch)
            self._last_position = position
            position += 12 + int.from_bytes(content[position + 8 : position + 12], "big")
            self._position = position
            self._ends.append((name, position))

    def _drop_removed(self, names: list[str]) -> None:
        if names and self.batches and (first := _base_offset(names[0])) > self.batches[0].base_offset:
            self.batches = [batch for batch in self.batches if batch.base_offset >= first]
            self._ends = self._ends[-len(self.batches) :] if self.batches else []


def _segments(folder: Folder) -> dict[str, Inode]:
    return {name: node for name, node in folder.entries.items() if name.endswith(".log") and isinstance(node, Inode)}


def _first_pending(inode: Inode) -> int | None:
    """Return the first position whose content may not be durable."""
    return min((position for position, _ in inode.pending if position < len(inode.content)), default=None)


def _base_offset(segment: str) -> int:
    return int(segment.removesuffix(".log") or 0)


def _batch_at(content: bytearray, position: int) -> Batch | None:
    """Return the batch at a position; None if there is no complete one."""
    if len(content) < position + HEADER_BYTES:
        return None
    length = int.from_bytes(content[position + 8 : position + 12], "big")
    if length < HEADER_BYTES - 12 or len(content) < position + 12 + length:
        return None
    header = read_header(content, position)
    return Batch(
        header.base_offset,
        header.last_offset,
        header.partition_leader_epoch,
        header.crc,
        header.producer_id,
        header.is_transactional,
        header.is_control,
    )

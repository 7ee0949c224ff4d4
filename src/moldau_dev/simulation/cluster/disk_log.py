"""The logs of a host as they lie on its simulated disk: read past all faults, whether a process runs there or not."""

from bisect import bisect_right
from itertools import zip_longest
from typing import NamedTuple

from moldau.model.ids import NO_PRODUCER_ID
from moldau.records.header import HEADER_BYTES, read_header
from moldau.testing.disk import SimulatedDisk
from moldau.testing.inodes import Folder, Inode


class Batch(NamedTuple):
    """One record batch: equal only if its place, its epoch and its bytes are."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    crc: int
    producer_id: int = NO_PRODUCER_ID
    is_transactional: bool = False
    is_control: bool = False


class LogOnDisk:
    """The batches of one partition on one host, read on from where it was read before if nothing was replaced."""

    def __init__(self, disk: SimulatedDisk, path: str) -> None:
        self.batches: list[Batch] = []
        self.rereads = 0  # how often what was read before was no longer there
        self._disk, self._path = disk, path
        self._segment = ""  # the last one read
        self._position = 0  # after the last batch read
        self._last_position = 0  # of that batch
        self._inode: Inode | None = None  # of that segment
        self._names = -1  # how many files there were
        self._ends: list[tuple[str, int]] = []  # where each batch ends: the segment, and the position in it

    def durable_end_offset(self, since_offset: int = 0) -> int:
        """Up to where no power loss could take anything, as of the last `refresh`.

        Segments that lie below `since_offset` do not count: what they hold is elsewhere.
        """
        folder = self._disk.node(self._path)
        segments = _segments(folder) if isinstance(folder, Folder) else {}
        names = sorted(segments)
        for name, following in zip_longest(names, names[1:]):
            if following is not None and _base_offset(following) <= since_offset:
                continue
            is_named = isinstance(folder, Folder) and folder.durable.get(name) is segments[name]
            unsure = _first_pending(segments[name]) if is_named else 0
            if unsure is not None:
                count = bisect_right(self._ends, (name, unsure))
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
        """The names in its folder that no power loss could take, nor anything of what they stand for."""
        folder = self._disk.node(self._path)
        if not isinstance(folder, Folder):
            return []
        return [
            name
            for name, node in folder.durable.items()
            if isinstance(node, Inode) and folder.entries.get(name) is node and _first_pending(node) is None
        ]

    def refresh(self) -> bool:
        """Read what is new; says whether anything read before is gone or replaced."""
        folder = self._disk.node(self._path)
        if not isinstance(folder, Folder) or self._is_unchanged(folder):
            return False
        segments = _segments(folder)
        names = sorted(segments)
        is_replaced = bool(self.batches) and not self._still_stands(segments)
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
        """A cheap look: the same files, the last of them with the same length and the same last batch."""
        inode = folder.entries.get(self._segment)
        return (
            inode is self._inode
            and isinstance(inode, Inode)
            and len(folder.entries) == self._names
            and len(inode.content) == self._position
            and (self._position == 0 or _batch_at(inode.content, self._last_position) == self.batches[-1])
        )

    def _still_stands(self, segments: dict[str, Inode]) -> bool:
        inode = segments.get(self._segment)
        if inode is None or not self.batches:
            return inode is not None or not self.batches
        if self._position == 0:  # a fresh segment: nothing of it was read
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
    """The first place where the platter may have something else than what is seen."""
    return min((position for position, _ in inode.pending if position < len(inode.content)), default=None)


def _base_offset(segment: str) -> int:
    return int(segment.removesuffix(".log") or 0)


def _batch_at(content: bytearray, position: int) -> Batch | None:
    """The batch that begins here, None if there is no whole one."""
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

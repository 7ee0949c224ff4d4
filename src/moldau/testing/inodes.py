"""Files and folders of a `SimulatedDisk`, with a cached and a durable state.

Each has two versions: the page cache, which processes see, and the medium, as of the last sync. The pending changes
lead from the second to the first, in order; a power loss keeps a prefix of them.
"""

import random
from collections import deque
from collections.abc import Iterator
from typing import Final

PENDING_WRITES_MAX: Final = 4096  # per file; beyond it the kernel writes back the oldest


class Inode:
    """The content of one file, independent of its names."""

    __slots__ = ("allocated", "content", "durable", "is_doubtful", "links", "opens", "pending")

    def __init__(self) -> None:
        self.content = bytearray()
        self.durable = bytearray()
        self.pending: deque[tuple[int, bytes | None]] = deque()  # (position, written) or (size, None) for a truncation
        self.allocated = 0
        self.links = 0
        self.opens = 0
        self.is_doubtful = False  # an fsync failed: cached content may never become durable

    @property
    def footprint_bytes(self) -> int:
        return max(len(self.content), self.allocated)

    def write(self, position: int, written: bytes) -> None:
        """Write as a process: visible at once, durable after an fsync."""
        self._change((position, written))

    def truncate(self, size: int) -> None:
        self.allocated = min(self.allocated, size)
        self._change((size, None))

    def sync(self) -> None:
        while self.pending:
            self._write_back()

    def lose_part_of_sync(self, chance: random.Random, *, scatters: bool) -> None:
        """Fail an fsync as Linux does: pages are marked clean whether or not they were written."""
        self._keep_some(chance, scatters=scatters)
        self.pending.clear()
        self.is_doubtful = True

    def lose_cache_if_doubtful(self, chance: random.Random, *, scatters: bool) -> None:
        """Evict clean pages, which reveals what a failed fsync has lost."""
        if self.is_doubtful and (not scatters or chance.random() < 0.5):
            self.forget_pending()
        self.is_doubtful = False

    def lose_power(self, chance: random.Random, *, scatters: bool) -> None:
        """Keep some pending changes, a prefix or a scattered subset; the first lost one may be torn."""
        self._keep_some(chance, scatters=scatters)
        if self.pending and not scatters:
            self._tear(chance)
        self.forget_pending()

    def forget_pending(self) -> None:
        self.pending.clear()
        self.content = bytearray(self.durable)
        self.allocated = 0
        self.is_doubtful = False

    def _keep_some(self, chance: random.Random, *, scatters: bool) -> None:
        if scatters:
            kept = [change for change in self.pending if chance.random() < 0.5]
            self.pending = deque(kept)
            self.sync()
            return
        for _ in range(chance.randrange(0, len(self.pending) + 1)):
            self._write_back()

    def _change(self, change: tuple[int, bytes | None]) -> None:
        _apply(self.content, change)
        self.pending.append(change)
        if len(self.pending) > PENDING_WRITES_MAX:
            self._write_back()

    def _write_back(self) -> None:
        _apply(self.durable, self.pending.popleft())

    def _tear(self, chance: random.Random) -> None:
        position, written = self.pending[0]
        if written is None or chance.random() < 0.5:
            return
        kept = chance.randrange(0, len(written) + 1)
        _apply(self.durable, (position, written[:kept]))
        if chance.random() < 0.25:  # the length became durable, the content did not
            _extend(self.durable, position + len(written))


def _apply(content: bytearray, change: tuple[int, bytes | None]) -> None:
    position, written = change
    if written is None:
        del content[position:]
        _extend(content, position)
        return
    _extend(content, position)
    content[position : position + len(written)] = written


def _extend(content: bytearray, size: int) -> None:
    if len(content) < size:
        content.extend(bytes(size - len(content)))


class Folder:
    """Directory entries, cached and durable."""

    __slots__ = ("durable", "entries", "pending")

    def __init__(self) -> None:
        self.entries: dict[str, Inode | Folder] = {}
        self.durable: dict[str, Inode | Folder] = {}
        self.pending: deque[Change] = deque()

    def sync(self) -> None:
        while self.pending:
            self.pending[0].settle()

    def settle_prefix(self, chance: random.Random) -> None:
        """Make a random prefix of the pending changes durable, as a power loss does."""
        for _ in range(chance.randrange(0, len(self.pending) + 1)):
            self.pending[0].settle()

    def folders(self) -> "Iterator[Folder]":
        """Yield this folder and all below, cached or durable, in the order of their names."""
        yield self
        for name in sorted({**self.durable, **self.entries}):
            cached, durable = self.entries.get(name), self.durable.get(name)
            for node in (cached, durable) if cached is not durable else (cached,):
                if isinstance(node, Folder):
                    yield from node.folders()

    def inodes(self, prefix: str = "") -> Iterator[tuple[str, Inode]]:
        """Yield the files below this folder that a process sees, by path."""
        for name in sorted(self.entries):
            node = self.entries[name]
            path = f"{prefix}/{name}"
            if isinstance(node, Folder):
                yield from node.inodes(path)
            else:
                yield path, node


class Change:
    """One change of directory entries: a creation, a removal, or a rename, which edits two entries atomically."""

    __slots__ = ("edits",)

    def __init__(self, *edits: tuple[Folder, str, Inode | Folder | None]) -> None:
        self.edits = edits
        for folder, name, node in edits:
            _edit(folder.entries, name, node)
        for folder in self._folders():
            folder.pending.append(self)

    def settle(self) -> None:
        """Make the change durable, after all earlier changes in the same folders."""
        for folder in self._folders():
            while folder.pending and folder.pending[0] is not self and self in folder.pending:
                folder.pending[0].settle()
        for folder in self._folders():
            if folder.pending and folder.pending[0] is self:
                folder.pending.popleft()
        for folder, name, node in self.edits:
            _edit(folder.durable, name, node)

    def _folders(self) -> list[Folder]:
        return list(dict.fromkeys(folder for folder, _, _ in self.edits))


def _edit(entries: dict[str, Inode | Folder], name: str, node: Inode | Folder | None) -> None:
    if node is None:
        entries.pop(name, None)
    else:
        entries[name] = node


def path_parts(path: str) -> list[str]:
    """Split a path into its components."""
    return [part for part in path.split("/") if part not in ("", ".")]

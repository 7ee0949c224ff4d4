"""The aborted transactions of a segment and their file, the transaction index.

The file has no checksum. What this process has written or verified is remembered by a checksum in memory, because the
entries of closed segments are released and read again.
"""

from contextlib import suppress
from zlib import crc32

from moldau.model.ports import Disk
from moldau.storage import transaction_index
from moldau.storage.files import sync_directory, sync_path, write_all
from moldau.storage.names import TRANSACTION_INDEX, path_of
from moldau.storage.transaction_index import AbortedTransaction

_NOTHING_CHECKSUM = crc32(b"")


def write_end(disk: Disk, path: str, position: int, data: bytes) -> None:
    """Make a file end with `data`. Opened for this write only, so that a partition keeps one file open."""
    file = disk.open(path, create=True)
    try:
        write_all(file, data, position)
        file.truncate(position + len(data))
    finally:
        file.close()


class SegmentTransactions:
    """Aborted transactions that ended in a segment, in the order of their ends."""

    __slots__ = ("_base_offset", "_checksum", "_disk", "_entries", "_folder", "_written")

    def __init__(self, disk: Disk, folder: str, base_offset: int) -> None:
        self._disk = disk
        self._folder = folder
        self._base_offset = base_offset
        self._entries: list[AbortedTransaction] | None = None
        self._written = 0
        self._checksum: int | None = None  # of the verified content of the file; None: not verified yet

    @property
    def path(self) -> str:
        return path_of(self._folder, self._base_offset, TRANSACTION_INDEX)

    @property
    def entries(self) -> list[AbortedTransaction]:
        """Return the entries. Raises `CorruptTransactionIndex`."""
        if self._entries is None:
            data = self._disk.read(self.path) if self._disk.exists(self.path) else b""
            self._entries = transaction_index.decode(data, self._base_offset)
            self._written = len(self._entries)
            if self._checksum is not None and crc32(data) != self._checksum:
                self._checksum = None
        return self._entries

    @property
    def is_verified(self) -> bool:
        """Whether the entries are those that this process has written or verified; read them first. An index without
        entries counts as verified: recovery rebuilds a lost one."""
        return self._checksum is not None or not self._entries

    def begin(self) -> None:
        """The segment is new: it has no entries."""
        self._entries = []
        self._checksum = _NOTHING_CHECKSUM

    def add(self, transaction: AbortedTransaction) -> None:
        self.entries.append(transaction)
        with suppress(OSError):  # the marker is already in the log; a later write retries
            self.write()

    def write(self) -> None:
        """Write the entries that are not in the file yet."""
        entries = self.entries
        if len(entries) == self._written:
            return
        data = transaction_index.encode(entries[self._written :])
        write_end(self._disk, self.path, self._written * transaction_index.ENTRY_BYTES, data)
        self._written = len(entries)
        if self._checksum is not None:
            self._checksum = crc32(data, self._checksum)

    def truncate(self, end_offset: int) -> None:
        """Drop the transactions that ended at `end_offset` or later."""
        kept = [each for each in self.entries if each.last_offset < end_offset]
        if len(kept) < len(self.entries):
            self.replace(kept)

    def replace(self, entries: list[AbortedTransaction]) -> None:
        """Rewrite the index with entries that were computed from the log."""
        self._entries = entries
        data = transaction_index.encode(entries)
        if entries or self._disk.exists(self.path):
            write_end(self._disk, self.path, 0, data)
        self._written = len(entries)
        self._checksum = crc32(data)

    def sync(self) -> None:
        """Sync the index: small, and present only after aborts."""
        if self._disk.exists(self.path):
            sync_path(self._disk, self.path)
            sync_directory(self._disk, self._folder)

    def release(self) -> None:
        self._entries = self._entries and None  # an empty list takes no space and is requested often

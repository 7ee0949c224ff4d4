"""The aborted transactions of a segment and their file, the transaction index.

The file has no checksum, so an index that an earlier run has written is compared with the log before its first use (see
transaction_replay.py). What this process has written or verified is remembered by a checksum in memory, because the
entries of closed segments are released and read again.
"""

from contextlib import suppress
from zlib import crc32

from moldau.model.ports import Disk
from moldau.storage import transaction_index
from moldau.storage.files import sync_directory, sync_path, write_all
from moldau.storage.names import TRANSACTION_INDEX, path_of
from moldau.storage.transaction_index import AbortedTransaction, CorruptTransactionIndex

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

    __slots__ = ("_base_offset", "_checksum", "_disk", "_entries", "_folder", "_written", "is_verified")

    def __init__(self, disk: Disk, folder: str, base_offset: int) -> None:
        self._disk = disk
        self._folder = folder
        self._base_offset = base_offset
        self._entries: list[AbortedTransaction] | None = None
        self._written = 0
        self._checksum: int | None = None  # of the content of the file, once it was written or verified
        self.is_verified = False  # whether the entries are those that this process has written or verified

    def renamed_to(self, folder: str) -> None:
        self._folder = folder

    @property
    def path(self) -> str:
        return path_of(self._folder, self._base_offset, TRANSACTION_INDEX)

    @property
    def entries(self) -> list[AbortedTransaction]:
        """The entries; none of an invalid file. Read them before `is_verified`."""
        if self._entries is None:
            self._entries = self._load()
            self._written = len(self._entries)
        return self._entries

    def _load(self) -> list[AbortedTransaction]:
        data = self._disk.read(self.path) if self._disk.exists(self.path) else b""
        checksum = crc32(data)
        # An empty index needs no verification: recovery rebuilds a lost one.
        self.is_verified = checksum == (_NOTHING_CHECKSUM if self._checksum is None else self._checksum)
        self._checksum = checksum if self.is_verified else None
        try:
            return transaction_index.decode(data, self._base_offset)
        except CorruptTransactionIndex:
            return []

    def begin(self) -> None:
        """The segment is new: it has no entries."""
        self._entries = []
        self._written = 0
        self._checksum = _NOTHING_CHECKSUM
        self.is_verified = True

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
            was_verified = self.is_verified
            self.replace(kept)
            if not was_verified:
                self.is_verified, self._checksum = False, None

    def replace(self, entries: list[AbortedTransaction]) -> None:
        """Rewrite the index with entries that were computed from the log. If the write fails, they stay in memory."""
        self.begin()
        self._entries = entries
        if entries:
            self.write()
        elif self._disk.exists(self.path):
            write_end(self._disk, self.path, 0, b"")

    def confirm(self, entries: list[AbortedTransaction], count: int) -> bool:
        """The first `count` entries should be these, which were computed from the log, and all others were added since.
        If they are not, rewrite the index. Return whether it was valid: compaction leaves entries without records,
        which are dropped."""
        known = self.entries
        if count and known[:count] == entries:
            self.is_verified = True
            self._checksum = crc32(transaction_index.encode(known[: self._written]))
            return True
        was_valid = count > 0 and set(entries) <= set(known[:count])
        self.replace([*entries, *known[count:]])
        return was_valid

    def sync(self) -> None:
        """Sync the index: small, and present only after aborts."""
        if self._disk.exists(self.path):
            sync_path(self._disk, self.path)
            sync_directory(self._disk, self._folder)

    def release(self) -> None:
        self._entries = self._entries and None  # an empty list takes no space and is requested often

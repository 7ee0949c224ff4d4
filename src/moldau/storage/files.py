"""File writes: complete writes, and atomic replacement."""

import errno
from contextlib import suppress
from typing import Final

from moldau.model.ports import Buffer, Disk, File
from moldau.model.units import MiB
from moldau.storage.names import TEMPORARY

NO_DESCRIPTOR: Final = (errno.EMFILE, errno.ENFILE)

_CHUNK_BYTES: Final = 1 * MiB


class SyncFailed(Exception):
    """A sync failed: it is unknown which writes are lost. Do not retry; stop the node."""


def sync(file: File) -> None:
    try:
        file.fsync()
    except OSError as error:
        raise SyncFailed(f"sync failed: {error}") from error


def sync_path(disk: Disk, path: str) -> None:
    file = disk.open(path, read_only=True)
    try:
        sync(file)
    finally:
        file.close()


def sync_directory(disk: Disk, folder: str) -> None:
    try:
        disk.sync_directory(folder)
    except OSError as error:
        if error.errno in NO_DESCRIPTOR:
            raise  # it could not be opened: nothing was tried, so it may be retried
        raise SyncFailed(f"sync of {folder} failed: {error}") from error


def write_all(file: File, data: Buffer, position: int, taken: int = 0) -> None:
    """Write until every byte is written; a write may be partial. The first `taken` bytes are written already."""
    view = memoryview(data)
    while taken < len(view):
        taken += file.pwrite(view[taken:], position + taken)


def rewrite(disk: Disk, path: str, start: int, end: int) -> None:
    """Rewrite bytes of a file unchanged, so that the next sync writes them."""
    file = disk.open(path)
    try:
        for position in range(start, end, _CHUNK_BYTES):
            write_all(file, file.pread(min(_CHUNK_BYTES, end - position), position), position)
    finally:
        file.close()


def roll_back(file: File, size: int) -> None:
    """Remove the rest of a failed write. If that fails too, the next write overwrites it."""
    with suppress(OSError):
        file.truncate(size)


def write_or_roll_back(file: File, data: Buffer, position: int) -> None:
    """Write at the end of a file, all or nothing."""
    try:
        taken = file.pwrite(data, position)
        if taken != len(data):
            write_all(file, data, position, taken)
    except OSError:
        roll_back(file, position)
        raise


def replace_file(disk: Disk, path: str, data: bytes) -> None:
    """Replace the contents of `path` atomically: after a crash it has the old contents or the new."""
    _write_temporary(disk, path, data, is_synced=True)
    disk.rename(path + TEMPORARY, path)
    sync_directory(disk, path.rpartition("/")[0])


def replace_cache(disk: Disk, path: str, data: bytes) -> None:
    """Replace a derived file without syncing: a torn one is detected and rebuilt."""
    _write_temporary(disk, path, data, is_synced=False)
    disk.rename(path + TEMPORARY, path)


def _write_temporary(disk: Disk, path: str, data: bytes, *, is_synced: bool) -> None:
    file = disk.open(path + TEMPORARY, create=True)
    try:
        file.truncate(0)
        write_all(file, data, 0)
        if is_synced:
            sync(file)
    finally:
        file.close()

"""Writing files whole: all of the bytes, or a replacement that readers see at once."""

from contextlib import suppress
from typing import Final

from moldau.model.ports import Buffer, Disk, File
from moldau.model.units import MiB
from moldau.storage.names import TEMPORARY

_CHUNK_BYTES: Final = 1 * MiB


class SyncFailed(Exception):
    """The disk could not keep what it had taken. Nobody knows what is lost, so nothing is tried again: stop."""


def sync(file: File) -> None:
    try:
        file.fsync()
    except OSError as error:
        raise SyncFailed(f"a sync has failed: {error}") from error


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
        raise SyncFailed(f"a sync of {folder} has failed: {error}") from error


def write_all(file: File, data: Buffer, position: int, taken: int = 0) -> None:
    """Write on until every byte is taken; a disk may take fewer than it is given. `taken` bytes are there already."""
    view = memoryview(data)
    while taken < len(view):
        taken += file.pwrite(view[taken:], position + taken)


def rewrite(disk: Disk, path: str, start: int, end: int) -> None:
    """Bytes of a file as they are, so that the next sync has something to write."""
    file = disk.open(path)
    try:
        for position in range(start, end, _CHUNK_BYTES):
            write_all(file, file.pread(min(_CHUNK_BYTES, end - position), position), position)
    finally:
        file.close()


def roll_back(file: File, size: int) -> None:
    """Remove what a failed write may have left behind. If that fails too, the next write goes over it."""
    with suppress(OSError):
        file.truncate(size)


def write_or_roll_back(file: File, data: Buffer, position: int) -> None:
    """Write at the end of a file, all of it or nothing."""
    try:
        taken = file.pwrite(data, position)
        if taken != len(data):
            write_all(file, data, position, taken)
    except OSError:
        roll_back(file, position)
        raise


def replace_file(disk: Disk, path: str, data: bytes) -> None:
    """Make `path` hold `data`: whoever looks, after whatever crash, finds the old content or the new."""
    _write_temporary(disk, path, data, is_synced=True)
    disk.rename(path + TEMPORARY, path)
    sync_directory(disk, path.rpartition("/")[0])


def replace_cache(disk: Disk, path: str, data: bytes) -> None:
    """Replace a file that can be made anew: nothing is synced, a torn one is found out."""
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

"""The `Disk`, `File` and `DirectoryLock` ports of one process on a simulated disk."""

import errno
import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from moldau.model.ports import Buffer
from moldau.testing.disk_faults import Crashed, os_error
from moldau.testing.inodes import Folder, Inode, path_parts

if TYPE_CHECKING:
    from moldau.testing.disk import SimulatedDisk


class MountedDisk:
    """The `Disk` port of one process. After the death of the process, every call raises `Crashed`."""

    def __init__(self, disk: "SimulatedDisk", incarnation: int) -> None:
        self._disk = disk
        self._incarnation = incarnation

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> "SimulatedFile":
        self.check_alive()
        self._disk.fail_if_planned("open", path)
        if create and self._disk.node(path) is None:
            parent, name = self._parent_of(path)
            self._disk.perform("create", path, lambda: self._disk.change((parent, name, Inode())))
        return SimulatedFile(self, self._disk, path, self._disk.inode(path), read_only)

    def map(self, path: str) -> memoryview:
        return memoryview(self.read(path))

    def read(self, path: str) -> bytes:
        self.check_alive()
        inode = self._disk.inode(path)
        self._disk.fail_if_planned("pread", path)
        if self._disk.fires("read error", self._disk.faults.read_error, path):
            raise os_error(errno.EIO, path)
        return bytes(inode.content)

    def read_uncached(self, path: str, length: int, position: int) -> bytes:
        return self.open(path, read_only=True).pread(length, position)

    def list(self, directory: str) -> list[str]:
        self.check_alive()
        return sorted(self._disk.folder(directory).entries)

    def exists(self, path: str) -> bool:
        self.check_alive()
        return self._disk.node(path) is not None

    def size(self, path: str) -> int:
        self.check_alive()
        return len(self._disk.inode(path).content)

    def make_directory(self, directory: str) -> None:
        self.check_alive()
        parent, path = self._disk.root, ""
        for part in path_parts(directory):
            path = f"{path}/{part}"
            node = parent.entries.get(part)
            if node is None:
                node = self._new_folder(parent, part, path)
            if not isinstance(node, Folder):
                raise os_error(errno.ENOTDIR, path)
            parent = node

    def rename(self, old: str, new: str) -> None:
        self.check_alive()
        source, old_name = self._parent_of(old)
        target, new_name = self._parent_of(new)
        node = source.entries.get(old_name)
        replaced = target.entries.get(new_name)
        if node is None:
            raise os_error(errno.ENOENT, old)
        if node is replaced:
            return
        if isinstance(replaced, Folder) and (isinstance(node, Inode) or replaced.entries):
            raise os_error(errno.ENOTEMPTY if isinstance(node, Folder) else errno.EISDIR, new)
        if isinstance(node, Folder) and isinstance(replaced, Inode):
            raise os_error(errno.ENOTDIR, new)
        self._disk.perform(
            "rename",
            old,
            lambda: self._disk.change((source, old_name, None), (target, new_name, node)),
            detail=f"to {new}",
        )

    def unlink(self, path: str) -> None:
        self.check_alive()
        self._disk.inode(path)
        parent, name = self._parent_of(path)
        self._disk.perform("unlink", path, lambda: self._disk.change((parent, name, None)))

    def remove_directory(self, directory: str) -> None:
        self.check_alive()
        removed = self._disk.folder(directory)
        parent, name = self._parent_of(directory)

        def remove() -> None:
            self._empty(removed)
            self._disk.change((parent, name, None))

        self._disk.perform("remove_directory", directory, remove, torn=lambda: self._empty(removed, is_torn=True))

    def sync_directory(self, directory: str) -> None:
        self.check_alive()
        synced = self._disk.folder(directory)
        self._disk.perform("sync_directory", directory, synced.sync)

    def free_bytes(self, directory: str) -> int:
        self.check_alive()
        self._disk.folder(directory)
        return self._disk.available_bytes()

    def total_bytes(self, directory: str) -> int:
        self.check_alive()
        self._disk.folder(directory)
        return self._disk.capacity_bytes

    def files_max(self) -> int:
        return self._disk.files_max

    def boot_id(self) -> str:
        return f"{self._disk.name} boot {self._disk.boots}"

    def lock(self, path: str) -> "SimulatedLock":
        self.open(path, create=True).close()
        self._disk.take_lock(path, self._incarnation)
        return SimulatedLock(self._disk, path, self._incarnation)

    @property
    def is_alive(self) -> bool:
        return self._disk.is_alive(self._incarnation)

    def check_alive(self) -> None:
        if not self.is_alive:
            raise Crashed(f"I/O by a dead process of {self._disk.name}")

    def _new_folder(self, parent: Folder, name: str, path: str) -> Folder:
        directory = Folder()
        self._disk.perform("make_directory", path, lambda: self._disk.change((parent, name, directory)))
        return directory

    def _parent_of(self, path: str) -> tuple[Folder, str]:
        *above, name = path_parts(path)
        return self._disk.folder("/".join(above)), name

    def _empty(self, directory: Folder, *, is_torn: bool = False) -> None:
        names = sorted(directory.entries)
        for name in names[: len(names) // 2] if is_torn else names:
            node = directory.entries[name]
            if isinstance(node, Folder):
                self._empty(node)
            self._disk.change((directory, name, None))


class SimulatedLock:
    """The lock of a directory, held until released or until its process dies."""

    def __init__(self, disk: "SimulatedDisk", path: str, incarnation: int) -> None:
        self._disk, self._path, self._incarnation = disk, path, incarnation

    def release(self) -> None:
        if self._disk.is_alive(self._incarnation):
            self._disk.release_lock(self._path)


class SimulatedFile:
    """The `File` port over one inode."""

    def __init__(self, mounted: MountedDisk, disk: "SimulatedDisk", path: str, inode: Inode, read_only: bool) -> None:
        self.path = path
        self._mounted, self._disk, self._inode = mounted, disk, inode
        self._read_only = read_only
        self._is_open = True
        inode.opens += 1

    def pread(self, length: int, position: int) -> bytes:
        self._check()
        self._disk.fail_if_planned("pread", self.path)
        if self._disk.fires("read error", self._disk.faults.read_error, self.path):
            raise os_error(errno.EIO, self.path)
        if self._disk.broken_sectors:
            self._disk.check_sectors(self.path, position, length)
        return bytes(self._inode.content[position : position + length])

    def pwrite(self, data: Buffer, position: int) -> int:
        self._check_writable()
        written = bytes(data)
        return self._disk.perform(
            "pwrite",
            self.path,
            lambda: self._write(written, position),
            torn=lambda: self._write(written[: self._disk.chance.randrange(0, len(written) + 1)], position),
            detail=f"{len(written)} at {position} {zlib.crc32(written):08x}",
        )

    def pwritev(self, parts: Sequence[Buffer], position: int) -> int:
        return self.pwrite(b"".join(parts), position)

    def is_cached(self, length: int, position: int) -> bool:  # noqa: ARG002
        self._check()
        return not self._disk.fires("cold read", self._disk.faults.cold_read, self.path)

    def size(self) -> int:
        self._check()
        return len(self._inode.content)

    def truncate(self, size: int) -> None:
        self._check_writable()
        self._disk.perform("truncate", self.path, lambda: self._truncate(size), detail=str(size))

    def allocate(self, size: int) -> None:
        self._check_writable()
        self._disk.perform("allocate", self.path, lambda: self._allocate(size), detail=str(size))

    def fsync(self) -> None:
        self._check()
        try:
            self._disk.perform("fsync", self.path, self._sync)
        except OSError:
            self._inode.lose_part_of_sync(self._disk.chance, scatters=self._disk.faults.scatters)
            raise

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        """Close the file; does nothing for a dead process, whose files the kernel has closed."""
        if self._is_open and self._mounted.is_alive:
            self._inode.opens -= 1
            self._disk.free_if_unused(self._inode)
        self._is_open = False

    def __del__(self) -> None:
        self.close()  # like a real file: queued slices may still refer to it after the last explicit reference

    def _check(self) -> None:
        self._mounted.check_alive()
        if not self._is_open:
            raise os_error(errno.EBADF, self.path)

    def _check_writable(self) -> None:
        self._check()
        if self._read_only:
            raise os_error(errno.EBADF, self.path)

    def _write(self, written: bytes, position: int) -> int:
        if self._disk.fires("write error", self._disk.faults.write_error, self.path):
            raise os_error(errno.EIO, self.path)
        accepted = self._disk.accepted_bytes(self.path, len(written))
        end_max = self._inode.footprint_bytes + self._disk.available_bytes()
        fitting = min(accepted, end_max - position)
        if fitting <= 0 and written:
            raise self._disk.no_space(self.path)
        self._resize(lambda: self._inode.write(position, written[:fitting]))
        return fitting

    def _truncate(self, size: int) -> None:
        self._resize(lambda: self._inode.truncate(size))

    def _allocate(self, size: int) -> None:
        if size > self._inode.footprint_bytes + self._disk.available_bytes():
            raise self._disk.no_space(self.path)

        def reserve() -> None:
            self._inode.allocated = max(self._inode.allocated, size)

        self._resize(reserve)

    def _resize(self, act: Callable[[], None]) -> None:
        before = self._inode.footprint_bytes
        act()
        self._disk.used_bytes += self._inode.footprint_bytes - before

    def _sync(self) -> None:
        if self._disk.fires("failed fsync", self._disk.faults.fsync_error, self.path):
            raise os_error(errno.EIO, self.path)
        self._inode.sync()

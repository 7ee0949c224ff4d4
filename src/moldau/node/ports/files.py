"""Files and directories of the operating system."""

import ctypes
import errno
import fcntl
import mmap
import os
import resource
import shutil
import sys
from collections.abc import Sequence
from typing import Final

from moldau.model.ports import Buffer, File
from moldau.node.ports.capabilities import Capabilities
from moldau.node.ports.uncached_reads import read_past_cache

FILE_MODE: Final = 0o640  # records are not for every user of the machine
FOLDER_MODE: Final = 0o750
KEEP_SIZE: Final = 1  # FALLOC_FL_KEEP_SIZE: reserve blocks, leave the length
BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


def _fallocate(descriptor: int, mode: int, position: int, length: int) -> int:
    call = ctypes.CDLL(None, use_errno=True).fallocate
    call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return int(call(descriptor, mode, position, length))


class SystemFile:
    """An open descriptor."""

    __slots__ = ("_can_probe", "_capabilities", "_descriptor")

    def __init__(self, descriptor: int, capabilities: Capabilities) -> None:
        self._descriptor = descriptor
        self._capabilities = capabilities
        self._can_probe = capabilities.has_nowait_reads

    def pread(self, length: int, position: int) -> bytes:
        data = os.pread(self._descriptor, length, position)
        if len(data) == length or not data:
            return data
        return self._read_rest(data, length, position)

    def _read_rest(self, data: bytes, length: int, position: int) -> bytes:
        parts = [data]
        have = len(data)
        while have < length:
            more = os.pread(self._descriptor, length - have, position + have)
            if not more:
                break
            parts.append(more)
            have += len(more)
        return b"".join(parts)

    def pwrite(self, data: Buffer, position: int) -> int:
        return os.pwrite(self._descriptor, data, position)

    def pwritev(self, parts: Sequence[Buffer], position: int) -> int:
        return os.pwritev(self._descriptor, parts, position)

    def is_cached(self, length: int, position: int) -> bool:
        """Probes the first, middle and last byte: read-ahead makes holes elsewhere unlikely."""
        if not self._can_probe or length <= 0:
            return True
        probe = bytearray(1)
        positions = (position,) if length == 1 else (position, position + length // 2, position + length - 1)
        try:
            for each in positions:
                os.preadv(self._descriptor, [probe], each, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
            self._can_probe = False  # not supported by this file system
        return True

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def allocate(self, size: int) -> None:
        if not self._capabilities.has_fallocate:
            return
        # Python has only `posix_fallocate`, which extends the file; truncating it again would free the blocks.
        if _fallocate(self._descriptor, KEEP_SIZE, 0, size) != 0:
            code = ctypes.get_errno()
            if code not in (errno.EOPNOTSUPP, errno.ENOSYS):
                raise OSError(code, os.strerror(code))

    def fsync(self) -> None:
        os.fsync(self._descriptor)

    def fileno(self) -> int:
        return self._descriptor if self._capabilities.has_sendfile else -1

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        # A file may outlive its segment while slices of it are queued for sending; the last slice closes it.
        self.close()


class SystemDirectoryLock:
    """An `flock` on a lock file, which the kernel releases however the process ends."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class SystemDisk:
    """The file system as the process sees it."""

    __slots__ = ("_capabilities",)

    def __init__(self, capabilities: Capabilities | None = None) -> None:
        self._capabilities = capabilities or Capabilities.detect()

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> File:
        flags = (os.O_RDONLY if read_only else os.O_RDWR) | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return SystemFile(os.open(path, flags, FILE_MODE), self._capabilities)

    def map(self, path: str) -> memoryview:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_size == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
        finally:
            os.close(descriptor)

    def read(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def read_uncached(self, path: str, length: int, position: int) -> bytes:
        return read_past_cache(path, length, position)

    def list(self, directory: str) -> list[str]:
        return sorted(os.listdir(directory))

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def make_directory(self, directory: str) -> None:
        os.makedirs(directory, FOLDER_MODE, exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def remove_directory(self, directory: str) -> None:
        shutil.rmtree(directory)

    def sync_directory(self, directory: str) -> None:
        descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def free_bytes(self, directory: str) -> int:
        return shutil.disk_usage(directory).free

    def total_bytes(self, directory: str) -> int:
        return shutil.disk_usage(directory).total

    def files_max(self) -> int:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return sys.maxsize if limit == resource.RLIM_INFINITY else limit

    def boot_id(self) -> str:
        try:
            return self.read(BOOT_ID).decode().strip()
        except OSError:  # not Linux
            return ""

    def lock(self, path: str) -> SystemDirectoryLock:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise
        return SystemDirectoryLock(descriptor)

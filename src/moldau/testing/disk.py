"""An in-memory disk that tracks what is synced, with planned faults: crashes, I/O errors, full disk, torn writes.

disk = SimulatedDisk(seed=7)
mounted = disk.mount()                      # the Disk port of one process
disk.crash_at(12, When.TORN)                # the process dies in the twelfth I/O point
...                                         # raises Crashed there, and in every later call
disk.write_error = errno.EIO                # or: every write fails, as on a broken or read-only disk
disk.failing_folder = "/data2"           # and only there, as one of several disks
disk.is_hanging = True                      # or: syncs never complete
disk.power_loss()                           # or: unsynced changes are partly lost
recovered = disk.mount()                    # the next process
"""

import errno
import random
import zlib
from collections import Counter
from collections.abc import Callable
from typing import Final, TypeVar

from moldau.testing.disk_faults import Crashed, DiskFaults, IoPoint, PlannedCrash, PlannedFailure, When, os_error
from moldau.testing.inodes import Change, Folder, Inode, path_parts
from moldau.testing.mounted_disk import MountedDisk
from moldau.testing.trace import Trace

CAPACITY_BYTES: Final = 1 << 40
FILES_MAX: Final = 1 << 20
SECTOR_BYTES: Final = 4096

__all__ = ["Crashed", "DiskFaults", "IoPoint", "SimulatedDisk", "When"]

Result = TypeVar("Result")


class SimulatedDisk:
    """The disk of one host, which outlives its processes. `mount` returns the port for one process."""

    def __init__(
        self,
        seed: int | random.Random = 0,
        *,
        trace: Trace | None = None,
        name: str = "disk",
        capacity_bytes: int = CAPACITY_BYTES,
    ) -> None:
        self.name = name
        self.chance = seed if isinstance(seed, random.Random) else random.Random(seed)
        self.trace = trace if trace is not None else Trace()
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self.files_max = FILES_MAX
        self.root = Folder()
        self.faults = DiskFaults()
        self.fired: Counter[str] = Counter()
        self.write_error = 0  # if not 0, everything that changes the disk fails with this error; syncs have no effect
        self.failing_folder = ""  # if not empty, `write_error` and `sync_error` concern this folder only
        self.sync_error = 0  # if not 0, every sync fails with this error
        self.broken_sectors: set[tuple[str, int]] = set()  # reads of them fail
        self.is_hanging = False  # jobs of the executor do not complete while this is True
        self.points = 0
        self.boots = 1  # how often the host has booted
        self.on_io: Callable[[IoPoint], None] | None = None  # may raise OSError, or crash the disk
        self.on_crash: Callable[[bool], None] | None = None  # called at a planned crash with `loses_power`
        self._incarnation = 0
        self._crash: PlannedCrash | None = None
        self._failures: list[PlannedFailure] = []
        self._locks: dict[str, int] = {}

    # For the process

    def mount(self) -> MountedDisk:
        """Return the disk for the process that starts now."""
        return MountedDisk(self, self._incarnation)

    # For the test

    def prepare_folder(self, folder: str) -> None:
        """Create a folder and sync it, so that it survives any power loss."""
        self.mount().make_directory(folder)
        for each in self.root.folders():
            each.sync()

    def crash_at(self, number: int, when: When = When.BEFORE, *, loses_power: bool = False) -> None:
        """Plan a crash in the I/O point with this number (`points` is the number of the last one)."""
        self._crash = PlannedCrash(number, when, loses_power)

    def fail(self, operation: str, error: int = errno.EIO, *, path: str = "", skip: int = 0, times: int = 1) -> None:
        """Make calls of `operation` on paths that contain `path` fail with `error`, after `skip` successful ones.

        Operations have the names of the `Disk` port: open, pread, pwrite, truncate, allocate, fsync, rename, unlink …
        """
        self._failures.append(PlannedFailure(operation, error, path, skip, times))

    def shorten_write(self, keep_bytes: int, *, path: str = "", skip: int = 0, times: int = 1) -> None:
        """Make a `pwrite` write only its first `keep_bytes`."""
        self._failures.append(PlannedFailure("short pwrite", 0, path, skip, times, keep_bytes))

    def forget_plans(self) -> None:
        """Cancel all planned crashes and failures."""
        self._crash = None
        self._failures.clear()

    @property
    def plans_power_loss(self) -> bool:
        """Whether a power loss is planned and has not happened yet."""
        return self._crash is not None and self._crash.loses_power

    def crash(self) -> None:
        """Kill the process: its writes stay, its open files and locks are released."""
        self._end_process("crash")
        for _, inode in self.root.inodes():
            inode.lose_cache_if_doubtful(self.chance, scatters=self.faults.scatters)
        self._recount()

    def power_loss(self) -> None:
        """Cut the power: a prefix of the unsynced changes survives, the last one possibly torn."""
        self._end_process("power loss")
        self.boots += 1
        folders = list(dict.fromkeys(self.root.folders()))
        for folder in folders:
            folder.settle_prefix(self.chance)
        for folder in folders:
            folder.entries = dict(folder.durable)
            folder.pending.clear()
        for path, inode in self.root.inodes():
            inode.lose_power(self.chance, scatters=self.faults.scatters)
            self.trace.record(f"{self.name} kept", f"{path} {len(inode.content)} {zlib.crc32(inode.content):08x}")
        self._recount()

    def flip_bit(self, path: str, position: int | None = None, bit: int | None = None) -> None:
        """Flip one bit of a file, on the medium and in the page cache."""
        inode = self.inode(path)
        place = self.chance.randrange(0, len(inode.content)) if position is None else position
        mask = 1 << (self.chance.randrange(0, 8) if bit is None else bit)
        inode.content[place] ^= mask
        if place < len(inode.durable):
            inode.durable[place] ^= mask
        self._count("bit flip", f"{path} {place}")

    def break_sector(self, path: str, position: int) -> None:
        """Make reads of the sector at a position of a file fail with EIO."""
        self.broken_sectors.add((path, position // SECTOR_BYTES))
        self._count("broken sector", f"{path} {position}")

    def check_sectors(self, path: str, position: int, length: int) -> None:
        """Fail if a read touches a broken sector."""
        for broken_path, sector in self.broken_sectors:
            begin = sector * SECTOR_BYTES
            if broken_path == path and position < begin + SECTOR_BYTES and begin < position + length:
                raise os_error(errno.EIO, path)

    def contents(self) -> dict[str, bytes]:
        """Return the content of every file as a process would read it."""
        return {path: bytes(inode.content) for path, inode in self.root.inodes()}

    # For the port

    def inode(self, path: str) -> Inode:
        node = self.node(path)
        if isinstance(node, Folder):
            raise os_error(errno.EISDIR, path)
        if node is None:
            raise os_error(errno.ENOENT, path)
        return node

    def folder(self, path: str) -> Folder:
        node = self.node(path)
        if node is None:
            raise os_error(errno.ENOENT, path)
        if not isinstance(node, Folder):
            raise os_error(errno.ENOTDIR, path)
        return node

    def node(self, path: str) -> Inode | Folder | None:
        """Return the file or folder at a path, or None."""
        node: Inode | Folder | None = self.root
        for part in path_parts(path):
            if not isinstance(node, Folder):
                return None
            node = node.entries.get(part)
        return node

    def change(self, *edits: tuple[Folder, str, Inode | Folder | None]) -> None:
        """Edit directory entries and update the link counts of the old and new nodes."""
        nodes = [folder.entries.get(name) for folder, name, _ in edits]
        Change(*edits)
        for _, _, new in edits:
            if isinstance(new, Inode):
                new.links += 1
        for old in nodes:
            if isinstance(old, Inode):
                old.links -= 1
                self.free_if_unused(old)

    def free_if_unused(self, inode: Inode) -> None:
        if inode.links == 0 and inode.opens == 0:
            self.used_bytes -= inode.footprint_bytes

    def is_alive(self, incarnation: int) -> bool:
        return incarnation == self._incarnation

    def take_lock(self, path: str, incarnation: int) -> None:
        if self._locks.get(path) == incarnation:
            raise BlockingIOError(errno.EWOULDBLOCK, "locked by another node", path)
        self._locks[path] = incarnation

    def release_lock(self, path: str) -> None:
        self._locks.pop(path, None)

    def perform(
        self,
        operation: str,
        path: str,
        act: Callable[[], Result],
        *,
        torn: Callable[[], object] | None = None,
        detail: str = "",
    ) -> Result:
        """Run one I/O point: count it, trace it, and fail or crash in it if planned."""
        self.points += 1
        self.trace.record(f"{self.name} {operation}", f"{path} {detail}" if detail else path)
        if self.on_io is not None:
            self.on_io(IoPoint(self.points, operation, path))
        error = self.sync_error if "sync" in operation else self.write_error
        if error and path.startswith(self.failing_folder):
            self._count(f"failed {operation}", path)
            raise os_error(error, path)
        crash = self._crash if self._crash is not None and self._crash.number == self.points else None
        if crash is not None and (crash.when is When.BEFORE or (crash.when is When.TORN and torn is None)):
            self._die(crash)
        self.fail_if_planned(operation, path)
        if crash is not None and crash.when is When.TORN and torn is not None:
            torn()
            self._die(crash)
        result = act()
        if crash is not None:
            self._die(crash)
        return result

    def fail_if_planned(self, operation: str, path: str) -> None:
        for planned in self._failures:
            if planned.matches(operation, path):
                self._count(f"failed {operation}", path)
                raise os_error(planned.error, path)

    def fires(self, fault: str, probability: float, path: str) -> bool:
        """Whether a random fault fires now; uses no random number while the fault is off."""
        if probability <= 0.0 or self.chance.random() >= probability:
            return False
        self._count(fault, path)
        return True

    def accepted_bytes(self, path: str, requested: int) -> int:
        """Return how much of a write is performed, not counting a full disk."""
        for planned in self._failures:
            if planned.matches("short pwrite", path):
                self._count("short write", path)
                return min(planned.keep_bytes, requested)
        if requested > 1 and self.fires("short write", self.faults.short_write, path):
            return self.chance.randrange(1, requested)
        return requested

    def available_bytes(self) -> int:
        return max(self.capacity_bytes - self.used_bytes, 0)

    def no_space(self, path: str) -> OSError:
        self._count("disk full", path)
        return os_error(errno.ENOSPC, path)

    def _die(self, crash: PlannedCrash) -> None:
        self._crash = None
        if crash.loses_power:
            self.power_loss()
        else:
            self.crash()
        if self.on_crash is not None:
            self.on_crash(crash.loses_power)
        raise Crashed(f"planned for I/O point {crash.number}")

    def _end_process(self, why: str) -> None:
        self._count(why, "")
        self._incarnation += 1
        self._locks.clear()

    def _count(self, fault: str, detail: str) -> None:
        self.fired[fault] += 1
        self.trace.record(f"{self.name} {fault}", detail)

    def _recount(self) -> None:
        inodes = list(dict.fromkeys(inode for _, inode in self.root.inodes()))
        for inode in inodes:
            inode.links, inode.opens = 0, 0
        for _, inode in self.root.inodes():
            inode.links += 1
        self.used_bytes = sum(inode.footprint_bytes for inode in inodes)

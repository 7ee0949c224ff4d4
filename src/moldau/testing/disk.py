"""A disk in memory that knows what was written from what was synced, and fails as told: crashes, errors, full, torn.

disk = SimulatedDisk(seed=7)
mounted = disk.mount()                      # the Disk port of one process
disk.crash_at(12, When.TORN)                # the process dies in its twelfth I/O point
...                                         # raises Crashed there, and on everything after
disk.power_loss()                           # or: what was not synced is partly gone
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

__all__ = ["Crashed", "DiskFaults", "IoPoint", "SimulatedDisk", "When"]

Result = TypeVar("Result")


class SimulatedDisk:
    """The disk of one host, which outlives its processes. `mount` gives the port that a process uses."""

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
        self.points = 0
        self.boots = 1  # how often the machine has been switched on
        self.on_io: Callable[[IoPoint], None] | None = None  # may raise OSError, or crash the disk
        self.on_crash: Callable[[bool], None] | None = None  # told of a planned crash, and if power was lost
        self._incarnation = 0
        self._crash: PlannedCrash | None = None
        self._failures: list[PlannedFailure] = []
        self._locks: dict[str, int] = {}

    # For the process

    def mount(self) -> MountedDisk:
        """The disk as the process that starts now sees it."""
        return MountedDisk(self, self._incarnation)

    # For the test

    def prepare_folder(self, folder: str) -> None:
        """Make a folder that no power loss undoes, as an administrator did long ago."""
        self.mount().make_folder(folder)
        for each in self.root.folders():
            each.sync()

    def crash_at(self, number: int, when: When = When.BEFORE, *, loses_power: bool = False) -> None:
        """Die in the I/O point with this number (`points` says how many there were)."""
        self._crash = PlannedCrash(number, when, loses_power)

    def fail(self, operation: str, error: int = errno.EIO, *, path: str = "", skip: int = 0, times: int = 1) -> None:
        """Make calls of `operation` on paths that contain `path` fail with `error`, after `skip` good ones.

        Operations are the port's own names: open, pread, pwrite, truncate, allocate, fsync, rename, unlink and so on.
        """
        self._failures.append(PlannedFailure(operation, error, path, skip, times))

    def shorten_write(self, keep_bytes: int, *, path: str = "", skip: int = 0, times: int = 1) -> None:
        """Make a `pwrite` take only its first bytes."""
        self._failures.append(PlannedFailure("short pwrite", 0, path, skip, times, keep_bytes))

    def forget_plans(self) -> None:
        """No planned crash or failure strikes any more."""
        self._crash = None
        self._failures.clear()

    @property
    def plans_power_loss(self) -> bool:
        """Whether one is planned and has not struck yet."""
        return self._crash is not None and self._crash.loses_power

    def crash(self) -> None:
        """The process dies: what it wrote stays, its open files and locks are gone."""
        self._end_process("crash")
        for _, inode in self.root.inodes():
            inode.lose_cache_if_doubtful(self.chance, scatters=self.faults.scatters)
        self._recount()

    def power_loss(self) -> None:
        """The host dies: of what was not synced, a prefix stays, possibly torn."""
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
        """Rot one bit of a file, on the platter and in the cache."""
        inode = self.inode(path)
        place = self.chance.randrange(0, len(inode.content)) if position is None else position
        mask = 1 << (self.chance.randrange(0, 8) if bit is None else bit)
        inode.content[place] ^= mask
        if place < len(inode.durable):
            inode.durable[place] ^= mask
        self._fire("bit flip", f"{path} {place}")

    def contents(self) -> dict[str, bytes]:
        """Every file as a process would read it."""
        return {path: bytes(inode.content) for path, inode in self.root.inodes()}

    # For the ports

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
        """What is at a path, or None."""
        node: Inode | Folder | None = self.root
        for part in path_parts(path):
            if not isinstance(node, Folder):
                return None
            node = node.entries.get(part)
        return node

    def change(self, *edits: tuple[Folder, str, Inode | Folder | None]) -> None:
        """Edit names, counting the links of what they stood for and stand for now."""
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
        """One I/O point: counted, traced, failed or crashed in if so planned."""
        self.points += 1
        self.trace.record(f"{self.name} {operation}", f"{path} {detail}" if detail else path)
        if self.on_io is not None:
            self.on_io(IoPoint(self.points, operation, path))
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
                self._fire(f"failed {operation}", path)
                raise os_error(planned.error, path)

    def happens(self, fault: str, likelihood: float, path: str) -> bool:
        """Whether a likely fault strikes now; nothing is drawn while it is off."""
        if likelihood <= 0.0 or self.chance.random() >= likelihood:
            return False
        self._fire(fault, path)
        return True

    def taken_bytes(self, path: str, asked: int) -> int:
        """How much of a write is taken, full disk aside."""
        for planned in self._failures:
            if planned.matches("short pwrite", path):
                self._fire("short write", path)
                return min(planned.keep_bytes, asked)
        if asked > 1 and self.happens("short write", self.faults.short_write, path):
            return self.chance.randrange(1, asked)
        return asked

    def room_bytes(self) -> int:
        return max(self.capacity_bytes - self.used_bytes, 0)

    def refuse_for_space(self, path: str) -> OSError:
        self._fire("disk full", path)
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
        self._fire(why, "")
        self._incarnation += 1
        self._locks.clear()

    def _fire(self, fault: str, detail: str) -> None:
        self.fired[fault] += 1
        self.trace.record(f"{self.name} {fault}", detail)

    def _recount(self) -> None:
        inodes = list(dict.fromkeys(inode for _, inode in self.root.inodes()))
        for inode in inodes:
            inode.links, inode.opens = 0, 0
        for _, inode in self.root.inodes():
            inode.links += 1
        self.used_bytes = sum(inode.footprint_bytes for inode in inodes)

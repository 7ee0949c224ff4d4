"""Simulated hosts with hand-written logs, for tests of code that reads simulated disks."""

from typing import Final

from moldau.records.builder import build_batch
from moldau.records.header import write_offsets
from moldau_dev.simulation.cluster.disk_log import LogOnDisk
from moldau_dev.simulation.cluster.topology import FOLDER
from moldau_dev.simulation.simulation import Simulation

TOPIC: Final = "t"


def batch(base_offset: int, *, epoch: int = 0, value: bytes = b"x", records: int = 1) -> bytes:
    data = bytearray(build_batch([(1, None, value, ())] * records))
    write_offsets(data, 0, base_offset, epoch)
    return bytes(data)


class Disks:
    """Three hosts with hand-written logs."""

    def __init__(self) -> None:
        self.simulation = Simulation(0)
        self.hosts = {name: self.simulation.host(name) for name in ("node-1", "node-2", "node-3")}
        self.ends: dict[tuple[str, str, str], int] = {}

    def write(self, host: str, *batches: bytes, folder: str = f"{TOPIC}-0", segment: int = 0) -> None:
        """Append batches to a segment."""
        disk = self.hosts[host].disk.mount()
        disk.make_directory(f"{FOLDER}/{folder}")
        file = disk.open(f"{FOLDER}/{folder}/{segment:020}.log", create=True)
        for each in batches:
            file.pwrite(each, file.size())

    def sync(self, host: str, *, folder: str = f"{TOPIC}-0") -> None:
        disk = self.hosts[host].disk.mount()
        for name in disk.list(f"{FOLDER}/{folder}"):
            disk.open(f"{FOLDER}/{folder}/{name}").fsync()
        disk.sync_directory(f"{FOLDER}/{folder}")

    def truncate(self, host: str, size: int, *, folder: str = f"{TOPIC}-0") -> None:
        self.hosts[host].disk.mount().open(f"{FOLDER}/{folder}/{0:020}.log").truncate(size)

    def log(self, host: str, folder: str = f"{TOPIC}-0") -> LogOnDisk:
        return LogOnDisk(self.hosts[host].disk, f"{FOLDER}/{folder}")

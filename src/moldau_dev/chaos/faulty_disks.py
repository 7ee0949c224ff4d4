"""Disks of real processes that fail, fill up, slow down or hang.

A library, preloaded into brokers, fails or delays their calls (`disk_faults.c`); a mapped file per node tells it which
fault is in effect. It needs gcc and Linux.
"""

import mmap
import shutil
import struct
import subprocess
import sys
import tempfile
from enum import IntEnum
from pathlib import Path
from typing import Final, Self

SOURCE: Final = Path(__file__).with_name("disk_faults.c")
CONTROL: Final = struct.Struct("=ii")  # the fault, and a delay in ms


class DiskFault(IntEnum):
    """The numbers of `disk_faults.c`."""

    NONE = 0
    FAIL_WRITES = 1
    FULL = 2
    FAIL_READS = 3
    SLOW = 4
    HANG = 5
    READ_ONLY = 6


class FaultyDisks:
    """Each node's disk works until `strike`."""

    def __init__(self, nodes: int) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="moldau-disks-"))
        self._library = self._folder / "disk_faults.so"
        self._controls = {node: self._control_of(node) for node in range(1, nodes + 1)}

    @staticmethod
    def are_possible() -> bool:
        return sys.platform == "linux" and shutil.which("gcc") is not None

    def command(self, node: int, data: Path) -> tuple[str, ...]:
        """Return the prefix of a command that has this node's disk below `data`."""
        variables = {
            "LD_PRELOAD": self._library,
            "MOLDAU_DISK_FAULT": self._path_of(node),
            "MOLDAU_FAULTY_FOLDER": data,
        }
        return ("env", *(f"{name}={value}" for name, value in variables.items()))

    def strike(self, node: int, fault: DiskFault, delay_ms: int = 0) -> None:
        CONTROL.pack_into(self._controls[node], 0, fault, delay_ms)

    def mend(self) -> None:
        for node in self._controls:
            self.strike(node, DiskFault.NONE)

    def _path_of(self, node: int) -> Path:
        return self._folder / f"node-{node}"

    def _control_of(self, node: int) -> mmap.mmap:
        path = self._path_of(node)
        path.write_bytes(bytes(CONTROL.size))
        with path.open("r+b") as file:
            return mmap.mmap(file.fileno(), CONTROL.size)

    def __enter__(self) -> Self:
        command = ["gcc", "-shared", "-fPIC", "-O2", "-o", str(self._library), str(SOURCE), "-ldl"]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except subprocess.CalledProcessError as error:
            self.__exit__()
            raise RuntimeError(f"{SOURCE.name} cannot be compiled:\n{error.stderr}") from error
        return self

    def __exit__(self, *_: object) -> None:
        for control in self._controls.values():
            control.close()
        shutil.rmtree(self._folder, ignore_errors=True)

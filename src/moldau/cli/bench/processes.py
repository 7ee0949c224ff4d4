"""CPU time and memory of a process, as reported by the kernel."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_CPU_CLOCK_OF_PROCESS: Final = 2  # the kernel's CPUCLOCK_SCHED, of all threads of a process


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process: all threads, user and system."""
    try:
        # The clock id of clock_getcpuclockid(3). Its resolution is nanoseconds; that of /proc is 10 ms.
        return time.clock_gettime(~pid << 3 | _CPU_CLOCK_OF_PROCESS)
    except OSError:
        return parse_cpu_s(Path(f"/proc/{pid}/stat").read_text(), os.sysconf("SC_CLK_TCK"))


def parse_cpu_s(stat: str, ticks_per_s: int) -> float:
    """Parse CPU seconds from /proc/PID/stat. The program name, in brackets, may contain any characters."""
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / ticks_per_s


def children_cpu_s(pid: int) -> float:
    """Return the CPU seconds of the current children of a process."""
    return sum(cpu_s(each) for each in family(pid)[1:])


@contextlib.contextmanager
def frozen_children(pid: int) -> Iterator[None]:
    """Suspend the current children of a process (SIGSTOP) for the block."""
    children = family(pid)[1:]
    for child in children:
        os.kill(child, signal.SIGSTOP)
    try:
        yield
    finally:
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGCONT)


def memory_bytes(pid: int) -> int:
    """Return the resident memory of a process and its children."""
    return sum(_resident_bytes(each) for each in family(pid))


def _resident_bytes(pid: int) -> int:
    return parse_resident_bytes(Path(f"/proc/{pid}/status").read_text())


def parse_resident_bytes(status: str) -> int:
    """Parse resident memory from /proc/PID/status; 0 for an exiting process, which has no such line."""
    for line in status.splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def family(pid: int) -> list[int]:
    family = [pid]
    for each in family:
        for task in Path(f"/proc/{each}/task").iterdir():
            with contextlib.suppress(OSError):  # a thread may end meanwhile
                family += map(int, (task / "children").read_text().split())
    return family

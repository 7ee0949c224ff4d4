"""Find and kill the processes of a Spark application on this machine by an inherited environment mark."""

import contextlib
import os
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MARK: Final = "MOLDAU_SOAK"
GONE_S_MAX: Final = 60.0
LOOK_S: Final = 0.05
_EXECUTOR: Final = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
_DRIVER: Final = "org.apache.spark.deploy.SparkSubmit"
_EXECUTOR_ID: Final = re.compile(r"--executor-id (\S+)")


class HitNothing(AssertionError):
    """A kill without effect, so that the run is inconclusive."""


@dataclass(frozen=True, slots=True)
class Found:
    """A process, identified by pid and start time, because pids are reused."""

    pid: int
    began: str
    command: str

    @property
    def is_executor(self) -> bool:
        return _EXECUTOR in self.command

    @property
    def is_driver(self) -> bool:
        """The program, or its JVM."""
        return not self.is_worker and ("soak_driver.py" in self.command or _DRIVER in self.command)

    @property
    def is_worker(self) -> bool:
        """A Python process of Spark: it reads, writes or commits."""
        return " -m pyspark." in self.command

    @property
    def name(self) -> str:
        number = _EXECUTOR_ID.search(self.command)
        kind = f"executor {number[1]}" if number else "worker" if self.is_worker else "driver"
        return f"{kind} (pid {self.pid})"

    @property
    def is_alive(self) -> bool:
        return _began(self.pid) == self.began

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self.is_alive:
                os.kill(self.pid, signal.SIGKILL)


def marked(mark: str) -> list[Found]:
    """Return all processes that have inherited the mark."""
    found = []
    wanted = f"{MARK}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted not in (folder / "environ").read_bytes().split(b"\0"):
                continue
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            began = _began(int(folder.name))
            if began is not None:
                found.append(Found(int(folder.name), began, command))
    return found


def kill_all(victims: list[Found]) -> None:
    """Kill all at once. Raises HitNothing if one had ended before or does not end."""
    if not victims or not all(each.is_alive for each in victims):
        raise HitNothing(f"gone before the kill: {[each.name for each in victims]}")
    for each in victims:
        each.kill()
    deadline = time.monotonic() + GONE_S_MAX
    while any(each.is_alive for each in victims):
        if time.monotonic() > deadline:
            raise HitNothing(f"still there after {GONE_S_MAX:g} s: {[each.name for each in victims]}")
        time.sleep(LOOK_S)  # polls until the kernel has ended the process


def _began(pid: int) -> str | None:
    """Return the start time, or None for a missing or zombie process."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]
    return None

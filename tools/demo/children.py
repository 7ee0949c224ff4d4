"""The processes of the demo, each in a session of its own: whatever happens, none is left behind."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

LOOK_S: Final = 0.1
END_S_MAX: Final = 60.0
HURRY_S_MAX: Final = 15.0  # after an interrupt, the user does not wait for a report
ORPHANS_S_MAX: Final = 20.0


class Children:
    """Started here, ended here."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._running: list[subprocess.Popen[str]] = []
        self._sessions: list[int] = []

    def start(self, name: str, words: Sequence[str]) -> subprocess.Popen[str]:
        """Its standard output comes to us, its standard error goes to a file."""
        with (self._logs / f"{name}.log").open("a") as log:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )
        self._running.append(process)
        self._sessions.append(process.pid)
        return process

    def words_of(self, name: str) -> str:
        """The last that a process has said on standard error; of an error, the line that says what it is."""
        lines = (self._logs / f"{name}.log").read_text().splitlines()
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        return errors[-1] if errors else "\n".join(lines[-20:])

    def kill(self, process: subprocess.Popen[str]) -> None:
        """SIGKILL, to the process and to all that it has started."""
        _kill_all([process.pid])
        self._forget(process)

    def end(self, process: subprocess.Popen[str], seconds_max: float = END_S_MAX) -> int:
        """In order, if it goes; else not."""
        process.terminate()
        try:
            process.wait(seconds_max)
        except subprocess.TimeoutExpired:
            _kill_all([process.pid])
        return self._forget(process)

    def end_all(self, orphans_s_max: float = ORPHANS_S_MAX) -> None:
        for process in reversed(list(self._running)):
            self.end(process, HURRY_S_MAX)
        self._end_orphans(orphans_s_max)

    def _forget(self, process: subprocess.Popen[str]) -> int:
        if process in self._running:
            self._running.remove(process)
        code = process.wait()
        if process.stdout is not None:
            process.stdout.close()
        return code

    def _end_orphans(self, seconds_max: float) -> None:
        """Spark's Python workers have groups of their own, and end a moment after the JVM that they work for."""
        deadline_s = time.monotonic() + seconds_max
        while in_sessions(self._sessions) and time.monotonic() < deadline_s:
            time.sleep(LOOK_S)
        _kill_all(self._sessions)


def _kill_all(sessions: Sequence[int]) -> None:
    """Again, until none is seen: one may have started another meanwhile."""
    deadline_s = time.monotonic() + ORPHANS_S_MAX
    while (left := in_sessions(sessions)) and time.monotonic() < deadline_s:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(LOOK_S / 10)


def in_sessions(sessions: Sequence[int]) -> list[int]:
    """The processes that these have started, and those have started, and are not over."""
    found = []
    for pid in _processes():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(pid) in sessions:
                found.append(pid)
    return found


def _processes() -> list[int]:
    """All that run; those that are over and not yet asked for how are left out."""
    if Path("/proc/self/stat").exists():
        return [int(each.name) for each in Path("/proc").iterdir() if each.name.isdecimal() and not _is_over(each)]
    listed = subprocess.run(["ps", "-A", "-o", "pid=,stat="], capture_output=True, text=True, check=True).stdout
    words = [line.split() for line in listed.splitlines()]
    return [int(pid) for pid, state, *_ in words if not state.startswith("Z")]


def _is_over(process: Path) -> bool:
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True

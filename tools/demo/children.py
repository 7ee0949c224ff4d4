"""The processes of the demo, each in its own session, so that all of them can be stopped in any case."""

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
    """Starts processes and stops them."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._running: list[subprocess.Popen[str]] = []
        self._sessions: list[int] = []

    def start(self, name: str, words: Sequence[str]) -> subprocess.Popen[str]:
        """Start a process; its standard output is a pipe, its standard error a file."""
        with (self._logs / f"{name}.log").open("a") as log:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )
        self._running.append(process)
        self._sessions.append(process.pid)
        return process

    def words_of(self, name: str) -> str:
        """Return the last `error:` line that a process has logged, or else its last lines."""
        lines = (self._logs / f"{name}.log").read_text().splitlines()
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        return errors[-1] if errors else "\n".join(lines[-20:])

    def kill(self, process: subprocess.Popen[str]) -> None:
        """Send SIGKILL to the process and all its descendants."""
        _kill_all([process.pid])
        self._forget(process)

    def end(self, process: subprocess.Popen[str], seconds_max: float = END_S_MAX) -> int:
        """Stop a process by SIGTERM, and by SIGKILL after a timeout; return its exit code."""
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
        """End Spark's Python workers, which have their own process groups and exit shortly after their JVM."""
        deadline_s = time.monotonic() + seconds_max
        while in_sessions(self._sessions) and time.monotonic() < deadline_s:
            time.sleep(LOOK_S)
        _kill_all(self._sessions)


def _kill_all(sessions: Sequence[int]) -> None:
    """Kill until none is left: a process may start another one meanwhile."""
    deadline_s = time.monotonic() + ORPHANS_S_MAX
    while (left := in_sessions(sessions)) and time.monotonic() < deadline_s:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(LOOK_S / 10)


def in_sessions(sessions: Sequence[int]) -> list[int]:
    """Return the running descendants of these processes."""
    found = []
    for pid in _processes():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(pid) in sessions:
                found.append(pid)
    return found


def _processes() -> list[int]:
    """Return all running processes, without zombies."""
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

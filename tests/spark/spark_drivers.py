"""Driver processes: complete runs, and runs that are killed once all their traps hold."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
DRIVER_S_MAX: Final = 400
LOG_TAIL_CHARS: Final = 3000


def run_driver(program: str, plan: dict[str, Any], **environment: str) -> tuple[int, str]:
    """Run a driver in its own process group to its end. Returns the exit code and the end of its standard error."""
    process = subprocess.Popen(
        command(program, plan),
        env={**environment_of(), **environment},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _, words = process.communicate(timeout=DRIVER_S_MAX)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # also the JVM and executors of a driver that timed out
    return process.returncode, words[-LOG_TAIL_CHARS:]


def command(program: str, plan: dict[str, Any]) -> list[str]:
    return [sys.executable, str(HERE / program), json.dumps(plan)]


def environment_of() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}


@dataclass(frozen=True, slots=True)
class HeldTrap:
    """A stopped process and the place of its trap."""

    name: str
    place: str
    batch: int
    pid: int
    is_spared: bool


def report(pipe: str, name: str, place: str, batch: int, is_spared: bool = False) -> None:
    """Report a reached trap. One line, since several processes write to the pipe."""
    with open(pipe, "w") as lines:
        lines.write(json.dumps([name, place, batch, os.getpid(), is_spared]) + "\n")


@contextlib.contextmanager
def held_driver(program: str, plan: dict[str, Any], folder: Path, names: set[str]) -> Iterator[dict[str, HeldTrap]]:
    """Run a driver until the traps of these names hold, then kill it; spared processes are resumed.

    The plan gets `pipe`, to which traps report. A trap that is not reached is an error.
    """
    folder.mkdir()
    pipe, words = folder / "pipe", folder / "words"
    os.mkfifo(pipe)
    descriptor = os.open(pipe, os.O_RDWR)
    with words.open("w") as log:
        process = subprocess.Popen(
            command(program, {**plan, "pipe": str(pipe)}),
            env=environment_of(),
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    held: dict[str, HeldTrap] = {}
    try:
        messages = trap_messages(process, descriptor)
        while not names <= set(held):
            each = next(messages, None)
            assert each is not None, (
                f"the traps of {sorted(names - set(held))} were not reached; the driver's code is {process.poll()}\n"
                f"{words.read_text(errors='replace')[-LOG_TAIL_CHARS:]}"
            )
            held[each.name] = each
        yield held
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # the program and its JVM
        process.wait()
        for each in held.values():
            if each.is_spared:
                os.kill(each.pid, signal.SIGCONT)
            elif each.pid != process.pid:
                with contextlib.suppress(ProcessLookupError):  # a worker may end with its JVM
                    os.kill(each.pid, signal.SIGKILL)
        os.close(descriptor)


def trap_messages(process: subprocess.Popen[bytes], descriptor: int) -> Iterator[HeldTrap]:
    """Yield reached traps until the driver has ended or the time is up."""
    deadline_s = time.monotonic() + DRIVER_S_MAX
    ended, lines = os.pidfd_open(process.pid), b""
    try:
        while descriptor in select.select([descriptor, ended], [], [], max(deadline_s - time.monotonic(), 0.0))[0]:
            lines += os.read(descriptor, 65_536)
            while b"\n" in lines:
                line, _, lines = lines.partition(b"\n")
                yield HeldTrap(*json.loads(line))
    finally:
        os.close(ended)

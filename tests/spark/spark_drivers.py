"""Drivers in processes of their own: whole lives, and lives that end at the moment at which all their traps hold."""

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
LIFE_S_MAX: Final = 400
LAST_WORDS: Final = 3000


def live(program: str, plan: dict[str, Any], **environment: str) -> tuple[int, str]:
    """A whole life of a driver, in a session of its own: how it ended, and its last words."""
    process = subprocess.Popen(
        command(program, plan),
        env={**environment_of(), **environment},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _, words = process.communicate(timeout=LIFE_S_MAX)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # a life that took too long leaves no JVM and no executors behind
    return process.returncode, words[-LAST_WORDS:]


def command(program: str, plan: dict[str, Any]) -> list[str]:
    return [sys.executable, str(HERE / program), json.dumps(plan)]


def environment_of() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}


@dataclass(frozen=True, slots=True)
class Held:
    """Who stands still, and where."""

    name: str
    place: str
    batch: int
    pid: int
    is_spared: bool


def tell(pipe: str, name: str, place: str, batch: int, is_spared: bool = False) -> None:
    """For a trap that has fallen. One line, so that several do not mix."""
    with open(pipe, "w") as lines:
        lines.write(json.dumps([name, place, batch, os.getpid(), is_spared]) + "\n")


@contextlib.contextmanager
def held_life(program: str, plan: dict[str, Any], folder: Path, names: set[str]) -> Iterator[dict[str, Held]]:
    """A driver at the moment at which the traps of these names hold; then it is killed, and who is spared goes on.

    The plan is given `pipe`, through which traps tell that they have fallen. One that does not fall is an error.
    """
    folder.mkdir()
    pipe, words = folder / "pipe", folder / "words"
    os.mkfifo(pipe)
    told = os.open(pipe, os.O_RDWR)
    with words.open("w") as last_words:
        process = subprocess.Popen(
            command(program, {**plan, "pipe": str(pipe)}),
            env=environment_of(),
            stdout=last_words,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    held: dict[str, Held] = {}
    try:
        told_of = those_held(process, told)
        while not names <= set(held):
            each = next(told_of, None)
            assert each is not None, (
                f"the traps of {sorted(names - set(held))} did not fall; the driver's code is {process.poll()}\n"
                f"{words.read_text(errors='replace')[-LAST_WORDS:]}"
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
        os.close(told)


def those_held(process: subprocess.Popen[bytes], told: int) -> Iterator[Held]:
    """One after the other, as their traps fall; no more when the driver has ended, or time is up."""
    deadline_s = time.monotonic() + LIFE_S_MAX
    ended, lines = os.pidfd_open(process.pid), b""
    try:
        while told in select.select([told, ended], [], [], max(deadline_s - time.monotonic(), 0.0))[0]:
            lines += os.read(told, 65_536)
            while b"\n" in lines:
                line, _, lines = lines.partition(b"\n")
                yield Held(*json.loads(line))
    finally:
        os.close(ended)

"""`moldau serve` as a child of `moldau start` and `moldau up`: it ends when the parent does."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Final

import typer

from moldau.cli.errors import CommandError, usage_error

STOP_S_MAX: Final = 10.0
NEEDED: Final = ("fastapi", "uvicorn")

Serve = Annotated[
    bool, typer.Option("--serve", help="Start `moldau serve` too: the web console and the schema registry.")
]


class ConsoleProcess:
    """A process of `moldau serve`, started once the brokers serve."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline = -1

    def start(self, bootstrap_servers: str) -> None:
        inherited, self._lifeline = os.pipe()
        command = (sys.executable, "-P", "-m", "moldau.cli.main", "serve", "-b", bootstrap_servers)
        try:
            self._process = subprocess.Popen([*command, "--lifeline-fd", str(inherited)], pass_fds=[inherited])
        finally:
            os.close(inherited)

    def stop(self) -> None:
        """Close the lifeline, at which the process shuts down, and wait for it."""
        if self._process is None:
            return
        os.close(self._lifeline)
        try:
            self._process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None


@contextmanager
def console_process(is_wanted: bool, *, is_secured: bool = False) -> Iterator[ConsoleProcess | None]:
    """Yield a process to start, or None if `--serve` was not given; stop it at the end."""
    if not is_wanted:
        yield None
        return
    if any(importlib.util.find_spec(each) is None for each in NEEDED):
        raise CommandError("--serve needs the extra moldau[serve], which is not installed")
    if is_secured:
        raise usage_error("--serve has no credentials for a secured listener: run moldau serve with --command-config")
    process = ConsoleProcess()
    try:
        yield process
    finally:
        process.stop()

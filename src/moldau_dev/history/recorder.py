"""Writes a history while it happens. A line is with the kernel before its request leaves, so no death takes it."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from moldau_dev.history.operations import Kind, Operation


class Recorder:
    """One file; many threads may write to it. `invoke` returns once the line cannot be lost with this process."""

    def __init__(self, path: Path | str, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.path = Path(path)
        self._now_ns = now_ns
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        self._lock = threading.Lock()
        self._index = 0

    def invoke(self, process: str, f: str, value: Any = None) -> None:
        """Before the request leaves."""
        self._write(process, Kind.INVOKE, f, value)

    def ok(self, process: str, f: str, value: Any = None) -> None:
        self._write(process, Kind.OK, f, value)

    def fail(self, process: str, f: str, value: Any = None) -> None:
        """It did not happen, and never will."""
        self._write(process, Kind.FAIL, f, value)

    def info(self, process: str, f: str, value: Any = None) -> None:
        """Nobody knows if it happened, or will."""
        self._write(process, Kind.INFO, f, value)

    def note(self, process: str, f: str, value: Any = None) -> None:
        """For what cannot fail: an assignment that was taken, a client that was thrown away."""
        self._write(process, Kind.INVOKE, f, value)
        self._write(process, Kind.OK, f, value)

    def close(self) -> None:
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, process: str, kind: Kind, f: str, value: Any) -> None:
        # Time and place are taken together: the order of the lines is the order of the events.
        with self._lock:
            line = Operation(self._index, self._now_ns(), process, kind, f, value).line() + "\n"
            self._index += 1
            left = memoryview(line.encode())
            while left:
                left = left[os.write(self._file, left) :]

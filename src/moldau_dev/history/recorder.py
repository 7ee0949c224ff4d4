"""Writes a history. A line is written to the kernel before its request is sent, so that a crash cannot lose it."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from moldau_dev.history.operations import Kind, Operation


class Recorder:
    """Appends to one file, from any thread. After `invoke` the line survives a crash of this process."""

    def __init__(self, path: Path | str, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.path = Path(path)
        self._now_ns = now_ns
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        self._lock = threading.Lock()
        self._index = 0

    def invoke(self, process: str, f: str, value: Any = None) -> None:
        """Call before the request is sent."""
        self._write(process, Kind.INVOKE, f, value)

    def ok(self, process: str, f: str, value: Any = None) -> None:
        self._write(process, Kind.OK, f, value)

    def fail(self, process: str, f: str, value: Any = None) -> None:
        """The operation certainly did not and will not happen."""
        self._write(process, Kind.FAIL, f, value)

    def info(self, process: str, f: str, value: Any = None) -> None:
        """The outcome is unknown."""
        self._write(process, Kind.INFO, f, value)

    def note(self, process: str, f: str, value: Any = None) -> None:
        """Record an event that cannot fail, such as an assignment or a discarded client."""
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
        # Under the lock: the order of the lines is the order of the timestamps.
        with self._lock:
            line = Operation(self._index, self._now_ns(), process, kind, f, value).line() + "\n"
            self._index += 1
            left = memoryview(line.encode())
            while left:
                left = left[os.write(self._file, left) :]

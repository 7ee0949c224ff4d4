"""The events of a simulation, as a running hash: two runs of one seed are identical if their hashes are equal."""

import hashlib
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

RECENT_EVENTS_MAX: Final = 200


class Trace:
    """Hash every event, and keep the most recent ones for failure messages."""

    def __init__(self, now_ms: Callable[[], float] = lambda: 0.0, *, listener: Callable[[str], None] | None = None):
        self.counts: Counter[str] = Counter()
        self.recent: deque[str] = deque(maxlen=RECENT_EVENTS_MAX)
        self._now_ms = now_ms
        self._listener = listener  # receives every line: `print` to watch a run, `list.append` to compare two
        self._hash = hashlib.blake2b(digest_size=16)

    def record(self, kind: str, detail: str = "") -> None:
        """Record one event at the current time."""
        line = f"{self._now_ms():.6f} {kind} {detail}"
        self._hash.update(line.encode())
        self._hash.update(b"\n")
        self.counts[kind] += 1
        self.recent.append(line)
        if self._listener is not None:
            self._listener(line)

    def hash(self) -> str:
        """Return the hash of all events so far."""
        return self._hash.copy().hexdigest()

    @property
    def event_count(self) -> int:
        return self.counts.total()

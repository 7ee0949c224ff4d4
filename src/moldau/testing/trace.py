"""What happened in a simulation, as a running hash: two runs of one seed are the same run if their hashes agree."""

import hashlib
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

RECENT_EVENTS_MAX: Final = 200


class Trace:
    """Every event goes into the hash; the newest ones are kept to be read when something failed."""

    def __init__(self, now_ms: Callable[[], float] = lambda: 0.0, *, listener: Callable[[str], None] | None = None):
        self.counts: Counter[str] = Counter()
        self.recent: deque[str] = deque(maxlen=RECENT_EVENTS_MAX)
        self._now_ms = now_ms
        self._listener = listener  # sees every line: `print` shows the run, a list's `append` compares two of them
        self._hash = hashlib.blake2b(digest_size=16)

    def record(self, kind: str, detail: str = "") -> None:
        """Note one event at the present time."""
        line = f"{self._now_ms():.6f} {kind} {detail}"
        self._hash.update(line.encode())
        self._hash.update(b"\n")
        self.counts[kind] += 1
        self.recent.append(line)
        if self._listener is not None:
            self._listener(line)

    def hash(self) -> str:
        """The hash of everything so far."""
        return self._hash.copy().hexdigest()

    @property
    def event_count(self) -> int:
        return self.counts.total()

"""Windowed rates and token buckets.

A windowed rate is the sum of the last samples over the time that they span. Samples begin with an event and take the
events of `window_ms`; one whose last event is `windows * window_ms` old is dropped.

    |<------------------- elapsed ------------------->|
    [ sample ][ sample ]     [ sample ][ current sample  now

When the rate exceeds its limit, the client has to pause until sum / (elapsed + pause) equals the limit again. Silence
counts between two samples; before the oldest sample, one window of it does: after a long silence, a client may send
`limit * window_ms` at once. Kafka grants `windows - 1` windows then, so that a client exceeds its quota by ten seconds'
worth first.
"""

from collections import deque
from typing import Final

SECOND_MS: Final = 1000.0


class WindowedRate:
    """Events per second over a sliding window."""

    __slots__ = ("_age_ms", "_current_end_ms", "_samples", "_window_ms", "total")

    def __init__(self, windows: int, window_ms: float) -> None:
        self._window_ms = window_ms
        self._age_ms = windows * window_ms
        self._samples: deque[list[float]] = deque()  # from when it counts, last event, sum
        self._current_end_ms = 0.0
        self.total = 0.0  # of all samples

    def record(self, amount: float, now_ms: float) -> None:
        self.elapsed_ms(now_ms)
        samples = self._samples
        if not samples or now_ms >= self._current_end_ms:
            self._current_end_ms = now_ms + self._window_ms
            samples.append([now_ms if samples else now_ms - self._window_ms, now_ms, 0.0])
        current = samples[-1]
        current[1] = now_ms
        current[2] += amount
        self.total += amount

    def elapsed_ms(self, now_ms: float) -> float:
        """The time that the samples span, at least one window. Drops samples that are too old."""
        samples = self._samples
        if not samples:
            return self._window_ms
        if now_ms - samples[0][1] >= self._age_ms:
            while samples and now_ms - samples[0][1] >= self._age_ms:
                self.total -= samples.popleft()[2]
            if not samples:
                self.total = 0.0
                return self._window_ms
            samples[0][0] = min(samples[0][0], now_ms - self._window_ms)
        return now_ms - samples[0][0]

    def per_second(self, now_ms: float) -> float:
        elapsed_ms = self.elapsed_ms(now_ms)
        return self.total / elapsed_ms * SECOND_MS

    def room(self, limit: float, now_ms: float) -> float:
        """The amount that may be recorded before the rate exceeds the limit; negative if it does."""
        elapsed_ms = self.elapsed_ms(now_ms)
        return limit * elapsed_ms / SECOND_MS - self.total

    def pause_ms(self, limit: float, now_ms: float) -> float:
        """The pause after which the rate is within the limit, if nothing more is recorded."""
        return max(0.0, -self.room(limit, now_ms) / limit * SECOND_MS)


class TokenBucket:
    """Tokens that refill at the limit's rate up to a burst. Kafka limits changes of the metadata so (KIP-599)."""

    __slots__ = ("_burst_s", "_refilled_ms", "tokens")

    def __init__(self, windows: int, window_ms: float) -> None:
        self._burst_s = windows * window_ms / SECOND_MS
        self._refilled_ms: float | None = None
        self.tokens = 0.0

    def refill(self, limit: float, now_ms: float) -> float:
        """Add the tokens of the time since the last call, and return the tokens. A new bucket is full."""
        burst = limit * self._burst_s
        if self._refilled_ms is None:
            self.tokens = burst
        else:
            self.tokens = min(burst, self.tokens + limit * (now_ms - self._refilled_ms) / SECOND_MS)
        self._refilled_ms = now_ms
        return self.tokens

    def take(self, amount: float, limit: float, now_ms: float) -> None:
        """Take tokens, into the negative if there are too few."""
        self.refill(limit, now_ms)
        self.tokens -= amount

    def pause_ms(self, limit: float, now_ms: float) -> float:
        """The time until the bucket is no longer negative."""
        return max(0.0, -self.refill(limit, now_ms) / limit * SECOND_MS)

"""The clocks of a simulated host: virtual monotonic time, and a wall clock that a test can skew."""

from collections.abc import Callable
from typing import Final

WALL_START_MS: Final = 1_760_000_000_000


class SimulatedClock:
    """Monotonic time comes from the loop. `skew_ms` is the error of the wall clock; tests may change it."""

    def __init__(self, now_ms: Callable[[], float], *, wall_start_ms: int = WALL_START_MS, skew_ms: int = 0) -> None:
        self.skew_ms = skew_ms
        self._now_ms = now_ms
        self._wall_start_ms = wall_start_ms
        self._start_ms = now_ms()

    def wall_ms(self) -> int:
        return self._wall_start_ms + int(self._now_ms() - self._start_ms) + self.skew_ms

    def monotonic_ms(self) -> float:
        return self._now_ms()

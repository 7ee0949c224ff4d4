"""The system's clocks."""

import time


class SystemClock:
    """Wall time from the system, monotonic time from its steady clock."""

    __slots__ = ()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        return time.monotonic_ns() / 1e6

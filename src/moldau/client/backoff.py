"""Exponential backoff with a deadline."""

from dataclasses import dataclass
from typing import Final

from moldau.model.ports import Random

GROWTH: Final = 2.0
SPREAD: Final = 0.2  # spreads the retries of clients that failed together


@dataclass(slots=True)
class Backoff:
    """Doubles the wait up to a limit, within one deadline for all attempts. Time is passed in."""

    random: Random
    first_ms: float
    longest_ms: float
    deadline_ms: float
    tries: int = 0

    def next_wait_ms(self, now_ms: float) -> float | None:
        """Return the wait before the next attempt, or None if it would exceed the deadline."""
        wait_ms = min(self.first_ms * GROWTH ** min(self.tries, 30), self.longest_ms)
        wait_ms *= 1 + SPREAD * (2 * self.random.random() - 1)
        self.tries += 1
        return wait_ms if now_ms + wait_ms < self.deadline_ms else None

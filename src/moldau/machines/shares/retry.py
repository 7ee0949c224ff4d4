"""When a record that a member released, or whose lock expired, becomes available again."""

from typing import NamedTuple


class RetryBackoff(NamedTuple):
    """The group's `share.retry.backoff.*` configs."""

    initial_ms: float = 0.0
    factor: float = 2.0
    max_ms: float = 0.0

    def delay_ms(self, delivery_count: int) -> float:
        """The delay after this many delivery attempts."""
        delay_ms = self.initial_ms
        for _ in range(1, delivery_count):
            if delay_ms >= self.max_ms:
                break
            delay_ms *= self.factor
        return min(delay_ms, self.max_ms)

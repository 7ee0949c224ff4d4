"""Fetch progress of a follower, as known to its leader."""

from typing import Final

from moldau.model.ids import NO_EPOCH, NO_OFFSET

NEVER_MS: Final = float("-inf")


class FollowerProgress:
    """Progress of a follower in this leader epoch; unknown until its first fetch."""

    __slots__ = (
        "broker_epoch",
        "end_offset",
        "last_caught_up_ms",
        "last_fetch_leader_end_offset",
        "last_fetch_ms",
        "log_start_offset",
    )

    def __init__(self, caught_up_ms: float) -> None:
        self.end_offset = NO_OFFSET
        self.log_start_offset = NO_OFFSET
        self.broker_epoch = NO_EPOCH
        self.last_caught_up_ms = caught_up_ms
        self.last_fetch_ms = NEVER_MS
        self.last_fetch_leader_end_offset = NO_OFFSET

    def fetched(self, fetch_offset: int, leader_end_offset: int, now_ms: float) -> None:
        """Record a fetch at `fetch_offset`: the follower has everything before it."""
        if fetch_offset >= leader_end_offset:
            self.last_caught_up_ms = now_ms
        elif fetch_offset >= self.last_fetch_leader_end_offset and self.last_fetch_ms > self.last_caught_up_ms:
            # It has reached the log end of its previous fetch, so it was caught up at that time.
            self.last_caught_up_ms = self.last_fetch_ms
        self.end_offset = fetch_offset
        self.last_fetch_ms = now_ms
        self.last_fetch_leader_end_offset = leader_end_offset

    def is_caught_up(self, leader_end_offset: int, now_ms: float, lag_max_ms: float) -> bool:
        return self.end_offset == leader_end_offset or now_ms - self.last_caught_up_ms <= lag_max_ms

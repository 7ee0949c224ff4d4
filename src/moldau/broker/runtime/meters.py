"""Cheap counters. `broker.metrics` reads them and gives them their Prometheus names."""

from collections import Counter
from dataclasses import dataclass
from typing import Final

LATENCY_BUCKETS: Final = 40


class LatencyMeter:
    """A histogram of durations with buckets at powers of two of a microsecond; quantiles to a factor of two."""

    __slots__ = ("buckets", "count", "longest_ms", "sum_ms")

    def __init__(self) -> None:
        self.buckets = [0] * LATENCY_BUCKETS
        self.count = 0
        self.sum_ms = 0.0
        self.longest_ms = 0.0

    def finished(self, elapsed_ms: float) -> None:
        self.finished_together(1, elapsed_ms)

    def finished_together(self, count: int, elapsed_ms: float) -> None:
        """Record `count` requests that took the same time."""
        self.count += count
        self.sum_ms += elapsed_ms * count
        self.buckets[int(elapsed_ms * 1000).bit_length()] += count
        if elapsed_ms > self.longest_ms:
            self.longest_ms = elapsed_ms

    def quantile_ms(self, share: float) -> float:
        """An upper bound of the given quantile, from the buckets."""
        wanted = share * self.count
        seen = 0
        for index, count in enumerate(self.buckets):
            seen += count
            if seen and seen >= wanted:
                return float(min((1 << index) / 1000, self.longest_ms))
        return 0.0


class ApiMeter(LatencyMeter):
    """Requests of one API."""

    __slots__ = ("errors",)

    def __init__(self) -> None:
        super().__init__()
        self.errors = 0


class TrafficMeter:
    """Traffic of a topic or of the broker."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "bytes_rejected",
        "failed_fetches",
        "failed_produces",
        "fetches",
        "messages_in",
        "produces",
        "replication_bytes_in",
        "replication_bytes_out",
    )

    def __init__(self) -> None:
        self.messages_in = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.bytes_rejected = 0
        self.produces = 0
        self.fetches = 0
        self.failed_produces = 0
        self.failed_fetches = 0
        self.replication_bytes_in = 0
        self.replication_bytes_out = 0

    def add(self, other: "TrafficMeter") -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


SHARE_GROUPS_MAX: Final = 1000  # with counters of their own


class ShareMeter:
    """Acknowledgements and expired locks of the share partitions that this broker leads or has led."""

    __slots__ = ("acknowledgements", "dead_letter_failures", "dead_letters", "latency", "lock_timeouts", "redeliveries")

    def __init__(self) -> None:
        self.acknowledgements: Counter[int] = Counter()  # records by type of acknowledgement
        self.dead_letters: Counter[str] = Counter()  # by group; those of further groups without a name
        self.redeliveries: Counter[str] = Counter()  # records that were delivered before, by group
        self.dead_letter_failures = 0  # attempts that are repeated later
        self.latency = LatencyMeter()  # until an acknowledgement is durable
        self.lock_timeouts = 0  # records

    def count_dead_letter(self, group_id: str) -> None:
        _add(self.dead_letters, group_id, 1)

    def count_redeliveries(self, group_id: str, records: int) -> None:
        _add(self.redeliveries, group_id, records)


def _add(counts: Counter[str], group_id: str, number: int) -> None:
    is_counted = group_id in counts or len(counts) < SHARE_GROUPS_MAX
    counts[group_id if is_counted else ""] += number


@dataclass(slots=True)
class AuthenticationMeter:
    """Outcomes of authentication on the SASL listeners of a node."""

    successes: int = 0
    failures: int = 0
    reauthentications: int = 0
    expired: int = 0  # connections closed because their session was over

"""Statistics of measurements: medians with their spread, ratios per round, quantiles of latencies."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class Spread:
    """The median, minimum and maximum of several measurements."""

    median: float
    low: float
    high: float

    def as_json(self) -> dict[str, float]:
        return {"median": self.median, "low": self.low, "high": self.high}


def spread(values: Sequence[float]) -> Spread:
    if not values:
        raise ValueError("nothing was measured")
    return Spread(median(values), min(values), max(values))


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Return the spread of ours / theirs per round: a temporary slowdown of the machine affects both."""
    return spread([a / b for a, b in zip(ours, theirs, strict=True)])


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the quantile by the nearest-rank method."""
    if not ordered:
        raise ValueError("nothing was measured")
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


@dataclass(frozen=True, slots=True)
class Latencies:
    """Quantiles of response times, in milliseconds."""

    count: int
    p50_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float

    def as_json(self) -> dict[str, Any]:
        return {
            "count": self.count,
            "p50_ms": self.p50_ms,
            "p99_ms": self.p99_ms,
            "p999_ms": self.p999_ms,
            "max_ms": self.max_ms,
        }


def latencies(samples_ms: Sequence[float]) -> Latencies:
    ordered = sorted(samples_ms)
    return Latencies(
        len(ordered), quantile(ordered, 0.5), quantile(ordered, 0.99), quantile(ordered, 0.999), ordered[-1]
    )

"""Curves: the cost of an operation at several sizes, with the limit that holds at the largest."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Curve:
    """The cost of an operation, by size."""

    name: str
    of: str  # what there is more and more of
    unit: str
    costs: Mapping[int, float]
    limit: float | None = None  # of every cost, in the same unit

    @property
    def growth(self) -> float:
        """The cost at the largest size, relative to the smallest."""
        sizes = sorted(self.costs)
        return self.costs[sizes[-1]] / self.costs[sizes[0]] if self.costs[sizes[0]] else 0.0

    @property
    def is_met(self) -> bool:
        return self.limit is None or max(self.costs.values()) <= self.limit

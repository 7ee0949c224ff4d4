"""Rounds: subjects are measured in turn, repeatedly, so that a disturbance of the machine affects all of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

Outcome = TypeVar("Outcome")


@dataclass(frozen=True, slots=True)
class Round:
    """One measurement of one subject."""

    requests: int
    elapsed_s: float
    bytes: int = 0
    records: int = 0
    server_cpu_s: float | None = None
    samples_ms: Sequence[float] = field(default=(), repr=False)

    @property
    def requests_per_s(self) -> float:
        return self.requests / self.elapsed_s

    @property
    def bytes_per_s(self) -> float:
        return self.bytes / self.elapsed_s

    @property
    def records_per_s(self) -> float:
        return self.records / self.elapsed_s

    @property
    def cpu_us(self) -> float:
        """CPU time of the server per request, in microseconds."""
        assert self.server_cpu_s is not None, "the server is ours"
        return self.server_cpu_s / self.requests * 1e6


Subjects = Mapping[str, Callable[[], Round]]
Tell = Callable[[str], Any]


def interleave(subjects: Subjects, rounds: int, tell: Tell) -> dict[str, list[Round]]:
    """Run every subject once to warm up (first accesses to memory are slow), then measure them in turn."""
    for name, measure in subjects.items():
        tell(f"{name}: warming up")
        measure()
    measured: dict[str, list[Round]] = {name: [] for name in subjects}
    for number in range(rounds):
        for name, measure in subjects.items():
            tell(f"{name}: round {number + 1} of {rounds}")
            measured[name].append(measure())
    return measured

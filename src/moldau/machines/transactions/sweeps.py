"""Incremental sweeps over all transactional ids.

A shard may hold many ids, and a machine blocks the event loop while it decides. A sweep therefore takes a snapshot of
the ids when it is due and visits a bounded number of them per decision; other requests run between two steps. An id may
be removed or change state meanwhile, so each step checks the current state again. The sweep is soft state: on a loss of
leadership it is dropped and the next leader starts its own.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

from moldau.machines.decision import SetTimer
from moldau.machines.transactions.settings import IDS_PER_SWEEP_STEP


@dataclass(frozen=True, slots=True)
class SweepDue:
    """A sweep starts over with all ids."""

    name: str


@dataclass(frozen=True, slots=True)
class SweepContinued:
    """A sweep continues with its remaining ids."""

    name: str


class Sweep:
    """Soft state: the ids not yet visited."""

    def __init__(self, name: str, ids: Callable[[], Iterable[str]]) -> None:
        self._name = name
        self._ids = ids
        self._remaining: deque[str] = deque()

    def next_due(self, interval_ms: float) -> SetTimer:
        return SetTimer(SweepDue(self._name), interval_ms)

    def step(self, event: Hashable, interval_ms: float) -> tuple[list[str], list[SetTimer]] | None:
        """Return the ids to visit now and the timers to set; None if the event belongs to another sweep."""
        timers = []
        if event == SweepDue(self._name):
            self._remaining = deque(self._ids())
            timers.append(self.next_due(interval_ms))
        elif event != SweepContinued(self._name):
            return None
        batch = [self._remaining.popleft() for _ in range(min(IDS_PER_SWEEP_STEP, len(self._remaining)))]
        if self._remaining:
            timers.append(SetTimer(SweepContinued(self._name), 0))
        return batch, timers

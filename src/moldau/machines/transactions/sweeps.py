"""Work that looks at many transactional ids: done some at a time, so that others get their turn."""

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

from moldau.machines.decision import SetTimer
from moldau.machines.transactions.settings import IDS_PER_SLICE


@dataclass(frozen=True, slots=True)
class SweepDue:
    """It is time to look at all of them."""

    name: str


@dataclass(frozen=True, slots=True)
class SweepGoesOn:
    """Work that was interrupted goes on."""

    name: str


class Sweep:
    """Soft state: which ids are still to be looked at."""

    def __init__(self, name: str, ids: Callable[[], Iterable[str]]) -> None:
        self._name = name
        self._ids = ids
        self._unseen: deque[str] = deque()

    def next_due(self, interval_ms: float) -> SetTimer:
        return SetTimer(SweepDue(self._name), interval_ms)

    def step(self, event: Hashable, interval_ms: float) -> tuple[list[str], list[SetTimer]] | None:
        """Whom to look at now, and when to go on; None if the event is not one of this work's."""
        timers = []
        if event == SweepDue(self._name):
            self._unseen = deque(self._ids())
            timers.append(self.next_due(interval_ms))
        elif event != SweepGoesOn(self._name):
            return None
        some = [self._unseen.popleft() for _ in range(min(IDS_PER_SLICE, len(self._unseen)))]
        if self._unseen:
            timers.append(SetTimer(SweepGoesOn(self._name), 0))
        return some, timers

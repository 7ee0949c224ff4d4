"""What decisions let out once they are committed, in their order; and who has waited for that too long."""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from moldau.model.errors import KafkaError

Answers = Sequence[tuple[asyncio.Future[Any], Any]]


@dataclass(frozen=True, slots=True)
class Patience:
    """How long an answer is held, and whether anything could be committed now; if not, timers decide nothing."""

    held_ms_max: Callable[[], float]
    can_commit: Callable[[], bool]


class Held(NamedTuple):
    """What one decision will let out once everything below `offset` is committed; who asked waits until `due_s`."""

    offset: int
    answers: Answers
    effects: Sequence[object]
    due_s: float


class HeldBack(deque[Held]):
    """Those that wait, the oldest first. One timer watches all of them."""

    def __init__(self, patience: Patience | None, late: Callable[[], KafkaError]) -> None:
        """`late` is what they are told; without `patience` nobody is."""
        super().__init__()
        self._patience = patience
        self._late = late
        self._look: asyncio.TimerHandle | None = None

    def add(self, offset: int, answers: Answers, effects: Sequence[object]) -> None:
        self.append(Held(offset, answers, effects, self._due_s()))

    def _due_s(self) -> float:
        if self._patience is None:
            return math.inf
        loop = asyncio.get_running_loop()
        due_s = loop.time() + self._patience.held_ms_max() / 1000
        if self._look is None:
            self._look = loop.call_at(due_s, self._refuse_late)
        return due_s

    def _refuse_late(self) -> None:
        """Their effects are still to come: what was decided stands."""
        loop = asyncio.get_running_loop()
        now_s, owed = loop.time(), []
        while self and self[0].due_s <= now_s:
            held = self.popleft()
            for waiter, _ in held.answers:
                if not waiter.done():
                    waiter.set_exception(self._late())
            if held.effects:
                owed.append(held._replace(answers=()))
        self._look = loop.call_at(self[0].due_s, self._refuse_late) if self else None
        self.extendleft(reversed(owed))

    def take_all(self) -> list[Held]:
        """They are somebody else's business from now on."""
        if self._look is not None:
            self._look.cancel()
            self._look = None
        taken = list(self)
        self.clear()
        return taken

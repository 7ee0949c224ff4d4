"""Responses and effects of decisions, held in order until they are committed or time out."""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from moldau.model.errors import KafkaError

HeldResponses = Sequence[tuple[asyncio.Future[Any], Any]]


@dataclass(frozen=True, slots=True)
class CommitTimeout:
    """How long a response is held, and whether the log can commit at present; if not, timers are postponed."""

    timeout_ms: Callable[[], float]
    can_commit: Callable[[], bool]


class HeldDecision(NamedTuple):
    """Responses and effects to release once all records below `offset` are committed; responses time out at `due_s`."""

    offset: int
    responses: HeldResponses
    effects: Sequence[object]
    due_s: float


class CommitWaiters(deque[HeldDecision]):
    """The held decisions, oldest first. One timer serves all of them."""

    def __init__(self, commit_timeout: CommitTimeout | None, late: Callable[[], KafkaError]) -> None:
        """`late` makes the timeout error; without `commit_timeout` nothing times out."""
        super().__init__()
        self._commit_timeout = commit_timeout
        self._late = late
        self._timer: asyncio.TimerHandle | None = None

    def add(self, offset: int, responses: HeldResponses, effects: Sequence[object]) -> None:
        self.append(HeldDecision(offset, responses, effects, self._due_s()))

    def _due_s(self) -> float:
        if self._commit_timeout is None:
            return math.inf
        loop = asyncio.get_running_loop()
        due_s = loop.time() + self._commit_timeout.timeout_ms() / 1000
        if self._timer is None:
            self._timer = loop.call_at(due_s, self._time_out)
        return due_s

    def _time_out(self) -> None:
        """Fail the responses that are overdue. Their effects stay held: the decision itself stands."""
        loop = asyncio.get_running_loop()
        now_s, owed = loop.time(), []
        while self and self[0].due_s <= now_s:
            held = self.popleft()
            for waiter, _ in held.responses:
                if not waiter.done():
                    waiter.set_exception(self._late())
            if held.effects:
                owed.append(held._replace(responses=()))
        self._timer = loop.call_at(self[0].due_s, self._time_out) if self else None
        self.extendleft(reversed(owed))

    def take_all(self) -> list[HeldDecision]:
        """Hand all held decisions to the caller."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        taken = list(self)
        self.clear()
        return taken

"""One life of a simulated process: from its start until it is killed.

All that runs on behalf of a process carries its life in a context variable, which tasks, timers and callbacks inherit.
"""

from contextvars import Context, ContextVar
from typing import Any


class Life:
    """Whose code is running, and whether it still may."""

    __slots__ = ("held", "is_alive", "is_stopping", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_alive = True
        self.is_stopping = False  # it was asked to end, and is about to
        self.held: list[Any] | None = None  # what waits to run while the process is paused


_life: ContextVar[Life | None] = ContextVar("life", default=None)


def context_of(life: Life) -> Context:
    """A fresh context in which everything belongs to `life`."""
    context = Context()
    context.run(_life.set, life)
    return context


def life_in(context: Context) -> Life | None:
    """Whose context this is; None for the test itself."""
    return context.get(_life)

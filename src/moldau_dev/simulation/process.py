"""A simulated process, from its start until it is killed.

All code of a process carries it in a context variable, which tasks, timers and callbacks inherit.
"""

from contextvars import Context, ContextVar
from typing import Any


class SimulatedProcess:
    """The owner of tasks and callbacks; they run only while it is alive."""

    __slots__ = ("held", "is_alive", "is_stopping", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_alive = True
        self.is_stopping = False  # shutdown has begun
        self.held: list[Any] | None = None  # callbacks due while the process is paused


_process: ContextVar[SimulatedProcess | None] = ContextVar("process", default=None)


def context_of(process: SimulatedProcess) -> Context:
    """Return a new context in which all code belongs to `process`."""
    context = Context()
    context.run(_process.set, process)
    return context


def process_in(context: Context) -> SimulatedProcess | None:
    """Return the process of a context; None for the test itself."""
    return context.get(_process)

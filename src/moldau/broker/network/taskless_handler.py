"""Handlers that wait: each resumes in a task, or without one where its API allows that.

asyncio spends a turn of the loop on starting a task. For a request that comes with every batch, such as a follower's
fetch, that is a good part of its cost. But a handler without a task cannot use anything that needs the current task,
`asyncio.timeout` above all; an `Api` declares that it does not (`needs_task=False`).
"""

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any


@types.coroutine
def resume(coroutine: Coroutine[Any, Any, Any], awaited: object) -> Generator[Any, Any, Any]:
    """Run the rest of a handler that was started without a task and now awaits something."""
    while True:
        try:
            try:
                result = yield awaited
            except BaseException as error:
                awaited = coroutine.throw(error)
            else:
                awaited = coroutine.send(result)
        except StopIteration as stop:
            return stop.value


class TasklessHandler:
    """A handler that was started and waits, without a task."""

    __slots__ = ("_awaited", "_coroutine", "_is_running", "_loop", "_on_end")

    def __init__(
        self, coroutine: Coroutine[Any, Any, Any], awaited: Any, on_end: Callable[[Any, Exception | None], None]
    ) -> None:
        """`on_end` gets the handler's result, or the exception that it raised."""
        self._coroutine = coroutine
        self._on_end = on_end
        self._is_running = False
        self._loop = asyncio.get_running_loop()
        self._awaited: asyncio.Future[Any] | None = None
        self._await(awaited)

    def cancel(self) -> None:
        """Raise CancelledError in the handler, now or where it waits next, and ignore its result."""
        self._on_end = _ignore_result
        if self._is_running:
            self._loop.call_soon(self.cancel)
        elif self._awaited is not None:
            self._awaited.remove_done_callback(self._resume)
            self._resume(None, asyncio.CancelledError())

    def _await(self, awaited: Any) -> None:
        if awaited is None:  # a bare yield: resume in the next turn
            awaited = self._loop.create_future()
            awaited.set_result(None)
        else:
            awaited._asyncio_future_blocking = False  # as a task does when it accepts the future
        self._awaited = awaited
        awaited.add_done_callback(self._resume)

    def _resume(self, _done: object, error: BaseException | None = None) -> None:
        coroutine = self._coroutine
        self._awaited, self._is_running = None, True
        try:
            awaited = coroutine.send(None) if error is None else coroutine.throw(error)
        except StopIteration as stop:
            self._on_end(stop.value, None)
        except asyncio.CancelledError:
            return
        except Exception as failure:
            self._on_end(None, failure)
        else:
            self._await(awaited)
        finally:
            self._is_running = False


def _ignore_result(response: Any, error: Exception | None) -> None:
    """The connection is closed."""

"""Handlers that wait: they go on when what they wait for is done, in a task, or where that is enough without one.

asyncio begins a task with a turn of the loop in which nothing happens but that it waits. For what happens with every
batch, as a follower's fetch does, that is a good part of its cost. But a handler without a task cannot use what asks
for the current one, `asyncio.timeout` above all: those that can do without say so in their `Api`.
"""

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any


@types.coroutine
def resumed(coroutine: Coroutine[Any, Any, Any], waits_for: object) -> Generator[Any, Any, Any]:
    """Goes on with a handler that was started without a task and now waits for something."""
    while True:
        try:
            try:
                came = yield waits_for
            except BaseException as error:
                waits_for = coroutine.throw(error)
            else:
                waits_for = coroutine.send(came)
        except StopIteration as stop:
            return stop.value


class Unfinished:
    """A handler that was started and waits, without a task."""

    __slots__ = ("_coroutine", "_end", "_is_at_work", "_loop", "_waits_for")

    def __init__(
        self, coroutine: Coroutine[Any, Any, Any], waits_for: Any, end: Callable[[Any, Exception | None], None]
    ) -> None:
        """`end` hears what the handler returned, or why it did not return."""
        self._coroutine = coroutine
        self._end = end
        self._is_at_work = False
        self._loop = asyncio.get_running_loop()
        self._waits_for: asyncio.Future[Any] | None = None
        self._wait_for(waits_for)

    def cancel(self) -> None:
        """It hears of it now, or where it waits next; whatever it still does, its end is nobody's business."""
        self._end = _nobody_hears
        if self._is_at_work:
            self._loop.call_soon(self.cancel)
        elif self._waits_for is not None:
            self._waits_for.remove_done_callback(self._go_on)
            self._go_on(None, asyncio.CancelledError())

    def _wait_for(self, waits_for: Any) -> None:
        if waits_for is None:  # for its next turn
            waits_for = self._loop.create_future()
            waits_for.set_result(None)
        else:
            waits_for._asyncio_future_blocking = False  # so a future knows that it was heard
        self._waits_for = waits_for
        waits_for.add_done_callback(self._go_on)

    def _go_on(self, _done: object, error: BaseException | None = None) -> None:
        coroutine = self._coroutine
        self._waits_for, self._is_at_work = None, True
        try:
            waits_for = coroutine.send(None) if error is None else coroutine.throw(error)
        except StopIteration as stop:
            self._end(stop.value, None)
        except asyncio.CancelledError:
            return
        except Exception as failure:
            self._end(None, failure)
        else:
            self._wait_for(waits_for)
        finally:
            self._is_at_work = False


def _nobody_hears(response: Any, error: Exception | None) -> None:
    """The connection is gone."""

"""Ctrl-C in every command: it cancels the running coroutine; where none runs, it raises KeyboardInterrupt.

KeyboardInterrupt can be raised after any bytecode, also where a coroutine was created and is not awaited yet; Python
then warns of that coroutine on standard error. Inside an event loop the handler therefore cancels the task, as
`asyncio.Runner` does. Outside, it silences the warning, since the interrupt ends the command and nothing will await
the coroutine any more.
"""

import signal
import threading
import warnings
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    import asyncio

Result = TypeVar("Result")

_NEVER_AWAITED: Final = "coroutine .* was never awaited"


class Interrupts:
    """The handler of SIGINT while a command runs."""

    def __init__(self) -> None:
        self._task: asyncio.Task[Any] | None = None
        self._is_interrupted = False

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Install the handler, unless the program that called the command has its own."""
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            yield
            return
        self._is_interrupted = False
        signal.signal(signal.SIGINT, self._on_interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def run(self, loop: "asyncio.AbstractEventLoop", work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine to completion. An interrupt cancels it, and is raised once its cleanup is done."""
        import asyncio

        task = self._task = loop.create_task(work)
        try:
            result: Result = loop.run_until_complete(task)
            return result
        except asyncio.CancelledError:
            if self._is_interrupted:
                raise KeyboardInterrupt from None
            raise
        except BaseException:  # also a second interrupt, and the exception of another signal handler
            task.cancel()
            loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
            raise
        finally:
            self._task = None

    def _on_interrupt(self, _number: int, _frame: FrameType | None) -> None:
        is_first, self._is_interrupted = not self._is_interrupted, True
        if is_first and self._task is not None and not self._task.done():
            self._task.cancel()
            self._task.get_loop().call_soon_threadsafe(lambda: None)  # wakes the loop if it waits for events
            return
        warnings.filterwarnings("ignore", _NEVER_AWAITED, RuntimeWarning)
        raise KeyboardInterrupt


INTERRUPTS: Final = Interrupts()


def run_async(work: Coroutine[Any, Any, Result]) -> Result:
    """Like `asyncio.run`, with the handler of the command."""
    import asyncio

    with asyncio.Runner() as runner:
        return INTERRUPTS.run(runner.get_loop(), work)

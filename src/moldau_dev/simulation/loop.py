"""An asyncio event loop on virtual time: no selector, no threads, no real waiting; a seed fixes the order of events.

Callbacks run first in, first out. When none is left, time jumps to the next timer. When no timer is left either and the
main task is not done, the run is deadlocked: the error lists the waiting tasks.
"""

import asyncio
import contextvars
import functools
import heapq
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeVar, TypeVarTuple

from moldau.testing.disk_faults import Crashed
from moldau.testing.trace import Trace
from moldau_dev.simulation.process import SimulatedProcess, context_of, process_in

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")

START_S: Final = 1000.0
EVENTS_AT_ONCE_MAX: Final = 1_000_000  # at one point in time; more is an endless loop
CLOSE_ATTEMPTS_MAX: Final = 10


class SimulationFailed(AssertionError):
    """The run failed: an unhandled exception, or a limit exceeded."""


class Deadlock(SimulationFailed):
    """Nothing is scheduled while the main task waits."""


class _Call(NamedTuple):
    handle: asyncio.Handle
    process: SimulatedProcess | None
    context: Context
    callback: Callable[..., object]
    arguments: tuple[Any, ...]

    @property
    def is_dead(self) -> bool:
        return self.process is not None and not self.process.is_alive

    @property
    def is_stale(self) -> bool:
        return self.handle.cancelled() or self.is_dead


class _TaskOwner(NamedTuple):
    process: SimulatedProcess | None
    context: Context


# In typeshed these methods are abstract, at run time they raise NotImplementedError: as wanted for sockets and threads.
if TYPE_CHECKING:
    from asyncio import BaseEventLoop as _Loop
else:
    from asyncio import AbstractEventLoop as _Loop


def _of(process: SimulatedProcess | None) -> str:
    """Return the suffix of the names of its tasks: a garbage-collected task reports nothing else about its origin."""
    return f" of {process.name}" if process is not None else ""


class SimulatedLoop(_Loop):
    """Runs coroutines to completion in virtual time."""

    def __init__(self, *, trace: Trace | None = None) -> None:
        self.trace = trace if trace is not None else Trace(self.now_ms)
        self._now_s = START_S
        self._ready: deque[_Call] = deque()
        self._timers: list[tuple[float, int, _Call]] = []
        self._sequence = 0
        self._tasks: dict[asyncio.Task[Any], _TaskOwner] = {}
        self._killed: list[SimulatedProcess] = []
        self._tasks_made = 0
        self._running: _Call | None = None
        self._failure: tuple[str, BaseException | None] | None = None
        self._is_running = False
        self._is_stopping = False
        self._is_closed = False
        self._generators: dict[int, SimulatedProcess | None] = {}
        self._runs: dict[asyncio.Future[Any], SimulatedProcess] = {}
        self.after_event: Callable[[SimulatedProcess | None], None] | None = (
            None  # called after each event with its process; may raise
        )

    # Time

    def time(self) -> float:
        return self._now_s

    def now_ms(self) -> float:
        return self._now_s * 1e3

    # Running

    def run(self, main: Coroutine[Any, Any, Result], *, virtual_s_max: float = 86_400.0) -> Result:
        """Run `main` to completion, then close the remaining tasks. The default limit is one virtual day."""
        try:
            result: Result = self._run_main(main, self._now_s + virtual_s_max)
            return result
        finally:
            self.close()

    def run_until_complete(self, future: Any) -> Any:
        """As in asyncio: other scheduled callbacks stay scheduled."""
        return self._run_main(future, self._now_s + 86_400.0)

    def run_as(self, process: SimulatedProcess, main: Coroutine[Any, Any, Result]) -> asyncio.Future[Result]:
        """Run `main` in a process. The future raises `Crashed` if the process is killed first."""
        task = self.create_task(main, context=context_of(process))
        future: asyncio.Future[Result] = self.create_future()
        self._runs[future] = process
        task.add_done_callback(lambda done: self._finish_run(future, done), context=Context())
        return future

    def kill(self, process: SimulatedProcess) -> None:
        """Kill a process: none of its code runs any more, not even cleanup."""
        if not process.is_alive:
            return
        process.is_alive = False
        self._killed.append(process)
        process.held = None
        self.trace.record("kill", process.name)
        for future in [each for each, owner in self._runs.items() if owner is process]:
            del self._runs[future]
            if not future.done():
                future.set_exception(Crashed(f"{process.name} was killed"))
                future.exception()  # mark as retrieved: it need not be awaited
        # Later: the killed process may be the one running now, in the middle of a write.
        self.call_soon(self._close_tasks, process, context=Context())

    def pause(self, process: SimulatedProcess) -> None:
        """Stop running its code until `resume`, like SIGSTOP. Time and the network continue."""
        if process.is_alive and process.held is None:
            process.held = []
            self.trace.record("pause", process.name)

    def resume(self, process: SimulatedProcess) -> None:
        """Run the callbacks that became due meanwhile, in order."""
        if process.held is not None:
            held, process.held = process.held, None
            self.trace.record("resume", process.name)
            self._ready.extend(held)

    def run_forever(self) -> None:
        self._run_while(lambda: not self._is_stopping, float("inf"))

    def stop(self) -> None:
        self._is_stopping = True

    def is_running(self) -> bool:
        return self._is_running

    def is_closed(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        """Drop scheduled callbacks and close waiting tasks."""
        if self._is_closed:
            return
        self._is_closed = True
        self._ready.clear()
        self._timers.clear()
        self._enter(self._close_tasks, None)
        self._ready.clear()
        self._timers.clear()
        self._runs.clear()

    async def shutdown_asyncgens(self) -> None:
        """Nothing to do: generators are closed when they are garbage-collected."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """There is none."""

    # Scheduling

    def call_soon(
        self, callback: Callable[[*Arguments], object], *args: *Arguments, context: Context | None = None
    ) -> asyncio.Handle:
        context = context if context is not None else contextvars.copy_context()
        handle = asyncio.Handle(callback, args, self, context)
        if not self._is_closed:
            self._ready.append(_Call(handle, process_in(context), context, callback, args))
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Arguments], object], *args: *Arguments, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[[*Arguments], object], *args: *Arguments, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Arguments], object], *args: *Arguments, context: Context | None = None
    ) -> asyncio.TimerHandle:
        context = context if context is not None else contextvars.copy_context()
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if not self._is_closed:
            self._sequence += 1
            call = _Call(handle, process_in(context), context, callback, args)
            heapq.heappush(self._timers, (when, self._sequence, call))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: object = None, context: Context | None = None) -> asyncio.Task[Any]:
        context = context if context is not None else contextvars.copy_context()
        self._tasks_made += 1  # asyncio's own counter is not reset between runs
        process = process_in(context)
        whole_name = f"{name or f'task-{self._tasks_made}'}{_of(process)}"
        task = asyncio.Task(coro, loop=self, name=whole_name, context=context)
        self._tasks[task] = _TaskOwner(process, context)
        task.add_done_callback(self._on_task_done, context=Context())
        return task

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        """Not supported."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """An unhandled exception fails the run, unless it comes from a dead process."""
        exception = context.get("exception")
        is_dead = self._running is not None and self._running.is_dead
        if isinstance(task := context.get("future"), asyncio.Task):  # a killed process cannot retrieve it
            is_dead = is_dead or any(task.get_name().endswith(_of(process)) for process in self._killed)
        if not isinstance(exception, Crashed) and not is_dead and self._failure is None:
            self._failure = (context["message"], exception)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A cancelled timer stays in the heap until it is due."""

    # Internals

    def _run_main(self, main: Any, until_s: float) -> Any:
        future = asyncio.ensure_future(main, loop=self)
        try:
            self._run_while(lambda: not future.done(), until_s)
        except BaseException:
            future.cancel()
            raise
        return future.result()

    def _run_while(self, condition: Callable[[], bool], until_s: float) -> None:
        if self._is_closed or self._is_running:
            raise RuntimeError("This loop is closed or already running.")
        self._is_stopping = False
        self._enter(self._run_events, condition, until_s)

    def _run_events(self, condition: Callable[[], bool], until_s: float) -> None:
        events_at_once = 0
        while condition():
            if not self._ready:
                self._advance(until_s)
                events_at_once = 0
            call = self._ready.popleft()
            if call.is_stale:
                continue
            if call.process is not None and call.process.held is not None:
                call.process.held.append(call)
                continue
            self._run_call(call)
            events_at_once += 1
            self._raise_failure()
            if events_at_once > EVENTS_AT_ONCE_MAX:
                raise SimulationFailed(f"endless loop: time does not advance, last callback {_name(call.callback)}")
        self._raise_failure()

    def _enter(self, act: Callable[..., object], *arguments: object) -> None:
        """Call `act` with this as the running loop and with its generator hooks."""
        hooks = sys.get_asyncgen_hooks()
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        sys.set_asyncgen_hooks(self._on_first_iteration, self._on_finalization)
        self._is_running = True
        try:
            act(*arguments)
        finally:
            self._is_running = False
            sys.set_asyncgen_hooks(*hooks)
            asyncio._set_running_loop(outer)

    def _advance(self, until_s: float) -> None:
        """Jump to the next timer that is neither cancelled nor of a dead process."""
        while self._timers and self._timers[0][2].is_stale:
            heapq.heappop(self._timers)
        if not self._timers:
            raise Deadlock("Deadlock; waiting tasks:\n" + self._describe_waiting())
        if self._timers[0][0] > until_s:
            raise SimulationFailed("Virtual time limit exceeded; waiting tasks:\n" + self._describe_waiting())
        self._now_s = max(self._now_s, self._timers[0][0])
        while self._timers and self._timers[0][0] <= self._now_s:
            self._ready.append(heapq.heappop(self._timers)[2])

    def _run_call(self, call: _Call) -> None:
        self.trace.record("call", f"{call.process.name if call.process else '-'} {_name(call.callback)}")
        self._running, process = call, call.process
        try:
            call.context.run(call.callback, *call.arguments)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            self.call_exception_handler({"message": f"{_name(call.callback)} raised", "exception": error})
        finally:
            self._running = None
            # Since 3.12 a traceback keeps this frame: the task would never be collected, nor its exception reported.
            del call
        if self.after_event is not None and self._failure is None:
            self.after_event(process)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            message, exception = self._failure
            self._failure = None
            self._fail(message, exception)

    def _fail(self, message: str, exception: BaseException | None) -> NoReturn:
        raise SimulationFailed(f"{message}: {exception!r} at {self._now_s - START_S:.6f} s") from exception

    def _finish_run(self, future: asyncio.Future[Any], done: asyncio.Task[Any]) -> None:
        self._runs.pop(future, None)
        if future.done():
            return
        if done.cancelled():
            future.cancel()
        elif (error := done.exception()) is not None:
            future.set_exception(error)
        else:
            future.set_result(done.result())

    def _close_tasks(self, process: SimulatedProcess | None) -> None:
        """Close the coroutines of a dead process, or all; closing one may create others."""
        for _ in range(CLOSE_ATTEMPTS_MAX):
            tasks = [task for task, owned in self._tasks.items() if process is None or owned.process is process]
            for task in tasks:
                self._close_task(task, self._tasks.pop(task))
            if not tasks:
                return

    def _close_task(self, task: asyncio.Task[Any], owned: _TaskOwner) -> None:
        if task.done():
            return
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        coroutine = task.get_coro()
        for _ in range(CLOSE_ATTEMPTS_MAX):
            try:
                owned.context.run(coroutine.close)
                return
            except BaseException:  # its cleanup raised or awaited something: retry
                continue

    def _on_task_done(self, task: asyncio.Task[Any]) -> None:
        owned = self._tasks.pop(task, None)
        if owned is not None and owned.process is not None and not owned.process.is_alive and not task.cancelled():
            task.exception()  # mark as retrieved: exceptions in a dead process are no failure

    def _on_first_iteration(self, generator: AsyncGenerator[Any, Any]) -> None:
        # By id: its weak references are cleared before the finalizer hook is called.
        self._generators[id(generator)] = process_in(contextvars.copy_context())

    def _on_finalization(self, generator: AsyncGenerator[Any, Any]) -> None:
        process = self._generators.pop(id(generator), None)
        if not self._is_closed and (process is None or process.is_alive):
            self.create_task(generator.aclose(), name="aclose", context=context_of(process) if process else Context())

    def _describe_waiting(self) -> str:
        waiting = [(task, owned) for task, owned in self._tasks.items() if not task.done()]
        lines = []
        for task, owned in waiting[:50]:
            frames = task.get_stack()
            where = f"{frames[-1].f_code.co_filename}:{frames[-1].f_lineno}" if frames else "not started"
            lines.append(f"  {owned.process.name if owned.process else '-'} {_coroutine_name(task)} at {where}")
        return "\n".join(lines)


def _coroutine_name(task: asyncio.Task[Any]) -> str:
    coroutine = task.get_coro()
    return getattr(coroutine, "__qualname__", type(coroutine).__name__)


def _name(callback: Callable[..., object]) -> str:
    """Return the name of a callback, without parts that differ between runs."""
    while isinstance(callback, functools.partial):
        callback = callback.func
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return _coroutine_name(owner)
    return getattr(callback, "__qualname__", type(callback).__name__)

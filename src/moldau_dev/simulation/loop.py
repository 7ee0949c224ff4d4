"""An asyncio event loop on virtual time: no selector, no thread, no waiting; one seed is one order of events.

Callbacks run first in, first out. When none is left, time jumps to the next timer. When none of those is left either
and the main task is not done, nothing can ever happen again, which is an error and says who waits for what.
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
from moldau_dev.simulation.lifetime import Life, context_of, life_in

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")

START_S: Final = 1000.0
EVENTS_AT_ONCE_MAX: Final = 1_000_000  # without time going on: somebody spins
CLOSE_ATTEMPTS_MAX: Final = 10


class SimulationFailed(AssertionError):
    """The run cannot count: an exception nobody handled, or a bound passed."""


class Deadlock(SimulationFailed):
    """Nothing is scheduled, yet the main task waits."""


class _Call(NamedTuple):
    handle: asyncio.Handle
    life: Life | None
    context: Context
    callback: Callable[..., object]
    arguments: tuple[Any, ...]

    @property
    def is_of_the_dead(self) -> bool:
        return self.life is not None and not self.life.is_alive

    @property
    def is_void(self) -> bool:
        return self.handle.cancelled() or self.is_of_the_dead


class _Owned(NamedTuple):
    life: Life | None
    context: Context


# Typeshed calls abstract what raises NotImplementedError at run time; just that is wanted of sockets and threads here.
if TYPE_CHECKING:
    from asyncio import BaseEventLoop as _Loop
else:
    from asyncio import AbstractEventLoop as _Loop


def _of(life: Life | None) -> str:
    """What the names of its tasks end with: a task that is let go tells nothing else of where it came from."""
    return f" of {life.name}" if life is not None else ""


class SimulatedLoop(_Loop):
    """Runs coroutines to their end in no time at all."""

    def __init__(self, *, trace: Trace | None = None) -> None:
        self.trace = trace if trace is not None else Trace(self.now_ms)
        self._now_s = START_S
        self._ready: deque[_Call] = deque()
        self._timers: list[tuple[float, int, _Call]] = []
        self._sequence = 0
        self._tasks: dict[asyncio.Task[Any], _Owned] = {}
        self._killed: list[Life] = []
        self._tasks_made = 0
        self._running: _Call | None = None
        self._failure: tuple[str, BaseException | None] | None = None
        self._is_running = False
        self._is_stopping = False
        self._is_closed = False
        self._generators: dict[int, Life | None] = {}
        self._promises: dict[asyncio.Future[Any], Life] = {}
        self.after_event: Callable[[Life | None], None] | None = None  # looks at what just ran; may raise

    # Time

    def time(self) -> float:
        return self._now_s

    def now_ms(self) -> float:
        return self._now_s * 1e3

    # Running

    def run(self, main: Coroutine[Any, Any, Result], *, virtual_s_max: float = 86_400.0) -> Result:
        """Run `main` to its end, then end every task that is left. A virtual day is the bound unless told."""
        try:
            result: Result = self._run_main(main, self._now_s + virtual_s_max)
            return result
        finally:
            self.close()

    def run_until_complete(self, future: Any) -> Any:
        """As asyncio has it: what else was scheduled stays scheduled."""
        return self._run_main(future, self._now_s + 86_400.0)

    def run_as(self, life: Life, main: Coroutine[Any, Any, Result]) -> asyncio.Future[Result]:
        """Run `main` as code of a process. The future raises `Crashed` when the process dies first."""
        task = self.create_task(main, context=context_of(life))
        promise: asyncio.Future[Result] = self.create_future()
        self._promises[promise] = life
        task.add_done_callback(lambda done: self._keep_promise(promise, done), context=Context())
        return promise

    def kill(self, life: Life) -> None:
        """End a process: none of its code runs from now on, not even to clean up."""
        if not life.is_alive:
            return
        life.is_alive = False
        self._killed.append(life)
        life.held = None
        self.trace.record("kill", life.name)
        for promise in [each for each, owner in self._promises.items() if owner is life]:
            del self._promises[promise]
            if not promise.done():
                promise.set_exception(Crashed(f"{life.name} was killed"))
                promise.exception()  # whoever waits hears of it; nobody has to wait
        # Later, because a process may be the one that is running now, killed in the middle of a write.
        self.call_soon(self._bury_all, life, context=Context())

    def pause(self, life: Life) -> None:
        """None of its code runs until `resume`, as after SIGSTOP. Time goes on, and so does what others send it."""
        if life.is_alive and life.held is None:
            life.held = []
            self.trace.record("pause", life.name)

    def resume(self, life: Life) -> None:
        """All that was due meanwhile runs now, in the order in which it was due."""
        if life.held is not None:
            held, life.held = life.held, None
            self.trace.record("resume", life.name)
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
        """Drop what is scheduled and end what still waits."""
        if self._is_closed:
            return
        self._is_closed = True
        self._ready.clear()
        self._timers.clear()
        self._enter(self._bury_all, None)
        self._ready.clear()
        self._timers.clear()
        self._promises.clear()

    async def shutdown_asyncgens(self) -> None:
        """Nothing to do: generators are closed as they are let go."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """There is none."""

    # Scheduling

    def call_soon(
        self, callback: Callable[[*Arguments], object], *args: *Arguments, context: Context | None = None
    ) -> asyncio.Handle:
        context = context if context is not None else contextvars.copy_context()
        handle = asyncio.Handle(callback, args, self, context)
        if not self._is_closed:
            self._ready.append(_Call(handle, life_in(context), context, callback, args))
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
            call = _Call(handle, life_in(context), context, callback, args)
            heapq.heappush(self._timers, (when, self._sequence, call))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: object = None, context: Context | None = None) -> asyncio.Task[Any]:
        context = context if context is not None else contextvars.copy_context()
        self._tasks_made += 1  # asyncio's own numbers go on from one run to the next
        life = life_in(context)
        whole_name = f"{name or f'task-{self._tasks_made}'}{_of(life)}"
        task = asyncio.Task(coro, loop=self, name=whole_name, context=context)
        self._tasks[task] = _Owned(life, context)
        task.add_done_callback(self._forget, context=Context())
        return task

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        """There is no other mode."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """What nobody handled fails the run, unless a dead process is where it comes from."""
        exception = context.get("exception")
        is_of_the_dead = self._running is not None and self._running.is_of_the_dead
        if isinstance(task := context.get("future"), asyncio.Task):  # whoever was killed could not ask what it raised
            is_of_the_dead = is_of_the_dead or any(task.get_name().endswith(_of(life)) for life in self._killed)
        if not isinstance(exception, Crashed) and not is_of_the_dead and self._failure is None:
            self._failure = (context["message"], exception)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A cancelled timer stays in the heap until its time has come."""

    # Inside

    def _run_main(self, main: Any, until_s: float) -> Any:
        future = asyncio.ensure_future(main, loop=self)
        try:
            self._run_while(lambda: not future.done(), until_s)
        except BaseException:
            future.cancel()
            raise
        return future.result()

    def _run_while(self, is_wanted: Callable[[], bool], until_s: float) -> None:
        if self._is_closed or self._is_running:
            raise RuntimeError("This loop is closed or already running.")
        self._is_stopping = False
        self._enter(self._run_events, is_wanted, until_s)

    def _run_events(self, is_wanted: Callable[[], bool], until_s: float) -> None:
        events_at_once = 0
        while is_wanted():
            if not self._ready:
                self._advance(until_s)
                events_at_once = 0
            call = self._ready.popleft()
            if call.is_void:
                continue
            if call.life is not None and call.life.held is not None:
                call.life.held.append(call)
                continue
            self._run_call(call)
            events_at_once += 1
            self._raise_failure()
            if events_at_once > EVENTS_AT_ONCE_MAX:
                raise SimulationFailed(f"{_name(call.callback)} and others spin without letting time go on")
        self._raise_failure()

    def _enter(self, act: Callable[..., object], *arguments: object) -> None:
        """Be the running loop, with the hooks that go with it."""
        hooks = sys.get_asyncgen_hooks()
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        sys.set_asyncgen_hooks(self._begin_generator, self._close_generator)
        self._is_running = True
        try:
            act(*arguments)
        finally:
            self._is_running = False
            sys.set_asyncgen_hooks(*hooks)
            asyncio._set_running_loop(outer)

    def _advance(self, until_s: float) -> None:
        """Jump to the next timer that anybody alive still wants."""
        while self._timers and self._timers[0][2].is_void:
            heapq.heappop(self._timers)
        if not self._timers:
            raise Deadlock("Nothing will ever happen again, but these wait:\n" + self._describe_waiting())
        if self._timers[0][0] > until_s:
            raise SimulationFailed("Virtual time is up, but these wait:\n" + self._describe_waiting())
        self._now_s = max(self._now_s, self._timers[0][0])
        while self._timers and self._timers[0][0] <= self._now_s:
            self._ready.append(heapq.heappop(self._timers)[2])

    def _run_call(self, call: _Call) -> None:
        self.trace.record("call", f"{call.life.name if call.life else '-'} {_name(call.callback)}")
        self._running, life = call, call.life
        try:
            call.context.run(call.callback, *call.arguments)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            self.call_exception_handler({"message": f"{_name(call.callback)} raised", "exception": error})
        finally:
            self._running = None
            # Since Python 3.12 a traceback keeps this frame: a task would hold itself, and nobody hear what it raised.
            del call
        if self.after_event is not None and self._failure is None:
            self.after_event(life)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            message, exception = self._failure
            self._failure = None
            self._fail(message, exception)

    def _fail(self, message: str, exception: BaseException | None) -> NoReturn:
        raise SimulationFailed(f"{message}: {exception!r} at {self._now_s - START_S:.6f} s") from exception

    def _keep_promise(self, promise: asyncio.Future[Any], done: asyncio.Task[Any]) -> None:
        self._promises.pop(promise, None)
        if promise.done():
            return
        if done.cancelled():
            promise.cancel()
        elif (error := done.exception()) is not None:
            promise.set_exception(error)
        else:
            promise.set_result(done.result())

    def _bury_all(self, life: Life | None) -> None:
        """Close the coroutines of a dead process, or of everybody; closing one may make others."""
        for _ in range(CLOSE_ATTEMPTS_MAX):
            buried = [task for task, owned in self._tasks.items() if life is None or owned.life is life]
            for task in buried:
                self._bury(task, self._tasks.pop(task))
            if not buried:
                return

    def _bury(self, task: asyncio.Task[Any], owned: _Owned) -> None:
        if task.done():
            return
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        coroutine = task.get_coro()
        for _ in range(CLOSE_ATTEMPTS_MAX):
            try:
                owned.context.run(coroutine.close)
                return
            except BaseException:  # its cleaning up found a dead world, or waited for something: once more
                continue

    def _forget(self, task: asyncio.Task[Any]) -> None:
        owned = self._tasks.pop(task, None)
        if owned is not None and owned.life is not None and not owned.life.is_alive and not task.cancelled():
            task.exception()  # heard: what a dead process stumbles over is nobody's failure

    def _begin_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        # By its address: whoever lets go of it takes its weak references away before we are told.
        self._generators[id(generator)] = life_in(contextvars.copy_context())

    def _close_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        life = self._generators.pop(id(generator), None)
        if not self._is_closed and (life is None or life.is_alive):
            self.create_task(generator.aclose(), name="aclose", context=context_of(life) if life else Context())

    def _describe_waiting(self) -> str:
        waiting = [(task, owned) for task, owned in self._tasks.items() if not task.done()]
        lines = []
        for task, owned in waiting[:50]:
            frames = task.get_stack()
            where = f"{frames[-1].f_code.co_filename}:{frames[-1].f_lineno}" if frames else "not begun"
            lines.append(f"  {owned.life.name if owned.life else '-'} {_coroutine_name(task)} at {where}")
        return "\n".join(lines)


def _coroutine_name(task: asyncio.Task[Any]) -> str:
    coroutine = task.get_coro()
    return getattr(coroutine, "__qualname__", type(coroutine).__name__)


def _name(callback: Callable[..., object]) -> str:
    """What a callback is called, without anything that differs between two runs."""
    while isinstance(callback, functools.partial):
        callback = callback.func
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return _coroutine_name(owner)
    return getattr(callback, "__qualname__", type(callback).__name__)

"""Workers: functions in threads, or coroutines in tasks, that process the jobs of a queue.

Each of them has a receiver of its own, a member of the group, and repeats: take a job, call the function, give the
verdict. A stop (signal, `Queue.stop`, idle queue, failure) ends it after the job in hand. When the grace period is
over, closing the receivers releases the jobs that still run; their threads are daemons, their tasks are cancelled.
"""

import asyncio
import contextlib
import inspect
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from moldau.api.jobs import POLL_S, Delay, Job
from moldau.api.types import Failed

if TYPE_CHECKING:
    from moldau.api.receiver import Receiver

logger = logging.getLogger(__name__)

GRACE_S: Final = 30.0
PROGRESS_S: Final = 10.0
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

Exceptions = type[BaseException] | tuple[type[BaseException], ...]
Function = TypeVar("Function", bound=Callable[[Job], Any])


@dataclass(slots=True)
class Worker:
    """The decorated function of a queue."""

    queue: str
    function: Callable[[Job], Any]
    concurrency: int
    reject_on: Exceptions
    retry_in: Delay | None
    stopping: threading.Event = field(default_factory=threading.Event)

    @property
    def is_coroutine(self) -> bool:
        return inspect.iscoroutinefunction(self.function)


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a run."""

    done: int = 0
    retried: int = 0
    rejected: int = 0
    released: int = 0  # still running at the end of the grace period
    running: int = 0
    elapsed_s: float = 0.0


class WorkerRun:
    """Takes jobs and gives verdicts for one run; shared by its threads or tasks."""

    def __init__(
        self,
        worker: Worker,
        new_receiver: Callable[[], "Receiver"],
        grace_s: float,
        idle_s: float | None,
        on_progress: Callable[[Progress], None] | None,
        progress_s: float,
    ) -> None:
        worker.stopping.clear()
        self.worker = worker
        self.grace_s = grace_s
        self._idle_s = idle_s
        self._on_progress = on_progress
        self._progress_s = progress_s
        self._lock = threading.Lock()
        self._progress = Progress()
        self._started_s = self._active_s = self._reported_s = time.monotonic()
        self._failure: Exception | None = None
        self.receivers = [new_receiver() for _ in range(worker.concurrency)]

    @property
    def is_stopping(self) -> bool:
        return self.worker.stopping.is_set()

    # -- jobs

    def begin(self) -> None:
        self._count(running=1)

    def settle(self, job: Job, error: BaseException | None) -> None:
        """Give the verdict that follows from the function's end, unless it gave one itself."""
        self._count(running=-1)
        try:
            self._settle(job, error)
        except Failed as failed:  # released by then, or the cluster is unreachable: it is delivered again
            logger.warning("%s: no verdict: %s", job.place, failed)

    def _settle(self, job: Job, error: BaseException | None) -> None:
        if job.is_settled:
            self._count(done=1)
        elif error is None:
            job.ack()
            self._count(done=1)
        elif isinstance(error, self.worker.reject_on):
            job.reject(f"{type(error).__name__}: {error}")
            self._count(rejected=1)
        else:
            job.retry(self.worker.retry_in)
            self._count(retried=1)
        if error is not None and not isinstance(error, self.worker.reject_on):
            logger.error("%s: attempt %d failed", job.place, job.attempt, exc_info=error)

    def _count(self, **changes: int) -> None:
        with self._lock:
            self._active_s = time.monotonic()
            values = {name: getattr(self._progress, name) + change for name, change in changes.items()}
            self._progress = replace(self._progress, **values)

    def fail(self, error: Exception) -> None:
        """Taking jobs fails: end the run with this error."""
        with self._lock:
            self._failure = self._failure or error
        self.worker.stopping.set()

    # -- the run

    def tick(self) -> None:
        """Called every `POLL_S`: report progress, stop when idle."""
        now_s = time.monotonic()
        if now_s - self._reported_s >= self._progress_s:
            self._reported_s = now_s
            self._report()
        progress = self._progress
        if self._idle_s is not None and not progress.running and now_s - self._active_s >= self._idle_s:
            self.worker.stopping.set()

    def _report(self) -> None:
        progress = self.progress
        logger.info(
            "%s: %d done, %d retried, %d rejected, %d running",
            self.worker.queue,
            progress.done,
            progress.retried,
            progress.rejected,
            progress.running,
        )
        if self._on_progress is not None:
            self._on_progress(progress)

    @property
    def progress(self) -> Progress:
        return replace(self._progress, elapsed_s=time.monotonic() - self._started_s)

    def finish(self) -> Progress:
        """Release the jobs that still run, leave the group, report; raise the failure of the run if it had one."""
        running = self._progress.running
        for receiver in self.receivers:
            receiver.close()
        self._progress = replace(self._progress, released=running)
        if running:
            logger.warning("%s: %d jobs released, still running after %g s", self.worker.queue, running, self.grace_s)
        self._report()
        if self._failure is not None:
            raise self._failure
        return self.progress


# -- threads


def run_workers(run: WorkerRun) -> Progress:
    """Run functions in threads, or coroutines in an event loop of their own, until the run is stopped."""
    if run.worker.is_coroutine:
        return asyncio.run(run_workers_async(run))
    threads = [
        threading.Thread(target=_work, args=(run, receiver), name=f"moldau-worker-{number}", daemon=True)
        for number, receiver in enumerate(run.receivers)
    ]
    try:
        with _stop_on_signals(run.worker.stopping):
            for thread in threads:
                thread.start()
            while not run.worker.stopping.wait(POLL_S):
                run.tick()
            end_s = time.monotonic() + run.grace_s
            for thread in threads:
                thread.join(max(0.0, end_s - time.monotonic()))
    finally:
        run.worker.stopping.set()
        progress = run.finish()
    return progress


def _work(run: WorkerRun, receiver: "Receiver") -> None:
    while not run.is_stopping:
        try:
            job = receiver.take_soon(POLL_S)
        except Failed as failed:
            run.fail(failed)
            return
        if job is None:
            continue
        run.begin()
        error: BaseException | None = None
        try:
            run.worker.function(job)
        except BaseException as raised:  # also SystemExit: it must not end this thread without a verdict
            error = raised
        run.settle(job, error)


@contextlib.contextmanager
def _stop_on_signals(stopping: threading.Event) -> Iterator[None]:
    """Set the event on the first signal; the second one has its usual effect. Only the main thread gets signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {number: signal.getsignal(number) for number in SIGNALS}

    def stop(number: int, _: FrameType | None) -> None:
        signal.signal(number, before[number])
        logger.info("signal %s: finishing the jobs in hand", signal.Signals(number).name)
        stopping.set()

    for each in SIGNALS:
        signal.signal(each, stop)
    try:
        yield
    finally:
        for restored, handler in before.items():
            signal.signal(restored, handler)


# -- tasks


async def run_workers_async(run: WorkerRun) -> Progress:
    """Run coroutines as tasks; a thread per task polls."""
    if not run.worker.is_coroutine:
        raise Failed("run_async needs a worker that is a coroutine function: async def …")
    with _stop_on_signals(run.worker.stopping):
        threads = ThreadPoolExecutor(run.worker.concurrency, thread_name_prefix="moldau-worker")
        tasks = [asyncio.create_task(_work_async(run, receiver, threads)) for receiver in run.receivers]
        try:
            while not run.is_stopping:
                await asyncio.sleep(POLL_S)
                run.tick()
            await asyncio.wait(tasks, timeout=run.grace_s)
        finally:
            run.worker.stopping.set()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            progress = await asyncio.to_thread(run.finish)
            threads.shutdown(wait=False)
    return progress


async def _work_async(run: WorkerRun, receiver: "Receiver", threads: ThreadPoolExecutor) -> None:
    loop = asyncio.get_running_loop()
    while not run.is_stopping:
        try:
            job = await loop.run_in_executor(threads, receiver.take_soon, POLL_S)
        except Failed as failed:
            run.fail(failed)
            return
        if job is None:
            continue
        run.begin()
        error: Exception | None = None
        try:
            await run.worker.function(job)
        except Exception as raised:
            error = raised
        if error is None:
            run.settle(job, None)
        else:  # a retry may publish, which blocks
            await loop.run_in_executor(threads, run.settle, job, error)

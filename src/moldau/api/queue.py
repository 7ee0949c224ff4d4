"""A queue: a topic whose records a share group delivers as jobs, one by one, each with a verdict of its own."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from moldau.api.jobs import DELIVER_AFTER, DELIVER_AT, POLL_S, Delay, Job, headers_of_retry, milliseconds
from moldau.api.queue_configs import GroupConfigs
from moldau.api.types import Failed, Headers, Place, Value, checked_name, encoded_headers
from moldau.api.workers import (
    GRACE_S,
    PROGRESS_S,
    Exceptions,
    Function,
    Progress,
    Worker,
    WorkerRun,
    run_workers,
    run_workers_async,
)

if TYPE_CHECKING:
    from moldau.api.receiver import Receiver

CONCURRENCY_MAX: Final = 256
PUT_S: Final = 30.0


class Publish(Protocol):
    """`Connection.publish`."""

    def __call__(
        self, topic: str, value: Value, *, key: Value, headers: Headers | None, waits: bool, timeout_s: float
    ) -> Place | None: ...


class Queue:
    """Created by `Connection.queue`. Iterate over it, or give it a `worker` and `run` it.

    Any number of threads may iterate: each is a member of the group. An iteration hands out one job at a time; a job
    that has no verdict when the next one is requested, or when the `with` block is left, is delivered again.
    """

    def __init__(
        self,
        config: dict[str, Any],
        publish: Publish,
        configs: GroupConfigs,
        name: str,
        group: str,
        *,
        prefetch: int,
        idle_s: float | None,
    ) -> None:
        if prefetch < 1:
            raise Failed(f"prefetch={prefetch} is invalid: use 1 or more jobs.")
        self.name = checked_name(name, "queue")
        self.group = checked_name(group, "group")
        self._config = config
        self._publish = publish
        self._configs = configs
        self._prefetch = prefetch
        self._idle_s = idle_s
        self._of_thread = threading.local()
        self._receivers: list[Receiver] = []
        self._lock = threading.Lock()
        self._worker: Worker | None = None
        self._is_closed = False

    # -- putting

    def put(
        self,
        value: Value,
        *,
        key: Value = None,
        headers: Headers | None = None,
        delay: Delay | None = None,
        at: datetime | None = None,
        waits: bool = False,
        timeout_s: float = PUT_S,
    ) -> Place | None:
        """Publish a job: bytes and text unchanged, anything else as JSON.

        It is delivered `delay` seconds later, or `at` a time; the group must have delays. With `waits`, return its
        place once it is durable.
        """
        all_headers = [*encoded_headers(headers), *self._delay_headers(delay, at)]
        return self._publish(self.name, value, key=key, headers=all_headers, waits=waits, timeout_s=timeout_s)

    def _delay_headers(self, delay: Delay | None, at: datetime | None) -> list[tuple[str, str]]:
        if delay is None and at is None:
            return []
        if delay is not None and at is not None:
            raise Failed("Give delay or at, not both.")
        self._configs.require_delays()
        if delay is not None:
            return [(DELIVER_AFTER, str(milliseconds(delay)))]
        if at is None or at.tzinfo is None:
            raise Failed(f"at={at} has no time zone: use datetime.now(UTC) + timedelta(…).")
        return [(DELIVER_AT, str(round(at.timestamp() * 1000)))]

    def _retry_later(self, job: Job, delay: Delay) -> None:
        """Put a copy with a delay, then acknowledge the job: a crash in between delivers both."""
        self._configs.require_delays()
        if job.attempt >= self._configs.attempts_max():
            job.reject(f"attempt {job.attempt} was the last")
            return
        headers = headers_of_retry(job, delay)
        self._publish(self.name, job.value, key=job.key, headers=headers, waits=True, timeout_s=PUT_S)
        job.ack()

    # -- taking

    def take(self, wait_s: float | None = None) -> Job | None:
        """Return the next job, or None after `wait_s` seconds without one; without `wait_s`, wait until the queue is
        closed."""
        return self._own_receiver().take(threading.TIMEOUT_MAX if wait_s is None else wait_s)

    def __iter__(self) -> Iterator[Job]:
        return self

    def __next__(self) -> Job:
        job = None if self._is_closed else self.take(self._idle_s)
        if job is None:
            raise StopIteration
        return job

    def __aiter__(self) -> AsyncIterator[Job]:
        """Each `async for` is a member of the group, with a thread that polls."""
        return AsyncJobs(self._new_receiver(), self._idle_s)

    def _own_receiver(self) -> "Receiver":
        receiver: Receiver | None = getattr(self._of_thread, "receiver", None)
        if receiver is None or receiver.is_closed:
            receiver = self._of_thread.receiver = self._new_receiver()
        return receiver

    def _new_receiver(self) -> "Receiver":
        try:
            from moldau.api.receiver import Receiver
        except ImportError as error:
            raise Failed("Queues need confluent-kafka 2.16 or newer: pip install -U confluent-kafka") from error
        with self._lock:
            if self._is_closed:
                raise Failed(f"The queue {self.name} is closed.")
            receiver = Receiver(self._config, self.name, self.group, self._prefetch, self._retry_later)
            self._receivers.append(receiver)
            return receiver

    # -- workers

    def worker(
        self,
        *,
        concurrency: int = 1,
        reject_on: Exceptions = (),
        retry_in: Delay | None = None,
    ) -> Callable[[Function], Function]:
        """Decorate the function, or coroutine function, that `run` calls with each job.

        When it returns, the job is acknowledged; when it raises, the job is retried, after `retry_in` seconds if
        given, or rejected for an exception of `reject_on`. A verdict that the function gave has precedence.
        `concurrency` functions run at the same time, each a member of the group.
        """
        if not 1 <= concurrency <= CONCURRENCY_MAX:
            raise Failed(f"concurrency={concurrency} is invalid: use 1 to {CONCURRENCY_MAX}.")
        if retry_in is not None:
            milliseconds(retry_in)

        def decorate(function: Function) -> Function:
            if self._worker is not None:
                raise Failed(f"The queue {self.name} has a worker already.")
            self._worker = Worker(self.name, function, concurrency, reject_on, retry_in)
            return function

        return decorate

    def run(
        self,
        *,
        grace_s: float = GRACE_S,
        idle_s: float | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        progress_s: float = PROGRESS_S,
    ) -> Progress:
        """Run the worker until SIGINT, SIGTERM, `stop`, or `idle_s` seconds without a job; return what it did.

        On a signal, no more jobs are taken. Running ones have `grace_s` seconds to finish; then they are released to
        other members. A second signal ends it at once. `on_progress` is called every `progress_s` seconds.
        """
        return run_workers(
            WorkerRun(self._checked_worker(), self._new_receiver, grace_s, idle_s, on_progress, progress_s)
        )

    async def run_async(
        self,
        *,
        grace_s: float = GRACE_S,
        idle_s: float | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        progress_s: float = PROGRESS_S,
    ) -> Progress:
        """`run` in the current event loop, for a coroutine function."""
        return await run_workers_async(
            WorkerRun(self._checked_worker(), self._new_receiver, grace_s, idle_s, on_progress, progress_s)
        )

    def _checked_worker(self) -> Worker:
        if self._worker is None:
            raise Failed(f"The queue {self.name} has no worker: decorate a function with @queue.worker().")
        if self._worker.retry_in is not None:
            self._configs.require_delays()
        return self._worker

    def stop(self) -> None:
        """End `run` as a signal does; also from other threads and from the worker."""
        if self._worker is not None:
            self._worker.stopping.set()

    # -- closing

    def close(self) -> None:
        """Leave the group; jobs without a verdict are delivered to other members."""
        self.stop()
        with self._lock:
            self._is_closed = True
            receivers, self._receivers = self._receivers, []
        for receiver in receivers:
            receiver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)


class AsyncJobs:
    """The iterator of `async for job in queue`."""

    def __init__(self, receiver: "Receiver", idle_s: float | None) -> None:
        self._receiver = receiver
        self._idle_s = idle_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="moldau-queue")

    def __aiter__(self) -> "AsyncJobs":
        return self

    async def __anext__(self) -> Job:
        job = await take_async(self._receiver, self._thread, self._idle_s)
        if job is None:
            self._thread.shutdown(wait=False)
            raise StopAsyncIteration
        return job


async def take_async(receiver: "Receiver", thread: ThreadPoolExecutor, wait_s: float | None) -> Job | None:
    """`Receiver.take` for coroutines. A cancelled call may have taken a job: the next call, or `close`, releases it."""
    loop = asyncio.get_running_loop()
    end_s = time.monotonic() + (threading.TIMEOUT_MAX if wait_s is None else wait_s)
    while not receiver.is_closed:
        left_s = end_s - time.monotonic()
        job = await loop.run_in_executor(thread, receiver.take_soon, min(POLL_S, max(left_s, 0.0)))
        if job is not None or left_s <= POLL_S:
            return job
    return None

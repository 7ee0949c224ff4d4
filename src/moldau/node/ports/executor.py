"""Threads for calls that release the GIL; worker processes for Python loops over files."""

import asyncio
import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Final

from moldau.model.ports import Disk, Job, Result
from moldau.node.ports.files import SystemDisk

THREADS: Final = 4
QUEUED_MAX: Final = 1024
NICENESS: Final = 10
URGENT_NICENESS: Final = 5  # on a saturated machine it still gets a third of a normal process's share
IDLE_S: Final = 60.0  # an idle worker exits after this
URGENT_IDLE_S: Final = 10.0
PARENT_DEATH_SIGNAL: Final = 1  # PR_SET_PDEATHSIG


class SystemExecutor:
    """Starts threads and worker processes with their first job, so that an idle node has none."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._worker = Worker(NICENESS, IDLE_S)
        self._urgent_worker = Worker(URGENT_NICENESS, URGENT_IDLE_S)
        self._slots = asyncio.Semaphore(QUEUED_MAX)

    async def run(self, work: Callable[..., Result], *arguments: object) -> Result:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="moldau-io")
        async with self._slots:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    async def work_on_files(self, work: Callable[[Disk, Job], Result], job: Job, *, is_urgent: bool = False) -> Result:
        async with self._slots:
            return await (self._urgent_worker if is_urgent else self._worker).run(work, job)

    async def close(self) -> None:
        if self._threads:
            self._threads.shutdown(wait=True, cancel_futures=True)
        self._threads = None
        self._worker.close()
        self._urgent_worker.close()


class Worker:
    """One process that runs one job at a time and may exit when idle."""

    def __init__(self, niceness: int, idle_s: float | None = None) -> None:
        self._niceness = niceness
        self._idle_s = idle_s
        self._pool: ProcessPoolExecutor | None = None
        self._jobs = 0
        self._end: asyncio.TimerHandle | None = None

    async def run(self, work: Callable[[Disk, Job], Result], job: Job) -> Result:
        loop = asyncio.get_running_loop()
        if self._end is not None:
            self._end.cancel()
        pool = self._pool = self._pool or self._start()
        self._jobs += 1
        try:
            return await loop.run_in_executor(pool, _work_on_files, work, job)
        except BrokenProcessPool as error:
            if self._pool is pool:
                self._pool = None  # the next job starts another worker
            # Keep the reference until its thread has ended: since 3.12, a thread that drops its own pool deadlocks.
            pool.shutdown(wait=True)
            raise OSError(f"worker process died: {error}") from None
        finally:
            self._jobs -= 1
            if not self._jobs and self._idle_s is not None:
                self._end = loop.call_later(self._idle_s, self._stop)

    def _start(self) -> ProcessPoolExecutor:
        # Forking a process that has threads is unsafe: spawn.
        context = multiprocessing.get_context("spawn")
        arguments = os.getpid(), self._niceness
        return ProcessPoolExecutor(1, mp_context=context, initializer=_prepare_worker, initargs=arguments)

    def _stop(self, *, wait: bool = False) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=wait, cancel_futures=True)

    def close(self) -> None:
        if self._end is not None:
            self._end.cancel()
        self._stop(wait=True)


def _prepare_worker(node: int, niceness: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the node stops its worker
    _die_with(node)
    os.nice(niceness)  # requests of clients have priority


def _die_with(node: int) -> None:
    """Let the kernel kill the worker with its node, on Linux: a killed node cannot."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != node:  # the node died before the prctl call
            os._exit(1)


def _work_on_files(work: Callable[[Disk, Job], Result], job: Job) -> Result:
    return work(SystemDisk(), job)

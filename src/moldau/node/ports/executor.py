"""Threads for calls that release the GIL, one worker process for Python loops over files."""

import asyncio
import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Final

from moldau.model.ports import Disk, Job, Result
from moldau.node.ports.files import SystemDisk

THREADS: Final = 4
QUEUED_MAX: Final = 1024
WORKER_NICENESS: Final = 10
PARENT_DEATH_SIGNAL: Final = 1  # PR_SET_PDEATHSIG


class SystemExecutor:
    """Both pools start with their first job, so that an idle node has neither."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._workers: ProcessPoolExecutor | None = None
        self._places = asyncio.Semaphore(QUEUED_MAX)

    async def run(self, work: Callable[..., Result], *arguments: object) -> Result:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="moldau-io")
        async with self._places:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    async def work_on_files(self, work: Callable[[Disk, Job], Result], job: Job) -> Result:
        if self._workers is None:
            # Forking a process that has threads is unsafe, so the worker is started afresh.
            context = multiprocessing.get_context("spawn")
            self._workers = ProcessPoolExecutor(
                1, mp_context=context, initializer=_prepare_worker, initargs=(os.getpid(),)
            )
        async with self._places:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._workers, _work_on_files, work, job)

    async def close(self) -> None:
        if self._threads:
            self._threads.shutdown(wait=True, cancel_futures=True)
        if self._workers:
            self._workers.shutdown(wait=True, cancel_futures=True)
        self._threads = self._workers = None


def _prepare_worker(node: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the node decides when its worker ends
    _die_with(node)
    os.nice(WORKER_NICENESS)  # clients come before cleaning


def _die_with(node: int) -> None:
    """A node that is killed cannot end its worker, so the kernel does it, where it is Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != node:  # it was killed before we asked
            os._exit(1)


def _work_on_files(work: Callable[[Disk, Job], Result], job: Job) -> Result:
    return work(SystemDisk(), job)

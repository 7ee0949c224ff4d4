"""A simulated executor: each job runs on the loop after a random delay, so jobs overtake each other."""

import asyncio
import pickle
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final

from moldau.model.ports import Disk, Job, Result

THREAD_MS_MIN, THREAD_MS_MAX = 0.05, 5.0
WORKER_MS_MIN, WORKER_MS_MAX = 1.0, 200.0
WAITING_MAX: Final = 1024
HANG_CHECK_S: Final = 0.05


class SimulatedExecutor:
    """Every job waits for a random time and then runs in one step."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        rng: random.Random,
        disk: Disk,
        slowness: Callable[[], float] = lambda: 1.0,
        is_hanging: Callable[[], bool] = lambda: False,
    ) -> None:
        """`slowness` returns the current factor for all durations; while `is_hanging`, no job ends."""
        self._is_hanging = is_hanging
        self._loop, self._rng, self._disk, self._slowness = loop, rng, disk, slowness
        self._waiting: dict[asyncio.Future[Any], asyncio.TimerHandle] = {}
        self._slots = asyncio.Semaphore(WAITING_MAX)

    def run(self, work: Callable[..., Result], *arguments: object) -> Awaitable[Result]:
        return self._later(THREAD_MS_MIN, THREAD_MS_MAX, lambda: work(*arguments))

    def work_on_files(
        self,
        work: Callable[[Disk, Job], Result],
        job: Job,
        *,
        is_urgent: bool = False,  # noqa: ARG002 - no job waits behind another here
    ) -> Awaitable[Result]:
        # Pickled as for a real worker process, so that an unpicklable job fails here too.
        function, sent = pickle.loads(pickle.dumps((work, job)))

        def in_worker() -> Result:
            result: Result = pickle.loads(pickle.dumps(function(self._disk, sent)))
            return result

        return self._later(WORKER_MS_MIN, WORKER_MS_MAX, in_worker)

    async def close(self) -> None:
        """Cancel jobs that have not started."""
        for future, timer in list(self._waiting.items()):
            timer.cancel()
            future.cancel()
        self._waiting.clear()

    async def _later(self, ms_min: float, ms_max: float, act: Callable[[], Result]) -> Result:
        async with self._slots:
            future: asyncio.Future[Result] = self._loop.create_future()
            delay_s = self._rng.uniform(ms_min, ms_max) * self._slowness() / 1e3
            self._waiting[future] = self._loop.call_later(delay_s, self._finish, future, act)
            return await future

    def _finish(self, future: asyncio.Future[Result], act: Callable[[], Result]) -> None:
        if self._is_hanging():
            self._waiting[future] = self._loop.call_later(HANG_CHECK_S, self._finish, future, act)
            return
        self._waiting.pop(future, None)
        try:
            result = act()  # even if the caller was cancelled: a running thread cannot be stopped
        except BaseException as error:
            if not future.done():
                future.set_exception(error)
        else:
            if not future.done():
                future.set_result(result)

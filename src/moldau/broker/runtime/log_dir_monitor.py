"""Whether the log dir of this broker can be written.

    online --- a write fails, or one hangs ---------------------> offline (failing)
       |                                                             |
       +--- no space, still none after a grace ---> offline (full) --+--- probes succeed ---> online

Everything that writes reports failures here (`failed`) and times its flushes (`began`, `ended`). While the log dir is
offline the broker gives up what other brokers can take over: leaderships and the controller role. It keeps serving
reads, and still tries the writes of partitions that no other broker can lead. A probe writes and syncs a small file
until that works again; a disk that fails repeatedly must work for longer each time.
"""

import asyncio
import errno
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from moldau.model.ports import Clock, Disk, Executor
from moldau.model.units import HOUR_MS, KiB
from moldau.storage.files import SyncFailed, sync, write_all

logger = logging.getLogger(__name__)

NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
# Errors of a broken, disconnected or read-only device. Other errors, such as EMFILE, say nothing about the disk.
DEVICE_ERRORS: Final = frozenset({errno.EIO, errno.EROFS, errno.ENXIO, errno.ENODEV, errno.ESTALE})
PROBE_FILE: Final = ".write-probe"
PROBE_BYTES: Final = 64 * KiB
PROBE_MS: Final = 1000.0
HOLD_MS_FIRST: Final = 5_000.0  # a failed disk must work this long, doubled for each failure
HOLD_MS_MAX: Final = 600_000.0


class LogDirSettings(Protocol):
    """When a log dir counts as offline."""

    @property
    def log_dir_io_timeout_ms(self) -> int: ...

    @property
    def log_dir_full_grace_ms(self) -> int: ...


class WriteObserver(Protocol):
    """Observes writes: when they start and end, and which fail."""

    def failed(self, error: OSError) -> None: ...

    def began(self) -> int:
        """A write or sync starts; `ended` takes the returned number."""
        ...

    def ended(self, number: int) -> None: ...


class NoObserver:
    """Ignores everything."""

    def failed(self, error: OSError) -> None: ...

    def began(self) -> int:
        return 0

    def ended(self, number: int) -> None: ...


class LogDirMonitor:
    """See the module. `failed` may be called at any time on the event loop; `close` ends the probes."""

    def __init__(
        self, folder: str, disk: Disk, executor: Executor, clock: Clock, settings: Callable[[], LogDirSettings]
    ) -> None:
        self.folder = folder
        self.cause = ""  # why the log dir is offline
        self.remedy = ""
        self.listeners: list[Callable[[], None]] = []  # called in a later turn after `is_online` has changed
        self._disk, self._executor, self._clock, self._settings = disk, executor, clock, settings
        self._started_ms: dict[int, float] = {}  # writes in progress, oldest first
        self._last_number = 0
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._hold_ms = HOLD_MS_FIRST
        self._online_since_ms = clock.monotonic_ms()
        self._is_closed = False

    @property
    def is_online(self) -> bool:
        return not self.cause

    # Reports

    def failed(self, error: OSError) -> None:
        """A write failed."""
        if self.cause or self._is_closed:
            return
        if error.errno in NO_SPACE:
            if self._task is None:
                self._start(self._confirm_full())
        elif error.errno in DEVICE_ERRORS:
            self._fail(f"{error.strerror or error}", "replace the disk or remount it writable")

    def fail_until_restart(self, cause: str, remedy: str) -> None:
        """A write failed in a way that no later success makes up for."""
        if not self._is_closed:
            self._is_closed = True
            self._stop_task()
            self._go_offline(cause, remedy)

    def began(self) -> int:
        self._last_number += 1
        self._started_ms[self._last_number] = self._clock.monotonic_ms()
        if self._timer is None and not self._is_closed:
            self._set_timer(self._settings().log_dir_io_timeout_ms)
        return self._last_number

    def ended(self, number: int) -> None:
        self._started_ms.pop(number, None)

    def _set_timer(self, delay_ms: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._check_oldest)

    def _check_oldest(self) -> None:
        self._timer = None
        if not self._started_ms or self._is_closed:
            return
        timeout_ms = self._settings().log_dir_io_timeout_ms
        left_ms = next(iter(self._started_ms.values())) + timeout_ms - self._clock.monotonic_ms()
        if left_ms <= 0:
            if not self.cause:
                self._fail(f"a write takes longer than {timeout_ms / 1000:g} s", "check the device")
            left_ms = timeout_ms
        self._set_timer(left_ms)

    # State

    def _fail(self, cause: str, remedy: str) -> None:
        if self._clock.monotonic_ms() - self._online_since_ms > HOUR_MS:
            self._hold_ms = HOLD_MS_FIRST
        self._go_offline(cause, remedy)
        self._stop_task()
        self._start(self._probe_until_online(self._hold_ms))
        self._hold_ms = min(2 * self._hold_ms, HOLD_MS_MAX)

    def _go_offline(self, cause: str, remedy: str) -> None:
        self.cause, self.remedy = cause, remedy
        logger.error(
            "Log dir %s is offline: %s; %s. Leaderships are given up to other replicas", self.folder, cause, remedy
        )
        self._notify()

    def _go_online(self) -> None:
        logger.warning("Log dir %s is online again: probe writes succeed", self.folder)
        self.cause = self.remedy = ""
        self._online_since_ms = self._clock.monotonic_ms()
        self._notify()

    def _notify(self) -> None:
        loop = asyncio.get_running_loop()
        for each in self.listeners:  # in a later turn: an append that failed may be on the stack
            loop.call_soon(each)

    # Probes

    async def _confirm_full(self) -> None:
        """Retention or an operator may free space within the grace."""
        await asyncio.sleep(self._settings().log_dir_full_grace_ms / 1000)
        if await self._can_write():
            return
        self._go_offline("no space left", "free space, or lower retention.ms or retention.bytes")
        await self._probe_until_online(0.0)

    async def _probe_until_online(self, hold_ms: float) -> None:
        good_since_ms = None
        while True:
            await asyncio.sleep(PROBE_MS / 1000)
            if not await self._can_write() or self._is_hanging:
                good_since_ms = None
                continue
            now_ms = self._clock.monotonic_ms()
            good_since_ms = now_ms if good_since_ms is None else good_since_ms
            if now_ms - good_since_ms >= hold_ms:
                self._go_online()
                return

    @property
    def _is_hanging(self) -> bool:
        oldest_ms = next(iter(self._started_ms.values()), None)
        timeout_ms = self._settings().log_dir_io_timeout_ms
        return oldest_ms is not None and self._clock.monotonic_ms() - oldest_ms >= timeout_ms

    async def _can_write(self) -> bool:
        try:
            await self._executor.run(write_probe, self._disk, f"{self.folder}/{PROBE_FILE}")
        except (OSError, SyncFailed) as error:
            logger.debug("Probe of log dir %s failed: %s", self.folder, error)
            return False
        return True

    # Tasks

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._forget_task)

    def _forget_task(self, task: "asyncio.Task[None]") -> None:
        if self._task is task:
            self._task = None

    def _stop_task(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.wait([task])


def write_probe(disk: Disk, path: str) -> None:
    """Write, sync and remove a small file."""
    file = disk.open(path, create=True)
    try:
        write_all(file, bytes(PROBE_BYTES), 0)
        sync(file)
    finally:
        file.close()
        disk.unlink(path)

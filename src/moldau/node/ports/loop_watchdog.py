"""`LoopWatchdog`: closes the connections of a process whose event loop does not turn.

A write that hangs on a broken device stops the event loop, and with it heartbeats: the controller fences the broker
after its session timeout, and other replicas lead. Its sockets stay open, however, and a client that waits for a
response there notices nothing until its own timeout, a minute in librdkafka. This thread shuts the connections down,
so that clients and followers continue at once with the new leaders.

    event loop   ticks once per interval ---> count
    thread       wakes once per interval, compares the count; after `timeout` without a tick: shut down

A process that was stopped as a whole (SIGSTOP, a suspended laptop) is not affected: only wake-ups of the thread count,
and the loop ticks again at the same time.
"""

import asyncio
import logging
import os
import socket
import stat
import sys
import threading
from collections.abc import Callable
from typing import Final

logger = logging.getLogger(__name__)

CHECKS_PER_TIMEOUT: Final = 10
DESCRIPTORS: Final = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"
INTERNET: Final = (socket.AF_INET, socket.AF_INET6)


class StallDetector:
    """Counts consecutive checks without a tick."""

    def __init__(self, checks: int) -> None:
        self._checks = checks
        self._last = -1
        self._missed = 0

    def observe(self, ticks: int) -> bool:
        """Return True for the check that finds the loop stalled for long enough, once per stall."""
        self._missed = self._missed + 1 if ticks == self._last else 0
        self._last = ticks
        return self._missed == self._checks


class LoopWatchdog:
    """Watches the loop that is running at `start`, until `stop`."""

    def __init__(self, timeout_ms: float, shut_down: Callable[[], int] | None = None) -> None:
        self._timeout_s = timeout_ms / 1000
        self._interval_s = self._timeout_s / CHECKS_PER_TIMEOUT
        self._shut_down = shut_down or shut_down_connections
        self._ticks = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="moldau-watchdog", daemon=True)

    def start(self) -> None:
        self._tick()
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        if self._timer is not None:
            self._timer.cancel()
        self._thread.join()

    def _tick(self) -> None:
        self._ticks += 1
        self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._tick)

    def _watch(self) -> None:
        detector = StallDetector(CHECKS_PER_TIMEOUT)
        while not self._is_over.wait(self._interval_s):
            if detector.observe(self._ticks):
                count = self._shut_down()
                logger.error(
                    "The event loop has been blocked for %g s, probably by a write: %d connections are closed",
                    self._timeout_s,
                    count,
                )


def shut_down_connections() -> int:
    """Shut down all TCP connections of this process, and return their number. Listening sockets stay open."""
    return sum(_shut_down(int(name)) for name in os.listdir(DESCRIPTORS))


def _shut_down(descriptor: int) -> bool:
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return False
        with socket.socket(fileno=os.dup(descriptor)) as same:
            if same.family not in INTERNET:
                return False
            same.getpeername()  # raises for a listening socket
            same.shutdown(socket.SHUT_RDWR)
    except OSError:
        return False  # not connected, or closed meanwhile
    return True

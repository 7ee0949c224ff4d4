"""Restarts a query if one of its Python workers exceeded Spark's start timeout.

Spark's timeout is fixed at ten seconds, however loaded the machine is. The checkpoint keeps the query's identity.
"""

import logging
import time
from collections.abc import Callable
from typing import Any, Final

log = logging.getLogger("moldau.pipelines")

STARTS_MAX: Final = 5
_WORKER_TIMEOUTS: Final = ("Python worker failed to connect back", "Timed out while waiting for the Python worker")
_BEGUN_S_MAX: Final = 60.0
_LOOK_S: Final = 0.05


def is_worker_timeout(error: Exception) -> bool:
    return any(each in str(error) for each in _WORKER_TIMEOUTS)


class RestartingQuery:
    """As much of a StreamingQuery as is used here."""

    def __init__(self, start: Callable[[], Any]) -> None:
        self._start = start
        self._query = start()
        self._starts_left = STARTS_MAX - 1

    def awaitTermination(self, seconds: float) -> bool:  # noqa: N802
        try:
            return bool(self._query.awaitTermination(seconds))
        except Exception as error:
            if not self._starts_left or not is_worker_timeout(error):
                raise
            self._starts_left -= 1
            log.warning("Python worker did not start within Spark's timeout, restarting the query")
            self._query = self._start()
            return False

    def wait_until_started(self) -> None:
        """Wait until the sources are running or the query has failed; starting queries one by one limits the load."""
        deadline_s = time.monotonic() + _BEGUN_S_MAX
        while self._query.isActive and self._query.status["message"].startswith("Initializing"):
            if time.monotonic() > deadline_s:
                return  # awaitTermination raises the error
            time.sleep(_LOOK_S)

    def stop(self) -> None:
        self._query.stop()

    @property
    def recentProgress(self) -> Any:  # noqa: N802
        return self._query.recentProgress

"""A query that is started again when Spark did not wait long enough for one of its Python processes.

Spark gives each of them ten seconds to start, whatever the machine is doing. The checkpoint makes it the same query.
"""

import logging
import time
from collections.abc import Callable
from typing import Any, Final

log = logging.getLogger("moldau.pipelines")

STARTS_MAX: Final = 5
_IMPATIENCE: Final = ("Python worker failed to connect back", "Timed out while waiting for the Python worker")
_BEGUN_S_MAX: Final = 60.0
_LOOK_S: Final = 0.05


def is_impatience(error: Exception) -> bool:
    return any(each in str(error) for each in _IMPATIENCE)


class PersistentQuery:
    """As much of a StreamingQuery as is used here."""

    def __init__(self, start: Callable[[], Any]) -> None:
        self._start = start
        self._query = start()
        self._starts_left = STARTS_MAX - 1

    def awaitTermination(self, seconds: float) -> bool:  # noqa: N802
        try:
            return bool(self._query.awaitTermination(seconds))
        except Exception as error:
            if not self._starts_left or not is_impatience(error):
                raise
            self._starts_left -= 1
            log.warning("A Python process of Spark's did not start in time; the query is started again.")
            self._query = self._start()
            return False

    def until_begun(self) -> None:
        """Until its sources are there, or it has failed: one after the other, queries have more of the machine."""
        deadline_s = time.monotonic() + _BEGUN_S_MAX
        while self._query.isActive and self._query.status["message"].startswith("Initializing"):
            if time.monotonic() > deadline_s:
                return  # whoever awaits it will hear why
            time.sleep(_LOOK_S)

    def stop(self) -> None:
        self._query.stop()

    @property
    def recentProgress(self) -> Any:  # noqa: N802
        return self._query.recentProgress

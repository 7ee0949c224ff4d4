"""Writes the report file atomically, and refreshes it while a pipeline runs."""

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from moldau.pipelines.error_summary import short_reason
from moldau.pipelines.report import Report, report_html

log = logging.getLogger("moldau.pipelines")

REPORT_EVERY_S: Final = 60.0
_REST: Final = 9  # pause after a report, in multiples of its duration: reports take at most a tenth of the time


def write_report(place: Path, report: Report) -> None:
    """Replace the report file atomically."""
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = place.with_name(f"{place.name}.{os.getpid()}.new")
    draft.write_text(report_html(report))
    os.replace(draft, place)


class Refresh:
    """Calls a function periodically. Failures are logged and do not stop the pipeline."""

    def __init__(
        self, write: Callable[[Any], None], every_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._write, self._every_s, self._clock = write, every_s, clock
        self._next_s = clock() + every_s

    def __call__(self, spark: Any) -> None:
        begun_s = self._clock()
        if begun_s < self._next_s:
            return
        try:
            self._write(spark)
        except Exception as error:
            log.warning("report not refreshed, retrying later: %s", short_reason(str(error)))
        ended_s = self._clock()
        self._next_s = ended_s + max(self._every_s, _REST * (ended_s - begun_s))

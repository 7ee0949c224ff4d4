"""The report's file: written in one step, and again while a pipeline runs, seldom enough not to slow it down."""

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
_REST: Final = 9  # so many times as long as it took: at most a tenth of the time goes into reports


def write_report(place: Path, report: Report) -> None:
    """Whoever reads it meanwhile finds the old one."""
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = place.with_name(f"{place.name}.{os.getpid()}.new")
    draft.write_text(report_html(report))
    os.replace(draft, place)


class Refresh:
    """Calls from time to time. A failure is not the pipeline's: it is logged, and the next may go better."""

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
            log.warning("the report could not be refreshed: %s", short_reason(str(error)))
        ended_s = self._clock()
        self._next_s = ended_s + max(self._every_s, _REST * (ended_s - begun_s))

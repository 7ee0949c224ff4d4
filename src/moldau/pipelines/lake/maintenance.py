"""Maintenance of lake tables: compaction, expiry of versions, removal of orphan files."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from moldau.pipelines.lake.lake_table import COMMITS_MAX, CommitConflict, Compaction, LakeTable
from moldau.pipelines.requirements import PipelineError

log = logging.getLogger("moldau.pipelines")

_RETRY_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Maintained:
    """The results of a maintenance."""

    compaction: Compaction
    expired: int
    orphans: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintenance:
    """The settings: the size of files, how long versions are kept, and the age at which unknown files are deleted."""

    file_bytes: int
    keep_s: float
    orphan_s: float

    def run(self, table: LakeTable) -> Maintained:
        now_s = time.time()
        compaction = self._retried(lambda: table.compact(self.file_bytes))
        expired = self._retried(lambda: table.expire(now_s - self.keep_s))
        return Maintained(compaction, expired, table.remove_orphans(now_s - self.orphan_s))

    def _retried(self, work: Callable[[], Any]) -> Any:
        for _ in range(COMMITS_MAX):
            try:
                return work()
            except CommitConflict:
                time.sleep(_RETRY_S)
        raise PipelineError("the table was not maintained: other writers commit all the time")


class ScheduledMaintenance:
    """Maintains a table between batches, at an interval. A failure is logged; the next interval repeats it."""

    def __init__(
        self, table: LakeTable, settings: Maintenance, every_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._table, self._settings, self._every_s, self._clock = table, settings, every_s, clock
        self._next_s = clock() + every_s

    def __call__(self, spark: Any) -> None:  # noqa: ARG002
        if self._clock() < self._next_s:
            return
        self._next_s = self._clock() + self._every_s
        try:
            done = self._settings.run(self._table)
        except (PipelineError, OSError) as error:
            log.warning("table not maintained, retrying in %g s: %s", self._every_s, error)
            return
        log.info(
            "table maintained: %d files combined into %d, %d versions expired, %d orphans deleted",
            done.compaction.removed,
            done.compaction.added,
            done.expired,
            done.orphans,
        )

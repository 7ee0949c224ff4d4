"""A query over topics that goes on: what comes of each batch is shown, until somebody says stop."""

import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from moldau.pipelines.error_summary import short_reason
from moldau.pipelines.job_runner import Signals
from moldau.pipelines.requirements import PipelineError
from moldau.pipelines.timestamps import portable, with_zones

QUERY_NAME: Final = "moldau-sql"
ROWS_PER_BATCH: Final = 10_000  # of each topic
ROWS_AT_ONCE: Final = 10_000  # in memory; a batch may have many more than it has read
TABLE_ROWS_MAX: Final = 10_000  # of a whole answer that is shown again and again
_LOOK_S: Final = 0.2
# Spark's own words, and ours for those that a query is most likely to meet.
_HINTS: Final = {
    re.compile("(?i)sorting is not supported|sort.*not supported"): (
        "a stream has no end, so that its rows cannot be sorted; leave out the order, or aggregate"
    ),
    re.compile("(?i)NON_TIME_WINDOW|window function is not supported"): (
        "functions over (…) need rows that are still to come; group by window(_timestamp, '1 minute') does not"
    ),
    re.compile("(?i)multiple streaming aggregations|multiple stateful operator|possible 'correctness' issue"): (
        "only one aggregation can be streamed where nothing says how late a record may come"
    ),
}
# That one mode will not do says nothing of the query.
_OF_MODES: Final = re.compile("(?i)output.mode")


@dataclass(frozen=True, slots=True)
class Rows:
    """What a batch has brought: further rows, rows that have changed, or the whole answer again."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    mode: str
    is_cut: bool = False  # the whole answer has more rows than these

    @property
    def is_whole(self) -> bool:
        return self.mode == "complete"


@dataclass(slots=True)
class Streamed:
    """The answer of a query that goes on. `modes` are tried in turn: not every query can be asked in each of them."""

    show: Callable[[Rows], None]
    modes: Sequence[str]
    rows_max: int | None = None
    _shown: int = 0
    _mode: str = ""
    _failure: Exception | None = field(default=None)
    is_done: bool = False

    def run(self, frame: Any, signals: Signals) -> None:
        """Until it is stopped, fails, or has shown as many rows as were wanted."""
        if not frame.isStreaming:
            raise PipelineError("the query reads no topic that could be streamed")
        with tempfile.TemporaryDirectory(prefix="moldau-sql-", ignore_cleanup_errors=True) as folder:
            query = self._start(frame, folder)
            try:
                while signals.number is None and not self.is_done and not query.awaitTermination(_LOOK_S):
                    pass
            except Exception:
                if self._failure is None:
                    raise
            finally:
                query.stop()
        if self._failure is not None:
            raise self._failure

    def _start(self, frame: Any, folder: str) -> Any:
        from pyspark.errors import AnalysisException

        refusals = []
        for mode in self.modes:
            self._mode = mode
            writer = frame.writeStream.outputMode(mode).foreachBatch(self._take).queryName(QUERY_NAME)
            try:
                return writer.option("checkpointLocation", f"{folder}/{mode}").start()
            except AnalysisException as error:
                refusals.append(str(error))
        raise PipelineError(why_not(refusals))

    def _take(self, frame: Any, batch: int) -> None:  # noqa: ARG002
        """In a thread of Spark's. What goes wrong in showing rows is ours: Spark would tell of it in its own way."""
        if self.is_done:
            return
        for rows in self._whole(frame) if self._is_whole else self._further(frame):
            try:
                self.show(rows)
            except Exception as error:
                self._failure, self.is_done = error, True
                return
            self._shown += len(rows.rows)
        if self.rows_max is not None and not self._is_whole and self._shown >= self.rows_max:
            self.is_done = True

    def _further(self, frame: Any) -> Iterator[Rows]:
        """All rows of a batch, a piece at a time, as far as they are wanted."""
        left = None if self.rows_max is None else self.rows_max - self._shown
        rows = islice(with_zones(portable(frame).toLocalIterator(), frame.schema), left)
        while piece := list(islice(rows, ROWS_AT_ONCE)):
            yield Rows(frame.columns, piece, self._mode)

    def _whole(self, frame: Any) -> Iterator[Rows]:
        """The table, or as much of it as is wanted.

        Not with `collect`, which does not look at all parts of a table that is cut: what has changed in the others
        would be lost to the next batch.
        """
        most = TABLE_ROWS_MAX if self.rows_max is None else self.rows_max
        rows = list(with_zones(portable(frame.limit(most + 1)).toLocalIterator(), frame.schema))
        if rows:
            yield Rows(frame.columns, rows[:most], self._mode, is_cut=len(rows) > most)

    @property
    def _is_whole(self) -> bool:
        return self._mode == "complete"


def why_not(refusals: Sequence[str]) -> str:
    """Why a query cannot be streamed, and what could be done about it, from why each mode was refused."""
    said = next((hint for words, hint in _HINTS.items() if any(map(words.search, refusals))), None)
    telling = [each for each in refusals if not _OF_MODES.search(each)] or refusals
    return f"this query cannot be streamed: {said or short_reason(telling[-1])}"


@contextmanager
def asked() -> Iterator[None]:
    """What is wrong with a query is one line."""
    try:
        yield
    except (PipelineError, OSError):
        raise
    except Exception as error:
        raise PipelineError(short_reason(str(error))) from error

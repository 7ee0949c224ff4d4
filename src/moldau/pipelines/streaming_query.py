"""A continuous SQL query over topics that displays the rows of each batch until it is stopped."""

import re
import tempfile
from collections import deque
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
ROWS_AT_ONCE: Final = 10_000  # in memory; a join may produce more rows than it reads
TABLE_ROWS_MAX: Final = 10_000  # of a complete result, displayed after each batch
_LOOK_S: Final = 0.2
# Spark's error messages and hints for the most frequent ones.
_HINTS: Final = {
    re.compile("(?i)sorting is not supported|sort.*not supported"): (
        "a stream cannot be sorted because it has no end; remove ORDER BY, or aggregate"
    ),
    re.compile("(?i)NON_TIME_WINDOW|window function is not supported"): (
        "functions over (…) are not supported on a stream; group by window(_timestamp, '1 minute') instead"
    ),
    re.compile("(?i)multiple streaming aggregations|multiple stateful operator|possible 'correctness' issue"): (
        "a stream without a watermark supports only one aggregation"
    ),
}
# An error about one output mode says nothing about the query.
_OF_MODES: Final = re.compile("(?i)output.mode")


@dataclass(frozen=True, slots=True)
class Rows:
    """The result of a batch: new rows, changed rows, or the complete result, by output mode."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    mode: str
    is_cut: bool = False  # the complete result has more rows

    @property
    def is_whole(self) -> bool:
        return self.mode == "complete"


@dataclass(slots=True)
class StreamedQuery:
    """A running query. Output `modes` are tried in turn, because a query need not support each."""

    show: Callable[[Rows], None]
    modes: Sequence[str]
    rows_max: int | None = None
    _shown: int = 0
    _mode: str = ""
    _failure: Exception | None = field(default=None)
    is_done: bool = False

    def run(self, frame: Any, signals: Signals) -> None:
        """Run the query until it is stopped, fails, or reaches its row limit."""
        if not frame.isStreaming:
            raise PipelineError("the query reads no topic, so there is nothing to stream")
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

        errors = []
        for mode in self.modes:
            self._mode = mode
            writer = frame.writeStream.outputMode(mode).foreachBatch(self._take).queryName(QUERY_NAME)
            try:
                return writer.option("checkpointLocation", f"{folder}/{mode}").start()
            except AnalysisException as error:
                errors.append(str(error))
        raise PipelineError(explain_rejection(errors))

    def _take(self, frame: Any, batch: int) -> None:  # noqa: ARG002
        """Display a batch, in a thread of Spark. Keep display errors here: Spark would wrap them."""
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
        """Yield the rows of a batch in pieces, up to the row limit.

        The rows after the limit are read as well: Spark fails a batch in which a partition of a join's or an
        aggregation's state was not committed.
        """
        left = None if self.rows_max is None else self.rows_max - self._shown
        every_row = with_zones(portable(frame).toLocalIterator(), frame.schema)
        rows = islice(every_row, left)
        while piece := list(islice(rows, ROWS_AT_ONCE)):
            yield Rows(frame.columns, piece, self._mode)
        deque(every_row, maxlen=0)

    def _whole(self, frame: Any) -> Iterator[Rows]:
        """Yield the complete result, up to the row limit.

        `limit(…).collect()` would skip some partitions of the result, and lose their state changes
        for the next batch.
        """
        most = TABLE_ROWS_MAX if self.rows_max is None else self.rows_max
        rows = list(with_zones(portable(frame.limit(most + 1)).toLocalIterator(), frame.schema))
        if rows:
            yield Rows(frame.columns, rows[:most], self._mode, is_cut=len(rows) > most)

    @property
    def _is_whole(self) -> bool:
        return self._mode == "complete"


def explain_rejection(errors: Sequence[str]) -> str:
    """Explain why a query cannot be streamed, from the error of each output mode."""
    said = next((hint for words, hint in _HINTS.items() if any(map(words.search, errors))), None)
    relevant = [each for each in errors if not _OF_MODES.search(each)] or errors
    return f"this query cannot be streamed: {said or short_reason(relevant[-1])}"


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Raise Spark's errors as one-line pipeline errors."""
    try:
        yield
    except (PipelineError, OSError):
        raise
    except Exception as error:
        raise PipelineError(short_reason(str(error))) from error

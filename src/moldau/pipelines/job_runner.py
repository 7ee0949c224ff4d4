"""A job from its start to its end: session, signals, progress, and how it ended noted in its folder."""

import logging
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any, Final, TypeAlias, TypeVar

from moldau.pipelines.error_summary import short_reason
from moldau.pipelines.flow import Flow
from moldau.pipelines.progress import Progress
from moldau.pipelines.requirements import PipelineError, require_spark
from moldau.pipelines.restarted_query import PersistentQuery
from moldau.pipelines.run_folder import Run, RunFolder

_LOOK_S: Final = 0.2

Result = TypeVar("Result")
Start: TypeAlias = Callable[[Any], Iterable[Any]]


class Stopped(KeyboardInterrupt):
    """Somebody wanted the job to end: Ctrl-C, or `moldau pipeline stop`. It has."""


class JobFailed(PipelineError):
    """A job ended with an error; its folder has the whole of it."""


def unheard(progress: Progress) -> None:
    """Nobody looks at the progress."""


def nothing(spark: Any) -> None:
    """There is nothing to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """How a job is run, whatever it does."""

    folder: RunFolder
    master: str | None = None
    checkpoint: str | None = None  # where a cluster can reach it; else in the folder
    once: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    tell: Callable[[Progress], None] = unheard

    @property
    def checkpoint_place(self) -> str:
        return self.checkpoint or str(self.folder.checkpoint)


class Signals:
    """SIGINT and SIGTERM are remembered: a call to the JVM that is torn in the middle spoils those that follow."""

    def __init__(self) -> None:
        self.number: int | None = None

    def check(self) -> None:
        if self.number is not None:
            raise Stopped(self.number)

    @contextmanager
    def heard(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {each: signal.signal(each, self._hear) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def _hear(self, number: int, _: FrameType | None) -> None:
        self.number = number


def run_flow(flow: Flow, conditions: Conditions, run: Run) -> None:
    """Run it until it is done, stopped or failed."""
    if flow.is_bounded:
        run_work(flow.write, conditions, run)
    else:
        run_queries([partial(_started, flow, conditions)], conditions, run)


def _started(flow: Flow, conditions: Conditions, spark: Any) -> list[Any]:
    return [PersistentQuery(partial(flow.start, spark, conditions.checkpoint_place, once=conditions.once))]


def run_work(work: Callable[[Any], None], conditions: Conditions, run: Run) -> None:
    """A job that has an end."""
    with _spark_for(conditions, run) as (spark, signals):

        def begin() -> None:
            make_active(spark)
            work(spark)

        _aside(begin, signals, spark.sparkContext.cancelAllJobs)
        signals.check()


def _aside(work: Callable[[], Result], signals: Signals, cancel: Callable[[], None] | None = None) -> Result:
    """Done by another thread: the main one, which hears signals, only waits. After a signal, it is cancelled."""
    with ThreadPoolExecutor(1, thread_name_prefix="pipeline") as threads:
        future = threads.submit(work)
        while not wait([future], _LOOK_S).done:
            if signals.number is not None and cancel is not None:
                cancel()  # again and again: between two jobs there is nothing to cancel
        if future.exception() is not None:
            signals.check()  # what was cancelled fails, and that is not why it ends
        return future.result()


def run_queries(
    stages: Sequence[Start],
    conditions: Conditions,
    run: Run,
    finish: Callable[[Any], None] = nothing,
    meanwhile: Callable[[Any], None] = nothing,
) -> None:
    """Streaming queries, those of a stage side by side, until all are done, one fails, or somebody says stop.

    `meanwhile` is called again and again while they run, and `finish` at the end, unless one has failed.
    """
    with _spark_for(conditions, run) as (spark, signals):
        from moldau.pipelines.query_listener import FolderListener

        listener = FolderListener(conditions.folder, conditions.tell)
        spark.streams.addListener(listener)
        queries: list[Any] = []
        try:
            for start in stages:
                if signals.number is None:
                    for query in start(spark):
                        queries.append(query)  # one by one: those that run are stopped if the next does not start
                    _await(queries, signals, partial(meanwhile, spark))
        finally:
            for query in queries:
                query.stop()
                listener.note_last(query)
            listener.end()
            spark.streams.removeListener(listener)
        finish(spark)
        signals.check()


def _await(queries: Sequence[Any], signals: Signals, meanwhile: Callable[[], None]) -> None:
    left = list(queries)
    while left and signals.number is None:
        left = [query for query in left if not query.awaitTermination(_LOOK_S)]
        if left and signals.number is None:
            meanwhile()


@contextmanager
def _spark_for(conditions: Conditions, run: Run) -> Iterator[tuple[Any, Signals]]:
    require_spark()
    folder, signals = conditions.folder, Signals()
    with signals.heard(), folder.held(run):
        try:
            # In the main thread, Spark would put its own idea of Ctrl-C in place.
            spark = _aside(lambda: _session(folder.name, conditions.master, conditions.settings), signals)
            signals.check()
            make_active(spark)
            yield spark, signals
        except PipelineError as error:
            folder.note_error(str(error))
            raise
        except Exception as error:
            whole = str(error) or type(error).__name__
            folder.note_error(whole)
            raise JobFailed(f"{folder.name} failed: {short_reason(whole)}; all of it is in {folder.path}") from error


def with_session(
    name: str, master: str | None, settings: Mapping[str, str], work: Callable[[Any, Signals], Result]
) -> Result:
    """Work that has no folder, such as a question. Stopped, if a signal has ended it."""
    require_spark()
    signals = Signals()
    with signals.heard():
        spark = _aside(lambda: _session(name, master, settings), signals)
        signals.check()

        def begin() -> Result:
            make_active(spark)
            return work(spark, signals)

        result = _aside(begin, signals, spark.sparkContext.cancelAllJobs)
        signals.check()
        return result


def make_active(spark: Any) -> None:
    """For this thread: Spark finds data sources in Python only through a session that is active where it looks."""
    from pyspark.sql import SparkSession

    SparkSession._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)


def hush() -> None:
    """PySpark prints the errors of queries as well as raising them; once is enough."""
    from pyspark.logger import PySparkLogger

    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)


def _session(name: str, master: str | None, settings: Mapping[str, str]) -> Any:
    from pyspark_moldau import session
    from pyspark_moldau.java import JavaMissing

    hush()
    try:
        return session(name, master=master, settings={"spark.log.level": "ERROR", **settings})
    except JavaMissing as error:
        raise PipelineError(str(error)) from error

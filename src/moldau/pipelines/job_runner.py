"""Runs a job: session, signals, progress, and the final state in the job's folder."""

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
from moldau.pipelines.restarted_query import RestartingQuery
from moldau.pipelines.run_folder import Run, RunFolder

_LOOK_S: Final = 0.2

Result = TypeVar("Result")
Start: TypeAlias = Callable[[Any], Iterable[Any]]


class Stopped(KeyboardInterrupt):
    """The job was stopped by Ctrl-C or `moldau pipeline stop`."""


class JobFailed(PipelineError):
    """A job failed; its folder has the full error."""


def ignore_progress(progress: Progress) -> None:
    """Discard the progress."""


def do_nothing(spark: Any) -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Settings of a run that do not depend on the job."""

    folder: RunFolder
    master: str | None = None
    checkpoint: str | None = None  # on shared storage; None: in the folder
    once: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    on_progress: Callable[[Progress], None] = ignore_progress

    @property
    def checkpoint_place(self) -> str:
        return self.checkpoint or str(self.folder.checkpoint)


class Signals:
    """Records SIGINT and SIGTERM: an exception inside a call to the JVM would break the calls that follow."""

    def __init__(self) -> None:
        self.number: int | None = None

    def check(self) -> None:
        if self.number is not None:
            raise Stopped(self.number)

    @contextmanager
    def installed(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {each: signal.signal(each, self._on_signal) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self.number = number


def run_flow(flow: Flow, config: RunConfig, run: Run) -> None:
    """Run a flow until it finishes, is stopped, or fails."""
    if flow.is_bounded:
        run_work(flow.write, config, run)
    else:
        run_queries([partial(_started, flow, config)], config, run)


def _started(flow: Flow, config: RunConfig, spark: Any) -> list[Any]:
    return [RestartingQuery(partial(flow.start, spark, config.checkpoint_place, once=config.once))]


def run_work(work: Callable[[Any], None], config: RunConfig, run: Run) -> None:
    """Run a job that ends by itself."""
    with _spark_for(config, run) as (spark, signals):

        def begin() -> None:
            make_active(spark)
            work(spark)

        _run_in_thread(begin, signals, spark.sparkContext.cancelAllJobs)
        signals.check()


def _run_in_thread(work: Callable[[], Result], signals: Signals, cancel: Callable[[], None] | None = None) -> Result:
    """Run work in another thread while the main thread handles signals; cancel it after a signal."""
    with ThreadPoolExecutor(1, thread_name_prefix="pipeline") as threads:
        future = threads.submit(work)
        while not wait([future], _LOOK_S).done:
            if signals.number is not None and cancel is not None:
                cancel()  # repeatedly: between two Spark jobs there is nothing to cancel
        if future.exception() is not None:
            signals.check()  # cancelled work raises; the signal is the reason to report
        return future.result()


def run_queries(
    stages: Sequence[Start],
    config: RunConfig,
    run: Run,
    finish: Callable[[Any], None] = do_nothing,
    meanwhile: Callable[[Any], None] = do_nothing,
) -> None:
    """Run streaming queries, in parallel within a stage, until all end, one fails, or a signal arrives.

    `meanwhile` is called repeatedly while they run; `finish` at the end unless a query failed.
    """
    with _spark_for(config, run) as (spark, signals):
        from moldau.pipelines.query_listener import FolderListener

        listener = FolderListener(config.folder, config.on_progress)
        spark.streams.addListener(listener)
        queries: list[Any] = []
        try:
            for start in stages:
                if signals.number is None:
                    for query in start(spark):
                        queries.append(query)  # one by one: if one fails to start, those before it are stopped
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
def _spark_for(config: RunConfig, run: Run) -> Iterator[tuple[Any, Signals]]:
    require_spark()
    folder, signals = config.folder, Signals()
    with signals.installed(), folder.locked(run):
        try:
            # In the main thread, Spark would install its own SIGINT handler.
            spark = _run_in_thread(lambda: _session(folder.name, config.master, config.settings), signals)
            signals.check()
            make_active(spark)
            yield spark, signals
        except PipelineError as error:
            folder.note_error(str(error))
            raise
        except Exception as error:
            whole = str(error) or type(error).__name__
            folder.note_error(whole)
            raise JobFailed(
                f"{folder.name} failed: {short_reason(whole)}; see the full error in {folder.path}"
            ) from error


def with_session(
    name: str, master: str | None, settings: Mapping[str, str], work: Callable[[Any, Signals], Result]
) -> Result:
    """Run work without a job folder, such as an SQL query. Raises Stopped after a signal."""
    require_spark()
    signals = Signals()
    with signals.installed():
        spark = _run_in_thread(lambda: _session(name, master, settings), signals)
        signals.check()

        def begin() -> Result:
            make_active(spark)
            return work(spark, signals)

        result = _run_in_thread(begin, signals, spark.sparkContext.cancelAllJobs)
        signals.check()
        return result


def make_active(spark: Any) -> None:
    """Set the active session of this thread, through which Spark finds Python data sources."""
    from pyspark.sql import SparkSession

    SparkSession._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)


def silence_pyspark_errors() -> None:
    """Silence PySpark's logging of errors that it also raises."""
    from pyspark.logger import PySparkLogger

    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)


def _session(name: str, master: str | None, settings: Mapping[str, str]) -> Any:
    from pyspark_moldau import session
    from pyspark_moldau.java import JavaMissing

    silence_pyspark_errors()
    try:
        return session(name, master=master, settings={"spark.log.level": "ERROR", **settings})
    except JavaMissing as error:
        raise PipelineError(str(error)) from error

"""Progress, failure reasons, options and scripts of pipelines, without Spark."""

import ast
import json
import signal
import threading
from dataclasses import replace

import pytest

from moldau.model.ids import TopicPartition
from moldau.pipelines.error_summary import LENGTH_MAX, short_reason
from moldau.pipelines.flow import Flow, SqlStep, TopicSink, TopicSource, offsets_text, text_code
from moldau.pipelines.function_step import FunctionStep
from moldau.pipelines.job_runner import Signals, Stopped, _run_in_thread
from moldau.pipelines.progress import Progress, progress_of, prometheus_text, together

EVENT = {
    "name": "clicks",
    "batchId": 7,
    "timestamp": "2026-01-01T00:00:00.000Z",
    "batchDuration": 1500,
    "numInputRows": 300,
    "processedRowsPerSecond": 200.0,
    "sources": [
        {
            "endOffset": {"clicks": {"0": 90, "1": 100}},
            "latestOffset": json.dumps({"clicks": {"0": 95, "1": 100, "2": 4}}),
        }
    ],
}
SOURCE = TopicSource(bootstrap_servers="here:9092", topics=("a", "b"), group="g")
SINK = TopicSink(bootstrap_servers="here:9092", topic="out")


@pytest.mark.proves("D4")
def test_progress_has_rows_and_lag() -> None:
    progress = progress_of(EVENT, rows_before=1000)
    assert progress.rows_total == 1300
    assert progress.lag == {"clicks-0": 5, "clicks-1": 0, "clicks-2": 4}
    assert progress.line == "batch 7 · 300 rows · 200 rows/s · lag 9 · 1.5 s · 1,300 in all"
    assert Progress.of_shape(json.loads(json.dumps(progress.shape()))) == progress


@pytest.mark.proves("D4", part="lag")
def test_rows_come_from_observed_metrics_if_present() -> None:
    progress = progress_of({**EVENT, "observedMetrics": {"rows": {"rows": 600_000}}}, rows_before=1)
    assert (progress.rows, progress.rows_total, progress.rows_per_s) == (600_000, 600_001, 400_000)
    idle = {**EVENT, "numInputRows": 0, "processedRowsPerSecond": "NaN", "observedMetrics": {"rows": {"rows": None}}}
    assert (progress_of(idle, 7).rows, progress_of(idle, 7).rows_total) == (0, 7)


@pytest.mark.parametrize("rate", [None, "NaN"])
def test_idle_batch_has_no_rate(rate: object) -> None:
    event = {"batchId": 0, "timestamp": EVENT["timestamp"], "processedRowsPerSecond": rate, "sources": [{}]}
    assert progress_of(event, 0).rows_per_s == 0


@pytest.mark.proves("D4", part="metrics")
def test_metrics_have_help_and_escaped_labels() -> None:
    text = prometheus_text('a"b', [progress_of(EVENT, 0)], is_running=True)
    assert 'moldau_pipeline_lag_records{pipeline="a\\"b",topic="clicks",partition="0"} 5\n' in text
    assert 'moldau_pipeline_input_rows_total{pipeline="a\\"b"} 300\n' in text
    assert text.count("# HELP") == text.count("# TYPE") == 9
    parts = [progress_of(EVENT, 0, part=each) for each in ("clean", "lake")]
    text = prometheus_text("a", parts, is_running=True)
    assert 'moldau_pipeline_input_rows_total{pipeline="a",part="lake"} 300\n' in text
    assert 'moldau_pipeline_lag_records{pipeline="a",part="clean",topic="clicks",partition="0"} 5\n' in text
    assert text.count("# HELP") == text.count("# TYPE") == 9


@pytest.mark.proves("D4")
def test_lag_of_several_queries_is_that_of_the_slowest() -> None:
    first = progress_of(EVENT, 1000, part="clean")
    slow = replace(first, part="counts", rows_total=5, lag={"out-0": 7, "out-1": 0}, at_ms=first.at_ms + 1)
    fast = replace(slow, part="lake", lag={"out-0": 2, "out-1": 3})
    whole = together([first, slow, fast])
    assert (whole.part, whole.rows_total, whole.at_ms) == ("", 1300, first.at_ms + 1)
    assert whole.lag == {**first.lag, "out-0": 7, "out-1": 3}


@pytest.mark.proves("D4", part="terminal")
def test_late_rows_are_counted_and_shown() -> None:
    event = {**EVENT, "stateOperators": [{"numRowsDroppedByWatermark": 3}, {"numRowsDroppedByWatermark": 1}, {}]}
    progress = progress_of(event, 0, late_before=10)
    assert (progress.late, progress.late_total) == (4, 14)
    assert progress.line.endswith(" · 14 too late")
    assert "too late" not in progress_of(EVENT, 0).line


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "[STREAM_FAILED] Query failed\nTraceback (most recent call last):\n  File x\nValueError: too late\n\n"
            "\tat org.apache.spark.Foo(Foo.scala:1)",
            "too late",
        ),
        ("Traceback (most recent call last):\n  f()\npkg.OptionError: Where? There.\nmore", "Where? There."),
        ("[TABLE_NOT_FOUND] The table is gone. SQLSTATE: 42\nJVM stacktrace:", "The table is gone. SQLSTATE: 42"),
        (
            "An error occurred while calling o273.save.\n: org.apache.spark.SparkClassNotFoundException: "
            "[DATA_SOURCE_NOT_FOUND] Failed to find it.\n\tat org.apache.spark.A(A.scala:7)",
            "Failed to find it.",
        ),
        (
            "[STREAM_FAILED] Query [id = 5, runId = c7] terminated with exception: The disk is full.",
            "The disk is full.",
        ),
        ("", "it failed without an error message"),
    ],
)
def test_failure_reason_is_one_line(text: str, reason: str) -> None:
    assert short_reason(text) == reason


def test_failure_reason_is_bounded() -> None:
    assert len(short_reason("x" * 5000)) <= LENGTH_MAX + 2


def test_stream_is_rate_limited_and_commits_its_progress() -> None:
    options = SOURCE.read_options()
    assert options["subscribe"] == "a,b"
    assert options["maxOffsetsPerTrigger"] == "500000"
    assert options["commitOffsets"] == "g"
    assert options["kafka.isolation.level"] == "read_committed"
    assert "endingOffsets" not in options


def test_bounded_source_has_an_end_and_no_rates() -> None:
    source = TopicSource(bootstrap_servers="here:9092", topics=("a",), ending='{"a": {"0": 5}}', group="g")
    options = source.read_options()
    assert source.is_bounded
    assert options["endingOffsets"] == '{"a": {"0": 5}}'
    assert not {"maxOffsetsPerTrigger", "commitOffsets"} & set(options)


def test_offsets_are_formatted_like_option_values() -> None:
    offsets = {TopicPartition("b", 1): 7, TopicPartition("a", 10): 2, TopicPartition("a", 2): 1}
    assert offsets_text(offsets) == '{"a": {"2": 1, "10": 2}, "b": {"1": 7}}'


@pytest.mark.parametrize("is_bounded", [False, True])
def test_ejected_job_is_python_with_the_same_options(is_bounded: bool) -> None:
    source = TopicSource(bootstrap_servers="here:9092", topics=("it's",), ending='{"x": {}}' if is_bounded else None)
    steps = (
        SqlStep("select 'é\"' as value\nfrom input"),
        FunctionStep("def f(frame):\n    return frame\n", "f.py", "f"),
    )
    flow = Flow(job="transform", name="my", source=source, steps=steps, sink=SINK)
    script = flow.script(master="local[2]", checkpoint="/tmp/c", once=True)
    compile(script, "script", "exec")
    for name, value in {**source.read_options(), **SINK.write_options()}.items():
        assert f"    .option({name!r}, {value!r})\n" in script
    assert ("trigger(availableNow=True)" in script) is not is_bounded
    assert "moldau.pipelines" not in script


@pytest.mark.parametrize("text", ['a """" b\n"""', "'a'\\\n", 'x\n"""""""', "é\r\n\t\\n"])
def test_multiline_text_is_unchanged_in_a_script(text: str) -> None:
    assert ast.literal_eval(text_code(text)) == f"\n{text}\n".replace("\r\n", "\n")


def test_cancelled_job_ends_as_stopped_and_other_failures_are_raised() -> None:
    signals, cancelled = Signals(), threading.Event()

    def work() -> None:
        signals.number = signal.SIGTERM
        assert cancelled.wait(60)
        raise RuntimeError("cancelled")

    with pytest.raises(Stopped):
        _run_in_thread(work, signals, cancelled.set)
    with pytest.raises(ZeroDivisionError):
        _run_in_thread(lambda: 1 // 0, Signals())
    assert _run_in_thread(lambda: 17, Signals()) == 17


class OneViewSession:
    """A fake session with one view, which starts a concurrent job while a query of the view is analysed."""

    def __init__(self) -> None:
        self.view = ""
        self.concurrent_job: threading.Thread | None = None

    def sql(self, text: str) -> str:
        if self.concurrent_job is not None:
            other, self.concurrent_job = self.concurrent_job, None
            other.start()
            other.join(0.2)  # blocked until this query is done
        return f"{text} of {self.view}"


class OneViewFrame:
    def __init__(self, session: OneViewSession, name: str) -> None:
        self.sparkSession = session
        self.name = name

    def createOrReplaceTempView(self, name: str) -> None:  # noqa: N802
        assert name == "input"
        self.sparkSession.view = self.name


def test_concurrent_jobs_of_a_session_do_not_share_their_input_view() -> None:
    session = OneViewSession()
    other = session.concurrent_job = threading.Thread(target=SqlStep("that").apply, args=(OneViewFrame(session, "b"),))
    assert SqlStep("this").apply(OneViewFrame(session, "a")) == "this of a"
    other.join()
    assert session.view == "b"

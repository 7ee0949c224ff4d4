"""Pipelines on Spark: from topics to topics, resumed, stopped, and their status."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from quick_settings import DRIVER_SETTINGS
from typer.testing import CliRunner, Result

from moldau.cli.main import app
from moldau.pipelines.flow import Flow, SqlStep, TopicSink, TopicSource
from moldau.pipelines.function_step import FunctionStep
from moldau.pipelines.job_runner import JobFailed, RunConfig, run_flow
from moldau.pipelines.run_folder import RunFolder, State, new_run
from moldau.testing.broker import Broker
from moldau_dev.spark import numbers, produce, reading, run_script

DOUBLE = "select key, cast(2 * cast(cast(value as string) as int) as string) as value from input"
MINE = (
    "def transform(frame):\n    return frame.where('cast(cast(value as string) as int) < 3').select('key', 'value')\n"
)
WITH_UDF = """
from beside_mine import COLUMNS
from pyspark.sql.functions import udf


@udf("binary")
def more(value):
    return b"%d" % (int(value) + 100)


def transform(frame):
    return frame.withColumn("value", more("value")).select(*COLUMNS)
"""
STARTED_S_MAX = 300


def flow_of(broker: Broker, topic: str, out: str, **source: Any) -> Flow:
    servers = broker.bootstrap_servers
    return Flow(
        job="transform",
        name=f"p-{topic}",
        source=TopicSource(bootstrap_servers=servers, topics=(topic,), group=f"p-{topic}", **source),
        steps=(SqlStep(DOUBLE),),
        sink=TopicSink(bootstrap_servers=servers, topic=out),
    )


def written(spark: Any, broker: Broker, topic: str) -> list[int]:
    return numbers(reading(spark.read, broker, topic, kafka__isolation__level="read_committed").collect())


@pytest.mark.proves("D3")
def test_transform_resumes_and_saves_its_progress(
    spark: Any, moldau_broker: Broker, topic: str, tmp_path: Path
) -> None:
    out = moldau_broker.create_topic(f"{topic}-out", partitions=2)
    flow = flow_of(moldau_broker, topic, out, rows_per_batch_max=40)
    counts: list[int] = []
    config = RunConfig(
        folder=RunFolder(tmp_path, flow.name),
        master="local[2]",
        once=True,
        on_progress=lambda each: counts.append(each.rows),
    )
    produce(moldau_broker, topic, 100)
    run_flow(flow, config, new_run("transform", {}, "local[2]"))
    assert [rows for rows in counts if rows] == [40, 40, 20]
    produce(moldau_broker, topic, 11, first=100)
    run_flow(flow, config, new_run("transform", {}, "local[2]"))
    assert written(spark, moldau_broker, out) == [2 * each for each in range(111)]
    folder = RunFolder(tmp_path, flow.name)
    assert folder.state is State.DONE
    assert folder.progress is not None
    assert (folder.progress.rows_total, folder.progress.lag_total) == (111, 0)
    assert "input_rows_total" in (folder.path / "metrics.prom").read_text()


def test_bounded_transform_writes_the_given_range(
    spark: Any, moldau_broker: Broker, topic: str, tmp_path: Path
) -> None:
    out = moldau_broker.create_topic(f"{topic}-out", partitions=1)
    produce(moldau_broker, topic, 20)
    begin, end = (json.dumps({topic: {"0": at, "1": at}}) for at in (2, 5))
    flow = flow_of(moldau_broker, topic, out, starting=begin, ending=end)
    config = RunConfig(folder=RunFolder(tmp_path, flow.name), master="local[2]")
    run_flow(flow, config, new_run("transform", {}, "local[2]"))
    assert written(spark, moldau_broker, out) == [2 * each for each in range(4, 10)]


def test_ejected_transform_gives_the_same_results(
    spark: Any, moldau_broker: Broker, topic: str, tmp_path: Path
) -> None:
    out = moldau_broker.create_topic(f"{topic}-out", partitions=1)
    produce(moldau_broker, topic, 10)
    servers = moldau_broker.bootstrap_servers
    flow = Flow(
        job="transform",
        name=f"p-{topic}",
        source=TopicSource(bootstrap_servers=servers, topics=(topic,)),
        steps=(FunctionStep(MINE, "mine.py", "transform"), SqlStep(DOUBLE)),
        sink=TopicSink(bootstrap_servers=servers, topic=out),
    )
    script = flow.script(master="local[2]", checkpoint=str(tmp_path / "checkpoint"), once=True)
    run_script(script)
    assert written(spark, moldau_broker, out) == [0, 2, 4]


def test_failed_job_shows_one_line_and_saves_the_full_error(
    spark: Any, moldau_broker: Broker, topic: str, tmp_path: Path
) -> None:
    del spark
    produce(moldau_broker, topic, 3)
    flow = flow_of(moldau_broker, topic, "no such name!")
    config = RunConfig(folder=RunFolder(tmp_path, flow.name), master="local[2]", once=True)
    with pytest.raises(JobFailed) as failure:
        run_flow(flow, config, new_run("transform", {}, "local[2]"))
    assert "no such name!" in str(failure.value)
    assert len(str(failure.value).splitlines()) == 1
    folder = RunFolder(tmp_path, flow.name)
    assert folder.state is State.FAILED
    assert "no such name!" in (folder.error or "")


@contextmanager
def running(broker: Broker, topic: str, out: str, root: Path, job: str = "transform") -> Iterator[Any]:
    """Run `moldau pipeline run` in its own process; yield after its first batch."""
    words = f"pipeline run {job} --topic {topic} --to {out} --master local[1] --json".split()
    small = [word for name, value in DRIVER_SETTINGS.items() for word in ("--conf", f"{name}={value}")]
    process = subprocess.Popen(
        [sys.executable, "-m", "moldau.cli.main", *words, *small, "-b", broker.bootstrap_servers],
        env={**os.environ, "MOLDAU_PIPELINES": str(root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first, process.communicate()[1]
        assert json.loads(first)["rows"] == 10
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def pipeline(root: Path, *words: str) -> Result:
    return CliRunner().invoke(app, ["pipeline", *words, "--folder", str(root)])


@pytest.mark.proves("D4")
def test_running_pipeline_is_shown_and_stopped_by_another_process(
    spark: Any, moldau_broker: Broker, topic: str, tmp_path: Path
) -> None:
    out, name = moldau_broker.create_topic(f"{topic}-out", partitions=1), f"transform-{topic}"
    produce(moldau_broker, topic, 10)
    (tmp_path / "mine.py").write_text(WITH_UDF)
    (tmp_path / "beside_mine.py").write_text("COLUMNS = ('key', 'value')\n")
    with running(moldau_broker, topic, out, tmp_path, str(tmp_path / "mine.py")) as process:
        status = json.loads(pipeline(tmp_path, "status", name, "--json").stdout)
        assert (status["state"], status["pid"], status["progress"]["rows_total"]) == ("running", process.pid, 10)
        twice = pipeline(tmp_path, "run", "transform", "-t", topic, "--to", out, "-b", moldau_broker.bootstrap_servers)
        assert f"is already running as process {process.pid}" in twice.stderr
        assert pipeline(tmp_path, "stop", name).stderr == f"{name} has stopped\n"
        _, errors = process.communicate(timeout=STARTED_S_MAX)
    assert (process.returncode, "Traceback" in errors) == (0, False)
    status = json.loads(pipeline(tmp_path, "status", name, "--json").stdout)
    assert (status["state"], status["live"], status["progress"]["lag_total"]) == ("stopped", False, 0)
    assert written(spark, moldau_broker, out) == [100 + each for each in range(10)]

"""`moldau pipeline` without Spark: its subcommands, their output and errors."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from moldau.cli.main import app
from moldau.cli.pipelines import JOBS
from moldau.pipelines.progress import Progress
from moldau.pipelines.run_folder import RunFolder, new_run
from moldau.testing.broker import Broker

PROGRESS = Progress(
    batch=3, at_ms=1_700_000_000_000, rows=5, rows_total=50, rows_per_s=2.5, batch_ms=2000, lag={"clicks-0": 4}
)


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MOLDAU_PIPELINES", str(tmp_path / "pipelines"))
    return tmp_path / "pipelines"


def pipeline(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["pipeline", *arguments])


def test_list_shows_every_job_with_help() -> None:
    assert "exactly once" in pipeline("list").stdout
    for job in JOBS:
        if not job.endswith(".py"):
            result = pipeline("run", job, "--help")
            assert result.exit_code == 0, result.output


def test_help_and_status_import_no_heavy_package() -> None:
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom moldau.cli.main import app\n"
        "for words in (['--help'], ['pipeline', '--help'], ['pipeline', 'run', 'transform', '--help'],\n"
        "              ['pipeline', 'list'], ['pipeline', 'status']):\n"
        "    assert CliRunner().invoke(app, words).exit_code == 0, words\n"
        "print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    heavy = ("pyspark", "pyarrow", "pandas", "numpy", "confluent_kafka", "py4j")
    assert not [name for name in loaded if name.split(".")[0] in heavy]


@pytest.mark.proves("D4")
def test_status_shows_the_progress_of_a_pipeline(root: Path) -> None:
    folder = RunFolder(root, "clicks")
    with folder.locked(new_run("transform", {"to": "out"}, "local[*]")):
        folder.note_progress(PROGRESS)
        words = pipeline("status").stdout.splitlines()[1].split()
        assert words[:7] == ["clicks", "transform", "running", "3", "50", "2", "4"]
    (status,) = json.loads(pipeline("status", "--json").stdout)
    assert status["state"] == "done"
    assert status["to"] == "out"
    assert status["progress"]["lag_total"] == 4
    assert "lag 4" in pipeline("status", "clicks").stdout


def test_status_shows_the_error_of_a_failed_pipeline(root: Path) -> None:
    folder = RunFolder(root, "clicks")
    with folder.locked(new_run("transform", {}, "local[*]")):
        folder.note_error("there is no such topic\nand more")
    assert "there is no such topic" in pipeline("status", "clicks").stdout


@pytest.mark.parametrize("command", ["status", "stop"])
def test_missing_pipeline_is_one_line(command: str) -> None:
    result = pipeline(command, "missing")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: there is no pipeline missing in ")


def test_stop_rejects_a_pipeline_that_is_not_running(root: Path) -> None:
    with RunFolder(root, "clicks").locked(new_run("transform", {}, "local[*]")):
        pass
    result = pipeline("stop", "clicks")
    assert result.stderr == "error: pipeline clicks is not running (done)\n"


def test_transform_rejects_its_source_as_target() -> None:
    result = pipeline("run", "transform", "-t", "a", "--to", "a")
    assert result.exit_code == 2
    assert "the job would never end" in result.stderr


def test_dead_letters_to_a_source_topic_are_rejected() -> None:
    """Otherwise each dead letter would be read and rejected again."""
    result = pipeline("run", "transform", "-t", "a", "-t", "b", "--to", "c", "--dead-letters", "b")
    assert result.exit_code == 2
    assert "--dead-letters b is read too: the job would never end" in result.stderr


def ejected(broker: Broker, *arguments: str) -> str:
    result = pipeline("run", *arguments, "--eject", "-", "-b", broker.bootstrap_servers)
    assert result.exit_code == 0, result.output
    compile(result.stdout, "script", "exec")
    return result.stdout


@pytest.mark.proves("C4")
def test_positions_are_parsed_like_those_of_consume(moldau_broker: Broker, tmp_path: Path) -> None:
    topic = moldau_broker.create_topic("pipeline-places", partitions=2)
    with moldau_broker.client() as client:
        for partition, count in ((0, 10), (1, 4)):
            client.produce(topic, partition, [(each * 1000, None, b"v", ()) for each in range(count)])
    job = ("transform", "-t", topic, "--to", "out")
    assert "'earliest'" in ejected(moldau_broker, *job)
    assert f'{{{json.dumps(topic)}: {{"0": 7, "1": 1}}}}' in ejected(moldau_broker, *job, "--from", "-3")
    bounded = ejected(moldau_broker, *job, "--from", "@2000", "--until", "@5000")
    assert f'.option(\'startingOffsets\', \'{{"{topic}": {{"0": 2, "1": 2}}}}\')' in bounded
    assert f'.option(\'endingOffsets\', \'{{"{topic}": {{"0": 5, "1": 4}}}}\')' in bounded
    assert "spark.read.format" in bounded
    mine = tmp_path / "mine.py"
    mine.write_text("def transform(frame):\n    return frame.limit(3)\n")
    assert "return frame.limit(3)" in ejected(moldau_broker, str(mine), "-t", topic, "--to", "out")

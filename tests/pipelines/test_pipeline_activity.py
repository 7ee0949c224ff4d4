"""The activity pipeline without Spark: its parts, script and display, and the clickstream example."""

import ast
import importlib.util
import json
import re
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

from moldau.cli.main import app
from moldau.cli.pipeline_options import Display
from moldau.pipelines.activity import OUTPUTS, Activity
from moldau.pipelines.progress import Progress
from moldau.pipelines.restarted_query import STARTS_MAX, RestartingQuery
from moldau.pipelines.run_folder import RunFolder
from moldau.testing.broker import Broker

ACTIVITY = Activity(name="a", bootstrap_servers="here:9092", topic="clicks", out="clicks.activity", lake="/lake")
PROGRESS = Progress(
    batch=3, at_ms=1_700_000_000_000, rows=5, rows_total=50, rows_per_s=2.5, batch_ms=2000, lag={"clicks-0": 4}
)


@pytest.mark.proves("D3", part="results of the pipeline")
def test_every_part_has_its_own_name_group_and_checkpoint() -> None:
    parts = ACTIVITY.parts()
    assert [each.name for each in parts] == ["a-clean", "a-counts", "a-sessions", "a-load", "a-lake"]
    assert len({ACTIVITY.checkpoint_of(each, "/c") for each in parts}) == len(parts)
    assert len({each.source.group for each in parts}) == len(parts)


@pytest.mark.proves("D3")
@pytest.mark.parametrize("once", [True, False])
def test_ejected_activity_is_plain_pyspark(once: bool) -> None:
    script = ACTIVITY.script(master=None, checkpoint="/c", once=once)
    imported = {
        alias.name if isinstance(node, ast.Import) else str(node.module)
        for node in ast.walk(ast.parse(script))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert imported == {"confluent_kafka", "confluent_kafka.admin", "pyspark.sql", "typing"}
    for part in ACTIVITY.parts():
        assert f"writer.queryName({part.name!r})" in script
        assert f'"checkpointLocation", {ACTIVITY.checkpoint_of(part, "/c")!r}' in script
    for name in OUTPUTS:
        assert f"'clicks.activity.{name}'" in script
    assert script.count(".trigger(availableNow=True)") == (5 if once else 0)
    assert script.count(".trigger(processingTime='1 second')") == (0 if once else 5)


def test_eject_writes_a_file_and_creates_nothing(moldau_broker: Broker, tmp_path: Path) -> None:
    topic = moldau_broker.create_topic("eject-activity")
    words = ["pipeline", "run", "activity", "-t", topic, "-b", moldau_broker.bootstrap_servers]
    place = tmp_path / "my.py"
    result = CliRunner().invoke(app, [*words, "--folder", str(tmp_path), "--eject", str(place)])
    assert result.exit_code == 0, result.output
    compile(place.read_text(), "my.py", "exec")
    with moldau_broker.client() as client:
        assert not [each.name for each in client.describe_topics() if each.name.startswith(f"{topic}.")]
    assert not RunFolder(tmp_path, f"activity-{topic}").path.exists()


@pytest.mark.parametrize("option", ["--lateness", "--window", "--pause", "--every"])
def test_invalid_duration_is_rejected_before_anything_is_created(tmp_path: Path, option: str) -> None:
    """Spark creates no sessions for an invalid gap, without an error."""
    words = ["pipeline", "run", "activity", "-t", "clicks", "-b", "localhost:1", "--folder", str(tmp_path)]
    result = CliRunner().invoke(app, [*words, option, "30 moments"])
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: {option} 30 moments is not a duration")
    assert not list(tmp_path.iterdir())


def test_short_durations_are_expanded_and_every_may_be_zero(moldau_broker: Broker, tmp_path: Path) -> None:
    topic = moldau_broker.create_topic("activity-spans")
    words = ["pipeline", "run", "activity", "-t", topic, "-b", moldau_broker.bootstrap_servers, "--eject", "-"]
    spans = ["--lateness", "5m", "--window", "10s", "--pause", "1h", "--every", "0 seconds"]
    script = CliRunner().invoke(app, [*words, "--folder", str(tmp_path), *spans]).stdout
    assert "withWatermark('event_time', '5 minutes')" in script
    assert "window(at, '10 seconds')" in script
    assert "session_window(at, '1 hours')" in script
    assert ".trigger(processingTime='0 seconds')" in script


@pytest.mark.parametrize("read", ["events", "dead-letters"])
def test_activity_rejects_its_own_output_as_input(moldau_broker: Broker, tmp_path: Path, read: str) -> None:
    """Otherwise the pipeline would read its own dead letters for ever."""
    topic = moldau_broker.create_topic(f"activity-circle-{read}.{read}")
    words = ["pipeline", "run", "activity", "-t", topic, "-b", moldau_broker.bootstrap_servers]
    result = CliRunner().invoke(app, [*words, "--folder", str(tmp_path), "--out", topic.removesuffix(f".{read}")])
    assert result.exit_code == 2
    assert "the job would never end" in result.stderr
    with moldau_broker.client() as client:
        assert f"{topic.removesuffix(read)}counts" not in {each.name for each in client.describe_topics()}


@pytest.mark.proves("D4", part="terminal")
def test_display_updates_one_line_per_part_on_a_terminal() -> None:
    display = Display(is_json=False)
    clean, lake = (_progress(part) for part in ("clean", "lake"))
    assert display.block(clean, 200) == "\r\x1b[2Kclean    " + clean.line + "\n"
    display.block(lake, 200)
    again = display.block(_progress("clean", rows=7), 200)
    assert again.startswith("\x1b[2A\r\x1b[2Kclean    batch 3 · 7 rows")
    assert again.count("\n") == 2
    narrow = display.block(clean, 40).split("\x1b[2K")[1]
    assert narrow.partition("\n")[0] == f"clean    {clean.line}"[:39]


def test_display_prints_idle_parts_once_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display(is_json=False)
    for part, rows in [("clean", 5), ("lake", 0), ("lake", 0), ("clean", 0), ("clean", 0), ("lake", 3), ("lake", 0)]:
        display(_progress(part, rows=rows))
    words = [line.split() for line in capsys.readouterr().err.splitlines()]
    shown = [(each[0], int(each[each.index("rows") - 1])) for each in words]
    assert shown == [("clean", 5), ("lake", 0), ("clean", 0), ("lake", 3), ("lake", 0)]


def _progress(part: str, rows: int = 5) -> Progress:
    return Progress.of_shape({**PROGRESS.shape(), "part": part, "rows": rows})


class Query:
    """A streaming query that fails or ends at once."""

    def __init__(self, failure: str | None) -> None:
        self._failure = failure

    def awaitTermination(self, seconds: float) -> bool:  # noqa: N802
        assert seconds == 0.2
        if self._failure is not None:
            raise RuntimeError(self._failure)
        return True


NOT_CONNECTED = "[STREAM_FAILED] Query terminated: Python worker failed to connect back. SQLSTATE: XXKST"


def test_query_is_restarted_when_a_worker_failed_to_connect() -> None:
    failures = [NOT_CONNECTED, NOT_CONNECTED, None]
    query = RestartingQuery(lambda: Query(failures.pop(0)))
    assert [query.awaitTermination(0.2) for _ in range(3)] == [False, False, True]
    assert not failures


@pytest.mark.parametrize(("failure", "starts"), [("the disk is full", 1), (NOT_CONNECTED, STARTS_MAX)])
def test_query_fails_on_other_errors_or_too_many_restarts(failure: str, starts: int) -> None:
    started = 0

    def start() -> Query:
        nonlocal started
        started += 1
        return Query(failure)

    query = RestartingQuery(start)
    for _ in range(starts - 1):
        assert query.awaitTermination(0.2) is False
    with pytest.raises(RuntimeError, match=re.escape(failure)):
        query.awaitTermination(0.2)
    assert started == starts


def clickstream() -> ModuleType:
    path = Path(__file__).parents[2] / "examples" / "activity" / "clickstream.py"
    spec = importlib.util.spec_from_file_location("clickstream", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["clickstream"] = module
    spec.loader.exec_module(module)
    return module


START_MS = 1_700_000_000_000


def made(count: int) -> tuple[Any, list[tuple[bytes | None, bytes, int]]]:
    module = clickstream()
    stream = module.Clickstream(3, START_MS, module.Mix())
    return stream.made, [record for chunk in stream.chunks(count) for record in chunk]


def test_clickstream_counts_its_events_duplicates_and_broken_records() -> None:
    counted, records = made(20_000)
    assert records == made(20_000)[1]
    good = [(json.loads(value), time_ms) for key, value, time_ms in records if key is not None]
    ids = Counter(event["event_id"] for event, _ in good)
    assert set(ids) == {f"3-{number}" for number in range(20_000)}
    assert (counted.events, counted.records) == (20_000, len(records))
    assert counted.repeated == sum(count - 1 for count in ids.values())
    assert counted.broken == len(records) - len(good)
    assert 100 < counted.repeated < 300
    assert 50 < counted.broken < 150


def test_clickstream_has_skew_late_events_and_leaving_visitors() -> None:
    counted, records = made(20_000)
    good = [(json.loads(value), time_ms) for key, value, time_ms in records if key is not None]
    users = Counter(event["user"] for event, _ in good)
    assert 0.15 < users["user-0"] / len(good) < 0.25
    assert users.most_common(2)[1][1] < 0.01 * len(good)
    late_ms = [time_ms - int(event["at"]) for event, time_ms in good]
    assert max(late_ms) > 200_000
    assert 0.01 < counted.late / 20_000 < 0.03
    assert len(users) > 500

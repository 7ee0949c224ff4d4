"""The activity pipeline as a stream, run by its command: status while it runs, and a clean stop."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from activity_scene import PARTITIONS, fill, ids_of
from quick_settings import DRIVER_SETTINGS
from typer.testing import CliRunner

from moldau.cli.main import app
from moldau.pipelines.run_folder import RunFolder, State
from moldau.testing.broker import Broker

PARTS: Final = ["clean", "counts", "sessions", "load", "lake"]
STOPPED_S_MAX: Final = 300
SEEN_S_MAX: Final = 300


@pytest.fixture
def topic(moldau_broker: Broker) -> str:
    """A new topic for old records, which would be deleted with the default retention."""
    return moldau_broker.create_topic(f"spark-{uuid.uuid4().hex}", partitions=PARTITIONS, **{"retention.ms": "-1"})


def state_of(folder: RunFolder) -> State:
    return folder.state  # a call, because type checkers assume that an attribute does not change


def until(is_so: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + SEEN_S_MAX
    while not is_so():
        assert time.monotonic() < deadline_s, f"not seen within {SEEN_S_MAX} s: {what}"
        time.sleep(0.1)  # polls a file of another process


class Stream:
    """The command in its own process group, and its output."""

    def __init__(self, broker: Broker, topic: str, root: Path, *options: str) -> None:
        words = ("pipeline", "run", "activity", "-t", topic, "-b", broker.bootstrap_servers, "--folder", str(root))
        # One partition of state: with so few rows, a second one costs more than it saves.
        settings = {**DRIVER_SETTINGS, "spark.sql.shuffle.partitions": "1"}
        small = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "moldau.cli.main", *words, *small, "--json", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ},
            text=True,
            start_new_session=True,
        )

    def progress(self) -> Iterator[dict[str, Any]]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            yield json.loads(line)

    def until_read(self, rows: dict[str, int]) -> None:
        """Wait until each part has read the given number of rows."""
        seen: dict[str, int] = {}
        for each in self.progress():
            seen[each["part"]] = each["rows_total"]
            if all(seen.get(part, 0) >= count for part, count in rows.items()):
                return
        pytest.fail(f"exited after reading {seen}")

    def interrupt(self) -> str:
        """Send Ctrl-C like a terminal, also to the JVM. Returns the remaining standard error."""
        os.killpg(self.process.pid, signal.SIGINT)
        _, errors = self.process.communicate(timeout=STOPPED_S_MAX)
        return errors


@pytest.mark.proves("D3", "D4")
def test_activity_stream_is_shown_stopped_and_resumed(moldau_broker: Broker, topic: str, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, f"activity-{topic}")
    first = fill(moldau_broker, topic, 0, 60)
    options = ("--master", "local[2]", "--partitions", str(PARTITIONS), "--lateness", "5 minutes")
    stream = Stream(moldau_broker, topic, tmp_path, *options, "--report-every", "1")
    try:
        stream.until_read({"clean": first, **dict.fromkeys(PARTS[1:], 60)})
        assert state_of(folder) is State.RUNNING
        assert [each.part for each in folder.parts] == PARTS
        shown = CliRunner().invoke(app, ["pipeline", "status", folder.name, "--folder", str(tmp_path)]).stdout
        assert [line.split()[0] for line in shown.splitlines() if " in all" in line] == PARTS
        second = fill(moldau_broker, topic, 60, 60)
        stream.until_read({"clean": first + second, **dict.fromkeys(PARTS[1:], 120)})
        page = folder.path / "report.html"
        until(lambda: page.exists() and "this page reloads itself" in page.read_text(), "a report while it runs")
        errors = stream.interrupt()
    finally:
        stream.process.kill()
    assert stream.process.returncode == 130, errors
    assert "stopped; run it again to continue from here" in errors
    assert f"report: {page}" in errors
    assert "Traceback" not in errors
    assert state_of(folder) is State.STOPPED
    assert "reloads itself" not in page.read_text()
    assert "<b>120</b>events" in page.read_text()
    assert ids_of(moldau_broker, f"{topic}.activity") == Counter(f"e{number}" for number in range(120))

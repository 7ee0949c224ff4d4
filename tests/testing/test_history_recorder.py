"""The recorder writes each line before its request is sent, and its file is readable after a crash."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

from moldau_dev.history.attempts import load
from moldau_dev.history.checker import main
from moldau_dev.history.operations import Kind
from moldau_dev.history.recorder import Recorder

DYING = """
import os, sys
from moldau_dev.history.recorder import Recorder
recorder = Recorder(sys.argv[1])
recorder.invoke("p", "send", {"key": "t-0", "value": 1})
os._exit(9)
"""


def test_line_is_written_before_invoke_returns(tmp_path: Path) -> None:
    with Recorder(tmp_path / "history.jsonl", now_ns=lambda: 5) as recorder:
        recorder.invoke("p", "send", {"key": "t-0", "value": 1})
        (line,) = (tmp_path / "history.jsonl").read_text().splitlines()
    assert json.loads(line) == {
        "index": 0, "time_ns": 5, "process": "p", "type": "invoke", "f": "send", "value": {"key": "t-0", "value": 1},
    }  # fmt: skip


def test_killed_process_leaves_its_invocations(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    assert subprocess.run([sys.executable, "-c", DYING, str(path)], check=False).returncode == 9
    (attempt,) = load(path)
    assert (attempt.f, attempt.kind) == ("send", Kind.INFO)


def test_torn_last_line_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    with Recorder(path) as recorder:
        recorder.note("c", "assign", ["t-0"])
        recorder.invoke("p", "send", {"key": "t-0", "value": 1})
    os.truncate(path, path.stat().st_size - 5)
    assert [attempt.f for attempt in load(path)] == ["assign"]


def test_threads_share_a_recorder_and_the_lines_are_in_order(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    recorder = Recorder(path)

    def write(process: str) -> None:
        for value in range(500):
            recorder.invoke(process, "send", {"key": f"{process}-0", "value": value})
            recorder.ok(process, "send", {"key": f"{process}-0", "value": value, "offset": value})

    threads = [threading.Thread(target=write, args=(f"p{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["index"] for line in lines] == list(range(4000))
    assert [line["time_ns"] for line in lines] == sorted(line["time_ns"] for line in lines)
    assert len(load(path)) == 2000


def test_checker_command_reports_the_verdict(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    with Recorder(path) as recorder:
        recorder.invoke("p", "send", {"key": "t-0", "value": 1})
        recorder.ok("p", "send", {"key": "t-0", "value": 1, "offset": 0})
        recorder.invoke("c", "poll")
        recorder.ok("c", "poll", {"t-0": [[0, 1]]})
    assert main([str(path), "--complete"]) == 0
    with Recorder(path) as recorder:
        recorder.invoke("c", "poll")
        recorder.ok("c", "poll", {"t-0": [[0, 1]]})
    assert main([str(path)]) == 1

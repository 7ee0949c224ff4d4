"""The demo finds lost, duplicate and foreign events, detects a batch in progress, and leaves no process behind."""

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from demo.children import Children, in_sessions
from demo.pipeline_state import Batches, batches, transactional_id
from demo.result_check import Found, Made, count_ids

MADE = Made(seed=1, events=5, late=0, repeated=2, broken=3, records=10, seconds=1.0)
FOUND = Found(out=5, twice=0, lost=0, strangers=0, dead_letters=3, lake=5)


@pytest.mark.parametrize(
    ("ids", "out", "twice", "lost", "strangers"),
    [
        ("1-0 1-1 1-2 1-3 1-4", 5, 0, 0, 0),
        ("1-4 1-0 1-3 1-1 1-2 1-2", 6, 1, 0, 0),
        ("1-0 1-0 1-0 1-4", 4, 2, 3, 0),
        ("1-0 1-1 1-2 1-3 1-5", 5, 0, 1, 1),
        ("1-0 1-1 1-2 1-3 2-4 x 1-x", 7, 0, 1, 3),
        ("", 0, 0, 5, 0),
    ],
)
def test_event_ids_are_counted(ids: str, out: int, twice: int, lost: int, strangers: int) -> None:
    assert count_ids(ids.split(), MADE) == (out, twice, lost, strangers)


def test_more_than_255_duplicates_of_an_id_are_counted() -> None:
    assert count_ids(["1-0"] * 1000, MADE) == (1000, 999, 4, 0)


@pytest.mark.parametrize("wrong", ["out", "twice", "lost", "strangers", "dead_letters", "lake"])
def test_result_with_any_wrong_count_fails(wrong: str) -> None:
    assert FOUND.is_right(MADE)
    assert not replace(FOUND, **{wrong: 4}).is_right(MADE)


def test_batch_with_offsets_but_no_commit_is_in_progress(tmp_path: Path) -> None:
    assert batches(tmp_path) == Batches(-1, -1)
    assert transactional_id(tmp_path) is None
    for name in ("offsets", "commits"):
        (tmp_path / name).mkdir()
        for number in ("0", "9", "10", ".11.crc", "12.tmp"):
            (tmp_path / name / number).touch()
    assert not batches(tmp_path).is_in_the_middle
    (tmp_path / "offsets" / "11").touch()
    assert batches(tmp_path) == Batches(11, 10)
    assert batches(tmp_path).is_in_the_middle
    (tmp_path / "metadata").write_text('{"id":"7-8"}\n')
    assert transactional_id(tmp_path) == "moldau-spark-7-8"


GRANDCHILD = "import subprocess, time\nsubprocess.Popen(['sleep', '600'], process_group=0)\nprint('up', flush=True)\n"


@pytest.mark.parametrize("is_over", [True, False])
def test_end_all_leaves_no_child_or_grandchild(tmp_path: Path, is_over: bool) -> None:
    children = Children(tmp_path)
    process = children.start("one", [sys.executable, "-c", GRANDCHILD + ("" if is_over else "time.sleep(600)")])
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    if is_over:
        process.wait(60)
    assert len(in_sessions([process.pid])) == (1 if is_over else 2)
    children.end_all(orphans_s_max=0)
    assert in_sessions([process.pid]) == []


def test_kill_ends_the_process_group(tmp_path: Path) -> None:
    children = Children(tmp_path)
    process = children.start("one", [sys.executable, "-c", GRANDCHILD + "time.sleep(600)"])
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    children.kill(process)
    assert process.returncode == -signal.SIGKILL
    assert in_sessions([process.pid]) == []


def test_interrupted_demo_leaves_no_process_or_file(tmp_path: Path) -> None:
    paths = {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-m", "demo", "--report", str(tmp_path / "report" / "report.html")],
        env={**os.environ, **paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        assert "3 brokers serve on" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=100)
    finally:
        process.kill()
    # Python may print a warning after it, if it is interrupted while it creates an event loop.
    assert (process.returncode, errors.splitlines()[:1]) == (130, ["stopped; everything that was started has ended"])
    assert not list(tmp_path.glob("moldau-demo-*"))
    assert not [each for each in processes() if str(tmp_path) in each]


def processes() -> list[str]:
    """Return the command lines of all processes; none without `ps`."""
    if shutil.which("ps") is None:
        return []
    listed = subprocess.run(["ps", "-A", "-ww", "-o", "args="], capture_output=True, text=True, check=True).stdout
    return listed.splitlines()

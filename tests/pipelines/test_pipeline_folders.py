"""A pipeline's folder: its lock, the state of its last run, and a stop from another process."""

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from moldau.pipelines.progress import Progress
from moldau.pipelines.requirements import PipelineError, require_spark
from moldau.pipelines.run_folder import RunFolder, State, all_folders, default_root, new_run

PROGRESS = Progress(batch=3, at_ms=1_700_000_000_000, rows=5, rows_total=50, rows_per_s=2.5, batch_ms=2000)
WAIT_S = 60

HOLD_LOCK = """
import signal, sys, time
from pathlib import Path
from moldau.pipelines.run_folder import RunFolder, new_run
folder = RunFolder(Path(sys.argv[1]), "clicks")
def end(*_): raise KeyboardInterrupt
signal.signal(signal.SIGTERM, end)
with folder.locked(new_run("archive", {"topic": "clicks"}, "local[*]")):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path, "clicks")


def state_of(folder: RunFolder) -> State:
    return folder.state  # a call, because type checkers assume that an attribute does not change


def hold(root: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD_LOCK, str(root)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_completed_run_is_done(folder: RunFolder) -> None:
    assert state_of(folder) is State.NEW
    with folder.locked(new_run("archive", {}, "local[*]")):
        assert state_of(folder) is State.RUNNING
    assert state_of(folder) is State.DONE
    assert folder.run is not None
    assert folder.run.ended_ms is not None


@pytest.mark.parametrize(("error", "state"), [(ValueError("no"), State.FAILED), (KeyboardInterrupt(), State.STOPPED)])
def test_interrupted_or_failed_run_has_its_state(folder: RunFolder, error: BaseException, state: State) -> None:
    def run() -> None:
        with folder.locked(new_run("archive", {}, "local[*]")):
            folder.note_error("out of memory")
            raise error

    with pytest.raises(type(error)):
        run()
    assert state_of(folder) is state
    assert folder.error == "out of memory\n"
    with folder.locked(new_run("archive", {}, "local[*]")):
        assert folder.error is None


def test_second_run_of_a_pipeline_is_rejected(folder: RunFolder, tmp_path: Path) -> None:
    with folder.locked(new_run("archive", {}, "local[*]")):
        with pytest.raises(PipelineError, match=f"is already running as process {os.getpid()}"):
            RunFolder(tmp_path, "clicks").locked(new_run("archive", {}, "local[*]")).__enter__()
        assert state_of(folder) is State.RUNNING


@pytest.mark.proves("D4")
def test_other_process_is_seen_and_stopped(folder: RunFolder, tmp_path: Path) -> None:
    process = hold(tmp_path)
    try:
        assert state_of(folder) is State.RUNNING
        assert folder.stop(WAIT_S)
        assert process.wait(WAIT_S) != 0
    finally:
        process.kill()
        process.communicate()
    assert state_of(folder) is State.STOPPED
    assert not folder.stop(WAIT_S)


@pytest.mark.proves("D4")
def test_killed_process_is_seen_as_died(folder: RunFolder, tmp_path: Path) -> None:
    process = hold(tmp_path)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert state_of(folder) is State.DIED
    with folder.locked(new_run("archive", {"topic": "clicks"}, "local[*]")):
        assert state_of(folder) is State.RUNNING


@pytest.mark.proves("D4")
def test_stop_signals_the_process_that_holds_the_lock(folder: RunFolder, tmp_path: Path) -> None:
    """A new run may not have written `run.json` yet, and the process id in it may belong to another process."""
    other_process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    process = hold(tmp_path)
    try:
        assert folder.run is not None
        folder._write("run.json", replace(folder.run, pid=other_process.pid).shape())
        assert folder.stop(WAIT_S)
        assert process.wait(WAIT_S) != 0
        assert other_process.poll() is None
    finally:
        for each in (process, other_process):
            each.kill()
            each.communicate()


@pytest.mark.parametrize(("error", "words"), [(PermissionError, "another user"), (ProcessLookupError, "did not stop")])
def test_process_that_cannot_be_signalled_is_reported(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, error: type[OSError], words: str
) -> None:
    def fail(pid: int, number: int) -> None:
        assert (pid, number) == (os.getpid(), signal.SIGTERM)
        raise error

    monkeypatch.setattr(os, "kill", fail)
    with folder.locked(new_run("archive", {}, "local[*]")), pytest.raises(PipelineError, match=words):
        folder.stop(0.2)


def test_process_that_does_not_stop_is_reported(folder: RunFolder) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with folder.locked(new_run("archive", {}, "local[*]")), pytest.raises(PipelineError, match="did not stop"):
            folder.stop(0.2)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_checkpoint_of_another_job_is_rejected(folder: RunFolder) -> None:
    with folder.locked(new_run("archive", {"topic": "clicks"}, "local[*]")):
        folder.checkpoint.mkdir()
        (folder.checkpoint / "metadata").write_text("{}")
    with pytest.raises(PipelineError, match=r"belongs to archive \(topic clicks\), not to archive \(topic views\)"):
        folder.locked(new_run("archive", {"topic": "views"}, "local[*]")).__enter__()
    with folder.locked(new_run("archive", {"topic": "clicks"}, "local[4]")):
        assert state_of(folder) is State.RUNNING


@pytest.mark.proves("D4")
def test_progress_is_saved_as_json_and_for_prometheus(folder: RunFolder) -> None:
    with folder.locked(new_run("archive", {}, "local[*]")):
        folder.note_progress(PROGRESS)
        assert 'moldau_pipeline_up{pipeline="clicks"} 1' in (folder.path / "metrics.prom").read_text()
    assert folder.progress == PROGRESS
    assert 'moldau_pipeline_up{pipeline="clicks"} 0' in (folder.path / "metrics.prom").read_text()


@pytest.mark.proves("D4")
def test_pipeline_waiting_for_its_first_batch_is_up(folder: RunFolder) -> None:
    """Also after a restart, when an idle topic gives no batch and the previous run had ended."""

    def up() -> list[str]:
        lines = (folder.path / "metrics.prom").read_text().splitlines()
        return [line for line in lines if line.startswith(("moldau_pipeline_up", "moldau_pipeline_batch_id"))]

    with folder.locked(new_run("archive", {}, "local[*]")):
        assert up() == ['moldau_pipeline_up{pipeline="clicks"} 1']
    assert up() == ['moldau_pipeline_up{pipeline="clicks"} 0']
    with folder.locked(new_run("archive", {}, "local[*]")):
        folder.note_progress(PROGRESS)
    with folder.locked(new_run("archive", {}, "local[*]")):
        assert up() == ['moldau_pipeline_up{pipeline="clicks"} 1', 'moldau_pipeline_batch_id{pipeline="clicks"} 3']


@pytest.mark.proves("D4")
@pytest.mark.parametrize("next_run", [False, True])
def test_run_that_ends_during_a_status_query_has_not_died(tmp_path: Path, next_run: bool) -> None:
    with ExitStack() as runs:

        class Watched(RunFolder):
            """A folder whose run ends just before the lock is checked."""

            @property
            def is_locked(self) -> bool:
                runs.close()
                found = super().is_locked
                if next_run:
                    runs.enter_context(RunFolder(tmp_path, "clicks").locked(new_run("archive", {}, "local[2]")))
                return found

        runs.enter_context(RunFolder(tmp_path, "clicks").locked(new_run("archive", {}, "local[*]")))
        assert state_of(Watched(tmp_path, "clicks")) is (State.RUNNING if next_run else State.DONE)


@pytest.mark.parametrize("name", ["", "..", "a/b", "-x", "a b", "x" * 101])
def test_invalid_pipeline_name_is_rejected(tmp_path: Path, name: str) -> None:
    with pytest.raises(PipelineError, match="not a valid pipeline name"):
        RunFolder(tmp_path, name)


def test_only_folders_with_runs_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOLDAU_PIPELINES", str(tmp_path / "pipelines"))
    root = default_root()
    assert all_folders(root) == []
    for name in ("b", "a"):
        with RunFolder(root, name).locked(new_run("archive", {}, "local[*]")):
            pass
    (root / "stray").mkdir()
    assert [each.name for each in all_folders(root)] == ["a", "b"]


def test_missing_pyspark_is_reported_with_the_install_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "pyspark" else object())
    with pytest.raises(PipelineError, match=r"pipelines need pyspark; install Moldau with its spark extra"):
        require_spark()


def test_status_query_does_not_block_a_start(folder: RunFolder) -> None:
    deadline = time.monotonic() + 0.5
    while time.monotonic() < deadline:
        assert not folder.is_locked
        with folder.locked(new_run("archive", {}, "local[*]")):
            assert folder.is_locked

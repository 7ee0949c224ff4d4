"""The folder of a pipeline: its lock, state and progress. Other processes read it, so no daemon is needed.

<root>/<name>/lock           locked by the running process, released however it ends; contains its pid
<root>/<name>/run.json       the current or last run: job, pid, final state
<root>/<name>/progress.json  progress after the last batch, in total and per query
<root>/<name>/metrics.prom   the same for Prometheus
<root>/<name>/error.txt      the error of the last run, if it failed
<root>/<name>/checkpoint/    Spark's checkpoint, from which the next run resumes
"""

import fcntl
import json
import os
import re
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, Final, Self

from moldau.pipelines.progress import Progress, prometheus_text, together
from moldau.pipelines.requirements import PipelineError

ROOT_VARIABLE: Final = "MOLDAU_PIPELINES"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_LOOK_S: Final = 0.1


class State(Enum):
    """The state of a pipeline. `DIED`: its process ended without recording a final state."""

    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"
    DIED = "died"
    NEW = "new"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run. `identity` describes the job that owns the checkpoint; another job must not resume from it."""

    job: str
    identity: Mapping[str, Any]
    master: str
    pid: int
    started_ms: int
    state: State = State.RUNNING
    ended_ms: int | None = None

    def shape(self) -> dict[str, Any]:
        return {**asdict(self), "state": self.state.value}

    @classmethod
    def of_shape(cls, shape: Mapping[str, Any]) -> Self:
        return cls(**{**shape, "state": State(shape["state"])})


def default_root() -> Path:
    chosen = os.environ.get(ROOT_VARIABLE)
    if chosen:
        return Path(chosen)
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "moldau" / "pipelines"


class RunFolder:
    """The folder of one pipeline, used by its own process and by observers."""

    def __init__(self, root: Path, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise PipelineError(
                f"{name!r} is not a valid pipeline name: use letters, digits, dots, dashes and underscores"
            )
        self.name, self.path = name, root.absolute() / name
        self.checkpoint = self.path / "checkpoint"

    @property
    def run(self) -> Run | None:
        shape = self._read("run.json")
        return None if shape is None else Run.of_shape(shape)

    @property
    def progress(self) -> Progress | None:
        shape = self._read("progress.json")
        return None if shape is None else Progress.of_shape(shape)

    @property
    def parts(self) -> list[Progress]:
        """The progress of each query, in data-flow order."""
        return [Progress.of_shape(each) for each in (self._read("progress.json") or {}).get("parts", ())]

    @property
    def error(self) -> str | None:
        path = self.path / "error.txt"
        return path.read_text() if path.exists() else None

    @property
    def state(self) -> State:
        before = self.run
        if self.is_locked:
            return State.NEW if before is None else State.RUNNING
        run = self.run  # read again: it may have recorded its end since the first read
        if run is None:
            return State.NEW
        if run == before and run.state is State.RUNNING:
            return State.DIED
        return run.state  # possibly of a run that has just started

    @property
    def is_locked(self) -> bool:
        """Whether a process currently runs the pipeline."""
        try:
            with (self.path / "lock").open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    @contextmanager
    def locked(self, run: Run) -> Iterator[None]:
        """Hold the lock while the pipeline runs in this process, and record its final state."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / "lock").open("ab") as lock:
            self._take(lock)
            self._check_identity(run)
            (self.path / "error.txt").unlink(missing_ok=True)
            self._write("run.json", run.shape())
            self._write_metrics(is_running=True)  # before the first batch, which may take long
            try:
                yield
            except BaseException as error:
                self._end(State.STOPPED if isinstance(error, KeyboardInterrupt) else State.FAILED)
                raise
            self._end(State.DONE)

    def note_progress(self, *parts: Progress) -> None:
        self._write("progress.json", {**together(parts).shape(), "parts": [each.shape() for each in parts]})
        self._write_metrics(is_running=True)

    def note_error(self, reason: str) -> None:
        self._write_text("error.txt", reason.rstrip() + "\n")

    def stop(self, seconds_max: float) -> bool:
        """Signal the process and wait for its end. False if the pipeline is not running."""
        deadline = time.monotonic() + seconds_max
        signalled: int | None = None
        while self.is_locked:
            # The holder may have just started: until it writes `run.json`, the file is of an earlier process.
            holder = self._holder
            if holder is not None and holder != signalled:
                self._ask_to_end(holder)
                signalled = holder
            if time.monotonic() > deadline:
                raise PipelineError(f"{self.name} (process {holder}) did not stop within {seconds_max:g} s")
            time.sleep(_LOOK_S)
        return signalled is not None

    @property
    def _holder(self) -> int | None:
        text = (self.path / "lock").read_text()
        return int(text) if text.isdecimal() else None

    def _ask_to_end(self, pid: int) -> None:
        try:
            os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:
            pass  # the process has ended in the meantime
        except PermissionError:
            raise PipelineError(f"{self.name} runs as process {pid}, which belongs to another user") from None

    def _take(self, lock: Any) -> None:
        deadline = time.monotonic() + 1  # an observer may hold the lock for a moment to test it
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                lock.truncate(0)
                lock.write(str(os.getpid()).encode())
                lock.flush()
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    run = self.run
                    said = f" as process {run.pid}" if run else ""
                    raise PipelineError(
                        f"pipeline {self.name} is already running{said}; see: moldau pipeline status {self.name}"
                    ) from None
                time.sleep(_LOOK_S / 10)

    def _check_identity(self, run: Run) -> None:
        before = self.run
        if before is None or not self.has_checkpoint:
            return
        if before.job != run.job or dict(before.identity) != dict(run.identity):
            raise PipelineError(
                f"the checkpoint of pipeline {self.name} belongs to {_described(before)}, not to {_described(run)}; "
                f"choose another --name, or remove {self.path}"
            )

    @property
    def has_checkpoint(self) -> bool:
        """Whether the pipeline or one of its queries has a checkpoint."""
        return (self.checkpoint / "metadata").exists() or any(self.checkpoint.glob("*/metadata"))

    def _end(self, state: State) -> None:
        run = self.run
        if run is not None and run.state is State.RUNNING:
            self._write("run.json", replace(run, state=state, ended_ms=int(time.time() * 1000)).shape())
        self._write_metrics(is_running=False)

    def _write_metrics(self, *, is_running: bool) -> None:
        self._write_text("metrics.prom", prometheus_text(self.name, self.parts, is_running=is_running))

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            shape = json.loads((self.path / name).read_text())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise PipelineError(f"{self.path / name} cannot be read: {error}") from error
        return dict(shape)

    def _write(self, name: str, shape: Mapping[str, Any]) -> None:
        self._write_text(name, json.dumps(shape, indent=2) + "\n")

    def _write_text(self, name: str, text: str) -> None:
        """Replace a file atomically, because observers may read it at any time."""
        fresh = self.path / f"{name}.{os.getpid()}.new"
        fresh.write_text(text)
        os.replace(fresh, self.path / name)


def _described(run: Run) -> str:
    values = ", ".join(f"{name} {value}" for name, value in run.identity.items())
    return f"{run.job} ({values})" if values else run.job


def all_folders(root: Path) -> list[RunFolder]:
    """Return the folders of all pipelines that have run, by name."""
    if not root.is_dir():
        return []
    names = sorted(each.name for each in root.iterdir() if (each / "run.json").exists())
    return [RunFolder(root, name) for name in names]


def new_run(job: str, identity: Mapping[str, Any], master: str) -> Run:
    """Return a run of this process that starts now."""
    return Run(job=job, identity=identity, master=master, pid=os.getpid(), started_ms=int(time.time() * 1000))

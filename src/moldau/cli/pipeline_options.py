"""Shared by the jobs of `moldau pipeline run`: options, and the display of progress."""

import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moldau.cli.errors import CommandError
from moldau.cli.output import note, show_json_line

if TYPE_CHECKING:
    from moldau.pipelines.flow import Flow
    from moldau.pipelines.job_runner import RunConfig
    from moldau.pipelines.progress import Progress
    from moldau.pipelines.run_folder import RunFolder

Root = Annotated[
    Path | None,
    typer.Option(
        "--folder",
        envvar="MOLDAU_PIPELINES",
        metavar="PATH",
        show_default="~/.local/state/moldau/pipelines",
        help="Parent directory of the pipelines' directories.",
    ),
]
Name = Annotated[
    str | None, typer.Option("--name", metavar="NAME", help="Name of the pipeline. Default: job and topic.")
]
From = Annotated[
    str,
    typer.Option(
        "--from", "-f", metavar="WHERE", help="start, end, -10, @2026-01-01T00:00:00 or an offset; first run only."
    ),
]
Until = Annotated[
    str | None,
    typer.Option("--until", "-u", metavar="WHERE", help="Read up to, as one batch: end (as of now), @TIME, an offset."),
]
Once = Annotated[bool, typer.Option("--once", help="Process the backlog and exit, instead of running until stopped.")]
Master = Annotated[str | None, typer.Option("--master", metavar="URL", show_default="local[*]", help="Spark master.")]
Checkpoint = Annotated[
    str | None,
    typer.Option("--checkpoint", metavar="URL", help="A location that all nodes of the Spark cluster can reach."),
]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A Spark setting; may be repeated.")
]
RowsPerBatch = Annotated[int, typer.Option("--rows-per-batch", min=1, metavar="N", help="Maximum rows of a batch.")]
JsonLines = Annotated[bool, typer.Option("--json", help="Print progress as JSON, one object per line.")]
Eject = Annotated[
    str | None,
    typer.Option(
        "--eject", metavar="FILE", help="Write the job as a PySpark script (-: print it) instead of running it."
    ),
]


@contextmanager
def translate_pipeline_errors() -> Iterator[None]:
    """Turn pipeline errors into command errors; a stopped job is not an error."""
    from moldau.pipelines.job_runner import Stopped
    from moldau.pipelines.requirements import PipelineError

    try:
        yield
    except Stopped as stopped:
        note("stopped; run it again to continue from here")
        is_interrupted = stopped.args == (signal.SIGINT,)
        raise typer.Exit(130 if is_interrupted else 0) from None
    except PipelineError as error:
        raise CommandError(str(error)) from error


def open_run_folder(root: Path | None, name: str) -> "RunFolder":
    from moldau.pipelines.run_folder import RunFolder, default_root

    with translate_pipeline_errors():
        return RunFolder(root or default_root(), name)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of a run that do not depend on its job."""

    root: Path | None
    name: str
    once: bool = False
    master: str | None = None
    checkpoint: str | None = None
    conf: list[str] | None = None
    json: bool = False
    eject: str | None = None
    folder: "RunFolder" = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", open_run_folder(self.root, self.name))

    @property
    def checkpoint_location(self) -> str:
        return self.checkpoint or str(self.folder.checkpoint)

    def run_config(self) -> "RunConfig":
        from moldau.cli.options import pairs
        from moldau.pipelines.job_runner import RunConfig

        return RunConfig(
            folder=self.folder,
            master=self.master,
            checkpoint=self.checkpoint,
            once=self.once,
            settings=pairs(self.conf, "--conf"),
            on_progress=Display(is_json=self.json),
        )


class Display:
    """Shows progress: text on standard error, JSON on standard output.

    On a terminal each query has a line that is overwritten; elsewhere each batch prints a line.
    """

    def __init__(self, *, is_json: bool) -> None:
        self._is_json = is_json
        self._lines: dict[str, str] = {}
        self._idle: set[str] = set()

    def __call__(self, progress: "Progress") -> None:
        if self._is_json:
            show_json_line(progress.shape())
            sys.stdout.flush()
        elif sys.stderr.isatty():
            print(self.block(progress, shutil.get_terminal_size().columns), end="", file=sys.stderr, flush=True)
        elif progress.rows or progress.part not in self._idle:
            note(_line(progress))
        self._idle = self._idle - {progress.part} if progress.rows else self._idle | {progress.part}

    def block(self, progress: "Progress", width: int) -> str:
        """Return all lines with the control codes that overwrite the previous ones."""
        line = _line(progress)[: width - 1]
        if not progress.part:
            return f"\r\x1b[2K{line}" + ("\n" if progress.rows else "")
        above = len(self._lines)
        self._lines[progress.part] = line
        back = f"\x1b[{above}A" if above else ""
        return back + "".join(f"\r\x1b[2K{each}\n" for each in self._lines.values())


def _line(progress: "Progress") -> str:
    return f"{progress.part:<9}{progress.line}" if progress.part else progress.line


def eject(flow: "Flow", options: RunOptions) -> None:
    """Write the job as a script, to a file or to standard output."""
    from moldau.pipelines.function_step import with_future_first

    script = flow.script(master=options.master, checkpoint=options.checkpoint_location, once=options.once)
    eject_script(with_future_first(script), str(options.eject))


def eject_script(script: str, place: str) -> None:
    if place == "-":
        print(script, end="")
        return
    Path(place).write_text(script, encoding="utf-8")  # source encoding of Python, whatever the locale is
    note(f"{place}: run it with a Python that has Moldau with its extra spark")


def local_or_url(place: str) -> str:
    """Return a URL as it is, and a path as an absolute one: Spark's working directory may differ."""
    return place if "://" in place else str(Path(place).absolute())

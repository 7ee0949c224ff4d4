"""What the jobs of `moldau pipeline run` have in common: options, places in topics, and how a run is shown."""

import asyncio
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moldau.cli.errors import Complaint, wrong_usage
from moldau.cli.output import note, show_json_line

if TYPE_CHECKING:
    from moldau.pipelines.flow import Flow
    from moldau.pipelines.folders import RunFolder
    from moldau.pipelines.progress import Progress
    from moldau.pipelines.running import Conditions

Root = Annotated[
    Path | None,
    typer.Option(
        "--folder",
        envvar="MOLDAU_PIPELINES",
        metavar="PATH",
        show_default="~/.local/state/moldau/pipelines",
        help="Where pipelines keep their folders.",
    ),
]
Name = Annotated[
    str | None, typer.Option("--name", metavar="NAME", help="What this pipeline is called; made of job and topic.")
]
From = Annotated[
    str,
    typer.Option(
        "--from", "-f", metavar="WHERE", help="start, end, -10, @2026-01-01T00:00:00 or an offset; for its first run."
    ),
]
Until = Annotated[
    str | None,
    typer.Option("--until", "-u", metavar="WHERE", help="Up to there in one piece: end (as of now), @TIME, an offset."),
]
Once = Annotated[bool, typer.Option("--once", help="Do what there is to do, then end; else go on until stopped.")]
Master = Annotated[
    str | None, typer.Option("--master", metavar="URL", show_default="local[*]", help="Spark's cluster.")
]
Checkpoint = Annotated[
    str | None, typer.Option("--checkpoint", metavar="URL", help="Where all nodes of a cluster can reach it.")
]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark's; may be repeated.")
]
RowsPerBatch = Annotated[int, typer.Option("--rows-per-batch", min=1, metavar="N", help="No batch reads more.")]
JsonLines = Annotated[bool, typer.Option("--json", help="Progress as JSON, one object a line.")]
Eject = Annotated[
    str | None,
    typer.Option("--eject", metavar="FILE", help="Write the job as plain PySpark there (-: print it); do not run it."),
]


@contextmanager
def complaining() -> Iterator[None]:
    """What a user can put right about a pipeline is one line; a job that was stopped is no error."""
    from moldau.pipelines.requirements import PipelineError
    from moldau.pipelines.running import Stopped

    try:
        yield
    except Stopped as stopped:
        note("stopped; run it again to go on from here")
        is_interrupted = stopped.args == (signal.SIGINT,)
        raise typer.Exit(130 if is_interrupted else 0) from None
    except PipelineError as error:
        raise Complaint(str(error)) from error


def folder_of(root: Path | None, name: str) -> "RunFolder":
    from moldau.pipelines.folders import RunFolder, default_root

    with complaining():
        return RunFolder(root or default_root(), name)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of a run that have nothing to do with its job."""

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
        object.__setattr__(self, "folder", folder_of(self.root, self.name))

    def conditions(self) -> "Conditions":
        from moldau.cli.options import pairs
        from moldau.pipelines.running import Conditions

        return Conditions(
            folder=self.folder,
            master=self.master,
            checkpoint=self.checkpoint,
            once=self.once,
            settings=pairs(self.conf, "--conf"),
            tell=Display(is_json=self.json),
        )


class Display:
    """Progress for people on standard error, in one line where there is a terminal; for programs on standard output."""

    def __init__(self, *, is_json: bool) -> None:
        self._is_json = is_json
        self._was_idle = False

    def __call__(self, progress: "Progress") -> None:
        if self._is_json:
            show_json_line(progress.shape())
            sys.stdout.flush()
            return
        is_idle = not progress.rows
        if sys.stderr.isatty():
            print(f"\r\x1b[2K{progress.line}", end="" if is_idle else "\n", file=sys.stderr, flush=True)
        elif not (is_idle and self._was_idle):
            note(progress.line)
        self._was_idle = is_idle


def eject(flow: "Flow", options: RunOptions) -> None:
    """The job as a script, to a file or to standard output."""
    checkpoint = options.checkpoint or str(options.folder.checkpoint)
    script = flow.script(master=options.master, checkpoint=checkpoint, once=options.once)
    if options.eject == "-":
        print(script, end="")
        return
    Path(str(options.eject)).write_text(script)
    note(f"{options.eject}: run it with python, where pip install 'moldau[spark]' has been done")


def places(bootstrap: str, topics: list[str], start: str, until: str | None) -> tuple[str, str | None]:
    """--from and --until as the options startingOffsets and endingOffsets."""
    from moldau.cli.positions import AtStart, parse_position
    from moldau.pipelines.flow import offsets_text

    begin = parse_position(start, "--from")
    finish = None if until is None else parse_position(until, "--until")
    if isinstance(finish, AtStart):
        raise wrong_usage("--until start: nothing comes before the start")
    starts, ends = asyncio.run(_resolve(bootstrap, topics, begin, finish))
    starting = "earliest" if isinstance(begin, AtStart) and finish is None else offsets_text(starts)
    return starting, None if ends is None else offsets_text(ends)


async def _resolve(bootstrap: str, topics: list[str], begin: Any, finish: Any) -> tuple[Any, Any]:
    from moldau.cli.connecting import connect_asynchronously
    from moldau.cli.positions import extents, resolve
    from moldau.client.words import Isolation
    from moldau.model.ids import TopicPartition

    async with connect_asynchronously(bootstrap) as client:
        views = [await client.describe_topic(topic) for topic in topics]
        found = [TopicPartition(view.name, each.index) for view in views for each in view.partitions]
        known = await extents(client, found, Isolation.READ_COMMITTED)
        starts = await resolve(client, begin, known, Isolation.READ_COMMITTED)
        if finish is None:
            return starts, None
        ends = await resolve(client, finish, known, Isolation.READ_COMMITTED)
        return starts, {place: max(end, starts[place]) for place, end in ends.items()}

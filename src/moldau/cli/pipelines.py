"""`moldau pipeline`: list, run, status, stop, maintain, replay-dead."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from moldau.cli import pipeline_jobs, pipeline_lake, pipeline_quality
from moldau.cli.errors import CommandError
from moldau.cli.options import Json
from moldau.cli.output import note, show_json, show_table
from moldau.cli.pipeline_options import Root, open_run_folder, translate_pipeline_errors

if TYPE_CHECKING:
    from moldau.pipelines.run_folder import RunFolder

JOBS: Final = {
    "activity": "raw events → validated, deduplicated, counted, sessionised → topics, Parquet, a report",
    "archive": "topic → Parquet files, each record exactly once, with all that restore needs",
    "lake": "topic → Delta, Iceberg or Parquet table, each record exactly once, or the latest of each key",
    "check": "topic → dead letters for records that violate rules, another topic for the others; a report",
    "restore": "archive → topic, up to a point in time; translates group offsets, verifies checksums",
    "transform": "topics → topic, exactly once, through SQL or a Python function if given",
    "aggregate": "topics → topic, exactly once: counts, sums and more by time window and fields",
    "dedupe": "topics → topic, exactly once: the first record of each key",
    "FILE.py": "your own Python file with a function transform(frame)",
}

app = typer.Typer(help="Run Spark jobs on topics and files.", no_args_is_help=True)
app.add_typer(pipeline_jobs.app, name="run")

app.command()(pipeline_lake.maintain)
app.command("replay-dead")(pipeline_quality.replay_dead)

OneName = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]


@app.command("list")
def list_jobs(json: Json = False) -> None:
    """List the jobs."""
    if json:
        show_json([{"job": job, "does": does} for job, does in JOBS.items()])
    else:
        show_table(("job", "does"), list(JOBS.items()))


@app.command()
def status(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", show_default=False)] = None,
    folder: Root = None,
    json: Json = False,
) -> None:
    """Show the state of one pipeline, or of all that have run here."""
    from moldau.pipelines.run_folder import all_folders, default_root

    with translate_pipeline_errors():
        if name is not None:
            _show_one(_known(open_run_folder(folder, name)), json)
            return
        described = [_as_json(each) for each in all_folders(folder or default_root())]
    if json:
        show_json(described)
        return
    columns = ("name", "job", "state", "batch", "rows", "rows/s", "lag", "pid")
    rows = [
        (each["name"], each["job"], each["state"], *_figures(each["progress"]), each["pid"] if each["live"] else None)
        for each in described
    ]
    show_table(columns, rows, numbers=columns[3:])


@app.command()
def stop(
    name: OneName,
    folder: Root = None,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0, help="How long to wait for it to stop.")
    ] = 120,
) -> None:
    """Stop a pipeline after its current batch, and wait for it; the next run continues from there."""
    with translate_pipeline_errors():
        found = _known(open_run_folder(folder, name))
        if not found.stop(timeout):
            raise CommandError(f"pipeline {name} is not running ({found.state.value})")
    note(f"{name} has stopped")


def _known(folder: "RunFolder") -> "RunFolder":
    if folder.run is None:
        raise CommandError(f"there is no pipeline {folder.name} in {folder.path.parent}; see: moldau pipeline status")
    return folder


def _as_json(folder: "RunFolder") -> dict[str, Any]:
    from moldau.pipelines.run_folder import State

    run, progress, state = folder.run, folder.progress, folder.state
    assert run is not None
    return {
        "name": folder.name,
        "job": run.job,
        "state": state.value,
        "live": state is State.RUNNING,
        "pid": run.pid,
        "master": run.master,
        "started": _moment(run.started_ms),
        "ended": None if run.ended_ms is None else _moment(run.ended_ms),
        "folder": str(folder.path),
        **run.identity,
        "progress": None if progress is None else progress.shape(),
        "parts": [each.shape() for each in folder.parts if each.part],
        "error": folder.error,
    }


def _show_one(folder: "RunFolder", is_json: bool) -> None:
    described = _as_json(folder)
    if is_json:
        show_json(described)
        return
    progress, error = folder.progress, described.pop("error")
    described.pop("progress"), described.pop("live"), described.pop("parts")
    rows: list[tuple[str, object]] = list(described.items())
    if progress is not None:
        parts = [(each.part, each.line) for each in folder.parts if each.part]
        rows += [*(parts or [("progress", progress.line)]), ("at", _moment(progress.at_ms))]
    if error:
        rows.append(("error", error.splitlines()[0]))
    show_table(("", ""), rows)


def _figures(progress: dict[str, Any] | None) -> tuple[object, ...]:
    if progress is None:
        return (None, None, None, None)
    return progress["batch"], progress["rows_total"], round(progress["rows_per_s"]), progress["lag_total"]


def _moment(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")

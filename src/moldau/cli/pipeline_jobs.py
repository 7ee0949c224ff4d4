"""`moldau pipeline run`: one command per job, and the user's own Python files."""

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from moldau.cli import pipeline_activity, pipeline_lake, pipeline_quality
from moldau.cli import pipeline_options as given
from moldau.cli.connection_options import Connection
from moldau.cli.option_groups import expand_option_groups
from moldau.cli.options import Json
from moldau.cli.output import note
from moldau.cli.pipeline_option_groups import BATCH_ROWS, JobOptions, ReadOptions, SessionOptions, Topic
from moldau.cli.pipeline_options import local_or_url, translate_pipeline_errors
from moldau.cli.pipeline_transforms import aggregate, dedupe, transform


class Jobs(TyperGroup):
    """A command that ends in .py is the user's file with a function `transform`."""

    def resolve_command(self, context: Any, arguments: list[str]) -> Any:
        if arguments and arguments[0].partition(":")[0].endswith(".py"):
            arguments = ["transform", "--python", *arguments]
        return super().resolve_command(context, arguments)


app = typer.Typer(cls=Jobs, no_args_is_help=True, help="Run a job, or FILE.py with a function transform(frame).")
for each in (pipeline_activity.activity, pipeline_lake.lake, pipeline_quality.check, transform, aggregate, dedupe):
    app.command()(each)


@app.callback()
def run() -> None:
    """Run a job: see `moldau pipeline run JOB --help`. FILE.py runs its function transform(frame)."""


@app.command()
@expand_option_groups
def archive(
    topic: Topic,
    to: Annotated[
        str, typer.Option("--to", metavar="PATH", show_default=False, help="Write Parquet files to PATH/TOPIC.")
    ],
    reading: ReadOptions,
    running: JobOptions,
    connection: Connection,
) -> None:
    """Archive a topic as Parquet files, each record exactly once, with all that `restore` needs."""
    from moldau.cli.cluster_client import connect
    from moldau.pipelines.archive import Archive
    from moldau.pipelines.run_folder import new_run

    options = running.options(f"archive-{topic}")
    servers = connection.connect_with_own_client()
    source = reading.source(connection, [topic], reading.look_up(connection, [topic]), options.name)
    job = Archive(name=options.name, root=archive_path(to, topic), source=source, connect=lambda: connect(servers))
    if options.eject is not None:
        given.eject(job.flow(source), options)
        return
    with translate_pipeline_errors():
        identity = {"topic": topic, "to": job.root}
        job.run(options.run_config(), new_run("archive", identity, options.master or "local[*]"))
    note(f"{options.name} is done: {job.root}")


@app.command()
@expand_option_groups
def restore(
    root: Annotated[
        str, typer.Option("--archive", metavar="PATH", show_default=False, help="The archive: PATH/TOPIC.")
    ],
    session: SessionOptions,
    connection: Connection,
    to: Annotated[
        str | None, typer.Option("--to", metavar="TOPIC", help="Name of the new topic. Default: the archived name.")
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", "-u", metavar="WHERE", help="Restore up to: @TIME, an offset, or 0:120,1:98."),
    ] = None,
    groups: Annotated[
        str | None,
        typer.Option("--groups", metavar="NAMES", help="Translate the committed offsets of these groups, or of `all`."),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read the topic back and compare counts and checksums.")
    ] = False,
    rows_per_transaction: Annotated[int, typer.Option("--rows-per-transaction", min=1, metavar="N")] = BATCH_ROWS,
    replication_factor: Annotated[int, typer.Option("--replication-factor", show_default=False)] = -1,
    json: Json = False,
) -> None:
    """Restore an archived topic up to a point in time: partitions, order, timestamps, keys, values and headers."""
    from moldau.cli.cluster_client import connect
    from moldau.cli.pipeline_restore import parse_until, show_restored
    from moldau.pipelines.job_runner import run_work
    from moldau.pipelines.restore import Restore
    from moldau.pipelines.run_folder import new_run

    place = local_or_url(root)
    topic = to or place.rstrip("/").rpartition("/")[2]
    options, servers = session.options(f"restore-{topic}"), connection.connect_with_own_client()
    job = Restore(
        root=place,
        topic=topic,
        bootstrap_servers=servers,
        folder=options.folder.path,
        connect=lambda: connect(servers),
        options=connection.options,
        until=parse_until(until),
        groups=tuple(each.strip() for each in groups.split(",")) if groups else (),
        is_verified=verify,
        rows_per_chunk=rows_per_transaction,
        replication_factor=replication_factor,
        on_status=note,
    )
    results: list[Any] = []
    with translate_pipeline_errors():
        identity = {"archive": job.root, "topic": topic}
        run_work(
            lambda spark: results.append(job.run(spark)),
            options.run_config(),
            new_run("restore", identity, options.master or "local[*]"),
        )
    show_restored(results[0], is_json=json, folder=options.folder.path)


def archive_path(to: str, topic: str) -> str:
    return f"{local_or_url(to).rstrip('/')}/{topic}"

"""`moldau pipeline run activity`: the activity pipeline, as a stream or once, or ejected as a script."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from moldau.cli import pipeline_options as given
from moldau.cli.completion import complete_topics
from moldau.cli.connection_options import Connection
from moldau.cli.errors import usage_error
from moldau.cli.option_groups import expand_option_groups
from moldau.cli.output import note
from moldau.cli.pipeline_option_groups import JobOptions, ReadOptions
from moldau.cli.pipeline_options import RunOptions, local_or_url, translate_pipeline_errors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau.pipelines.activity import Activity

REPORT_EVERY_S: Final = 60.0

Raw = Annotated[
    str,
    typer.Option(
        "--topic",
        "-t",
        metavar="TOPIC",
        show_default=False,
        help="The topic of raw events.",
        autocompletion=complete_topics,
    ),
]
Out = Annotated[str | None, typer.Option("--out", metavar="NAME", help="Results go to NAME.events, NAME.counts …")]
Lake = Annotated[
    str | None, typer.Option("--lake", metavar="PATH", help="Parquet files go there, not into the run's folder.")
]
ReportFile = Annotated[Path | None, typer.Option("--report", metavar="FILE.html", help="Where the report goes.")]
ReportEvery = Annotated[
    float,
    typer.Option("--report-every", min=1, metavar="SECONDS", help="While it runs; and always when it ends."),
]
Lateness = Annotated[str, typer.Option("--lateness", metavar="SPAN", help="How late an event may come.")]
Window = Annotated[str, typer.Option("--window", metavar="SPAN", help="What is counted together.")]
Pause = Annotated[str, typer.Option("--pause", metavar="SPAN", help="After so long, a new session begins.")]
Every = Annotated[
    str, typer.Option("--every", metavar="SPAN", help="How often it looks for new records; sooner if it is behind.")
]
Partitions = Annotated[int, typer.Option("--partitions", help="Of result topics that are not there yet.")]


@expand_option_groups
def activity(
    topic: Raw,
    reading: ReadOptions,
    running: JobOptions,
    connection: Connection,
    out: Out = None,
    lake: Lake = None,
    report: ReportFile = None,
    report_every: ReportEvery = REPORT_EVERY_S,
    lateness: Lateness = "10 minutes",
    window: Window = "1 minute",
    pause: Pause = "30 minutes",
    every: Every = "1 second",
    partitions: Partitions = -1,
) -> None:
    """Raw events → checked, each once, counted, in sessions, by load → topics exactly once, Parquet, a report."""
    from moldau.pipelines.activity import Activity
    from moldau.pipelines.fields import span_of

    if reading.until is not None:
        raise usage_error("--until: what is counted over time has no end in the middle; --once goes as far as there is")
    # Not left to Spark: it makes no sessions of a pause that it cannot read, and says nothing.
    with translate_pipeline_errors():
        lateness = span_of(lateness, "--lateness", may_be_none=True)
        every = span_of(every, "--every", may_be_none=True)
        window, pause = span_of(window, "--window"), span_of(pause, "--pause")
    options, servers = running.options(f"activity-{topic}"), connection.plain_servers("activity")
    places = reading.look_up(connection, [topic])
    source = reading.source(connection, [topic], places, options.name)
    job = Activity(
        name=options.name,
        bootstrap_servers=servers,
        topic=topic,
        out=out or f"{topic}.activity",
        lake=local_or_url(lake or str(options.folder.path / "lake")),
        starting=places.starting,
        lateness=lateness,
        window=window,
        pause=pause,
        every=every,
        rows_per_batch_max=reading.rows_per_batch,
        options=connection.options,
        raw_options=source.options,
    )
    if topic in job.topics:
        raise usage_error(f"--topic {topic} is one of those that --out {job.out} writes: the job would never end")
    if options.eject is not None:
        script = job.script(master=options.master, checkpoint=options.checkpoint_place, once=options.once)
        given.eject_script(script, options.eject)
        return
    page = (report or options.folder.path / "report.html").absolute()
    with translate_pipeline_errors():
        _run(_of_known_topic(job, places.topic_ids, options), options, partitions, page, report_every)


def _of_known_topic(job: "Activity", topic_ids: "Mapping[str, str]", options: RunOptions) -> "Activity":
    """The job that goes on in the topic it began with, not in another one of that name."""
    from dataclasses import replace

    from moldau.pipelines.topic_identity import with_known_topics

    source = with_known_topics(job.clean().source, topic_ids, options.folder, options.checkpoint)
    return replace(job, raw_options=source.options)


def _run(job: "Activity", options: RunOptions, partitions: int, page: Path, report_every_s: float) -> None:
    from moldau.cli.cluster_client import connect
    from moldau.pipelines.run_folder import new_run

    with connect(job.bootstrap_servers) as client:
        job.create_topics(client, partitions)
    if options.folder.has_checkpoint:
        note(f"{options.name} goes on where it was: {options.folder.checkpoint}")
    identity = {"topic": job.topic, "out": job.out, "lake": job.lake}
    try:
        job.run(options.conditions(), new_run("activity", identity, options.master or "local[*]"), page, report_every_s)
    finally:
        if page.exists():
            note(f"the report: {page}")
    note(f"{options.name} is done")

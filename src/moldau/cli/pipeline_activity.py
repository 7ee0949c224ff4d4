"""`moldau pipeline run activity`: run the activity pipeline as a stream or once, or write it as a script."""

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
Out = Annotated[
    str | None, typer.Option("--out", metavar="NAME", help="Prefix of the result topics: NAME.events, NAME.counts …")
]
Lake = Annotated[
    str | None,
    typer.Option("--lake", metavar="PATH", help="Directory of the Parquet files; default: in the run's directory."),
]
ReportFile = Annotated[
    Path | None, typer.Option("--report", metavar="FILE.html", help="Write the report to this file.")
]
ReportEvery = Annotated[
    float,
    typer.Option(
        "--report-every", min=1, metavar="SECONDS", help="Report interval; a last report is written at the end."
    ),
]
Lateness = Annotated[str, typer.Option("--lateness", metavar="SPAN", help="Maximum lateness of an event.")]
Window = Annotated[str, typer.Option("--window", metavar="SPAN", help="Length of the counting windows.")]
Pause = Annotated[str, typer.Option("--pause", metavar="SPAN", help="Gap that ends a session.")]
Every = Annotated[
    str, typer.Option("--every", metavar="SPAN", help="Trigger interval; shorter while there is a backlog.")
]
Partitions = Annotated[int, typer.Option("--partitions", help="Partitions of result topics that are created.")]


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
    """Validate, deduplicate, count and sessionise raw events: to topics exactly once, to Parquet and a report."""
    from moldau.pipelines.activity import Activity
    from moldau.pipelines.fields import span_of

    if reading.until is not None:
        raise usage_error("--until is not supported by activity; --once reads up to the end")
    # Spark silently makes no sessions if it cannot parse the pause, so it is parsed here.
    with translate_pipeline_errors():
        lateness = span_of(lateness, "--lateness", may_be_none=True)
        every = span_of(every, "--every", may_be_none=True)
        window, pause = span_of(window, "--window"), span_of(pause, "--pause")
    options, servers = running.options(f"activity-{topic}"), connection.connect_with_own_client()
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
        raise usage_error(f"--topic {topic} is also written by --out {job.out}: the job would never end")
    if options.eject is not None:
        script = job.script(master=options.master, checkpoint=options.checkpoint_location, once=options.once)
        given.eject_script(script, options.eject)
        return
    page = (report or options.folder.path / "report.html").absolute()
    with translate_pipeline_errors():
        _run(_pin_topic_id(job, places.topic_ids, options), options, partitions, page, report_every)


def _pin_topic_id(job: "Activity", topic_ids: "Mapping[str, str]", options: RunOptions) -> "Activity":
    """Return the job bound to the topic id of its first run, so that it fails on a recreated topic."""
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
        note(f"{options.name} continues from its checkpoint: {options.folder.checkpoint}")
    identity = {"topic": job.topic, "out": job.out, "lake": job.lake}
    try:
        job.run(options.run_config(), new_run("activity", identity, options.master or "local[*]"), page, report_every_s)
    finally:
        if page.exists():
            note(f"report: {page}")
    note(f"{options.name} is done")

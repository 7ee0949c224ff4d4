"""`moldau pipeline run transform|aggregate|dedupe`: read topics, apply steps, write a topic exactly once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from moldau.cli import pipeline_options as given
from moldau.cli.connection_options import Connection
from moldau.cli.errors import CommandError, usage_error
from moldau.cli.files import read_text
from moldau.cli.option_groups import expand_option_groups
from moldau.cli.output import note
from moldau.cli.pipeline_option_groups import JobOptions, ReadOptions, To, Topics
from moldau.cli.pipeline_options import RunOptions, translate_pipeline_errors

if TYPE_CHECKING:
    from moldau.pipelines.flow import Flow, Step
    from moldau.pipelines.presets import Aggregate, Figure

FUNCTION_DEFAULT: Final = "transform"

Lateness = Annotated[str, typer.Option("--lateness", metavar="SPAN", help="Maximum lateness of a record.")]
Fields = list[str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicJob:
    """A job of the form source → steps → sink. `identity` describes the job of a checkpoint."""

    job: str
    topics: Sequence[str]
    to: str
    steps: "Sequence[Step]"
    identity: Mapping[str, Any] = field(default_factory=dict)
    sink_options: Mapping[str, str] = field(default_factory=dict)
    writes_changes: bool = False

    @property
    def written(self) -> dict[str, str]:
        """Option → topic."""
        letters = self.sink_options.get("deadLetterTopic")
        return {"--to": self.to} | ({"--dead-letters": letters} if letters else {})

    def run(self, reading: ReadOptions, running: JobOptions, connection: Connection) -> None:
        from moldau.pipelines.flow import Flow, TopicSink
        from moldau.pipelines.presets import ChangesSink

        for option, written in self.written.items():
            if written in self.topics:
                raise usage_error(f"{option} {written} is read too: the job would never end")
        options = running.options(f"{self.job}-{self.topics[0]}")
        places = reading.look_up(connection, self.topics)
        flow = Flow(
            job=self.job,
            name=options.name,
            source=reading.source(connection, self.topics, places, options.name),
            steps=tuple(self.steps),
            sink=(ChangesSink if self.writes_changes else TopicSink)(
                bootstrap_servers=connection.servers,
                topic=self.to,
                options={**connection.options, **self.sink_options},
            ),
        )
        identity = {"topics": list(self.topics), "to": self.to, **self.identity}
        run_or_eject(flow, identity, options, places.topic_ids)


@expand_option_groups
def transform(
    topic: Topics,
    to: To,
    reading: ReadOptions,
    running: JobOptions,
    connection: Connection,
    sql: Annotated[
        Path | None, typer.Option("--sql", metavar="FILE", help="A query on the view `input` with a column `value`.")
    ] = None,
    python: Annotated[
        str | None,
        typer.Option("--python", metavar="FILE.py[:FUNCTION]", help="A function from DataFrame to DataFrame."),
    ] = None,
    step: Annotated[
        list[str] | None,
        typer.Option("--step", metavar="FILE", help="FILE.sql or FILE.py[:FUNCTION]; repeat it for several steps."),
    ] = None,
    dead_letters: Annotated[
        str | None, typer.Option("--dead-letters", metavar="TOPIC", help="Topic for rows that cannot be written.")
    ] = None,
) -> None:
    """Copy topics to a topic exactly once, through an SQL query or a Python function if given."""
    with translate_pipeline_errors():
        job = TopicJob(
            job="transform",
            topics=topic,
            to=to,
            steps=steps_of(sql, python, step or []),
            sink_options={"includeTimestamp": "true"} | ({"deadLetterTopic": dead_letters} if dead_letters else {}),
        )
    job.run(reading, running, connection)


@expand_option_groups
def aggregate(
    topic: Topics,
    to: To,
    reading: ReadOptions,
    running: JobOptions,
    connection: Connection,
    by: Annotated[
        Fields,
        typer.Option(
            "--by", metavar="FIELD", help="Group by this field of the JSON value, or by `key`; may be repeated."
        ),
    ] = None,
    window: Annotated[str, typer.Option("--window", metavar="SPAN", help="Length of the windows.")] = "1 minute",
    slide: Annotated[
        str | None, typer.Option("--slide", metavar="SPAN", help="Interval between overlapping windows.")
    ] = None,
    count: Annotated[
        bool, typer.Option("--count", help="Count records; the default if no other figure is given.")
    ] = False,
    sums: Annotated[
        Fields, typer.Option("--sum", metavar="FIELD", help="Sum of a field; may be repeated, like all of these.")
    ] = None,
    averages: Annotated[Fields, typer.Option("--avg", metavar="FIELD")] = None,
    least: Annotated[Fields, typer.Option("--min", metavar="FIELD")] = None,
    most: Annotated[Fields, typer.Option("--max", metavar="FIELD")] = None,
    distinct: Annotated[
        Fields, typer.Option("--distinct", metavar="FIELD", help="Approximate number of distinct values.")
    ] = None,
    time: Annotated[
        str,
        typer.Option(
            "--time", metavar="FIELD", help="Event time: ISO 8601 or milliseconds. Default: the record's timestamp."
        ),
    ] = "timestamp",
    lateness: Lateness = "10 minutes",
    updates: Annotated[
        bool, typer.Option("--updates", help="Write windows whenever they change, not only when final.")
    ] = False,
) -> None:
    """Aggregate by time window and JSON fields, and write the results to a topic exactly once."""
    from moldau.pipelines.fields import field_of, span_of
    from moldau.pipelines.presets import Aggregate

    requested = {"sum": sums, "avg": averages, "min": least, "max": most, "distinct": distinct}
    with translate_pipeline_errors():
        preset = Aggregate(
            by=[field_of(each, "--by") for each in by or ()],
            window=span_of(window, "--window"),
            slide=None if slide is None else span_of(slide, "--slide"),
            figures=_figures(requested, count=count),
            time=field_of(time, "--time"),
            lateness=span_of(lateness, "--lateness", may_be_none=True),
            updates=updates,
        )
    steps, identity = preset.steps(), _identity(preset)
    TopicJob(job="aggregate", topics=topic, to=to, steps=steps, identity=identity, writes_changes=updates).run(
        reading, running, connection
    )


def _identity(preset: "Aggregate") -> dict[str, Any]:
    """Return what identifies the aggregate of a checkpoint."""
    return {
        "by": [each.name for each in preset.by],
        "window": preset.window if preset.slide is None else f"{preset.window} every {preset.slide}",
        "figures": [each.name for each in preset.figures],
        "time": preset.time.name,
        "updates": preset.updates,
    }


@expand_option_groups
def dedupe(
    topic: Topics,
    to: To,
    reading: ReadOptions,
    running: JobOptions,
    connection: Connection,
    key: Annotated[
        list[str],
        typer.Option(
            "--key",
            "-k",
            metavar="FIELD",
            show_default=False,
            help="Fields of the JSON value, or `key`, that duplicates share.",
        ),
    ],
    lateness: Annotated[
        str, typer.Option("--lateness", metavar="SPAN", help="Time within which duplicates are dropped.")
    ] = "10 minutes",
    time: Annotated[
        str | None,
        typer.Option(
            "--time", metavar="FIELD", help="Event time field; late records are dropped. Default: processing time."
        ),
    ] = None,
) -> None:
    """Write the first record of each key unchanged and drop duplicates, exactly once."""
    from moldau.pipelines.fields import field_of, span_of
    from moldau.pipelines.presets import Dedupe

    with translate_pipeline_errors():
        preset = Dedupe(
            key=[field_of(each, "--key") for each in key],
            lateness=span_of(lateness, "--lateness"),
            time=None if time is None else field_of(time, "--time"),
        )
    identity = {"key": [each.name for each in preset.key], "time": time}
    TopicJob(
        job="dedupe",
        topics=topic,
        to=to,
        steps=preset.steps(),
        identity=identity,
        sink_options={"includeTimestamp": "true"},
    ).run(reading, running, connection)


def run_or_eject(flow: "Flow", identity: dict[str, Any], options: RunOptions, topic_ids: Mapping[str, str]) -> None:
    from moldau.pipelines.job_runner import run_flow
    from moldau.pipelines.run_folder import new_run
    from moldau.pipelines.topic_identity import with_known_topics

    if options.eject is not None:
        given.eject(flow, options)
        return
    with translate_pipeline_errors():
        source = with_known_topics(flow.source, topic_ids, options.folder, options.checkpoint)
        if options.folder.has_checkpoint and not flow.is_bounded:
            note(f"{options.name} continues from its checkpoint: {options.folder.checkpoint}")
        run = new_run(flow.job, identity, options.master or "local[*]")
        run_flow(replace(flow, source=source), options.run_config(), run)
    note(f"{options.name} is done")


def _figures(requested: Mapping[str, Fields], *, count: bool) -> "list[Figure]":
    from moldau.pipelines.fields import field_of
    from moldau.pipelines.presets import Figure

    figures = [Figure(kind, field_of(each, f"--{kind}")) for kind, names in requested.items() for each in names or ()]
    return [Figure("count"), *figures] if count or not figures else figures


def steps_of(sql: Path | None, python: str | None, files: list[str] | None = None) -> "list[Step]":
    from moldau.pipelines.flow import SqlStep

    chosen = [*(["--sql"] if sql else []), *(["--python"] if python else []), *(["--step"] if files else [])]
    if len(chosen) > 1:
        raise usage_error(f"{' and '.join(chosen)} cannot be combined; for several steps, repeat --step")
    if sql is not None:
        return [SqlStep(_text(sql))]
    if python is not None:
        return [_function(python)]
    if files:
        return [_step(each) for each in files]
    # A copy without the partition number, which the other topic may not have.
    return [SqlStep("select key, value, headers, timestamp from input")]


def _step(file: str) -> "Step":
    from moldau.pipelines.flow import SqlStep

    if file.endswith(".sql"):
        return SqlStep(_text(Path(file)))
    if file.partition(":")[0].endswith(".py"):
        return _function(file)
    raise usage_error(f"--step {file}: a step is FILE.sql or FILE.py[:FUNCTION]")


def _function(python: str) -> "Step":
    from moldau.pipelines.function_step import FunctionStep

    file, _, function = python.partition(":")
    step = FunctionStep(_text(Path(file)), file, function or FUNCTION_DEFAULT)
    step.check()
    return step


def _text(path: Path) -> str:
    text = read_text(path)
    if not text.strip():
        raise CommandError(f"{path} is empty")
    return text

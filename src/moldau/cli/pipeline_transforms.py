"""`moldau pipeline run transform|aggregate|dedupe`: from topics through steps to a topic, exactly once."""

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

Lateness = Annotated[str, typer.Option("--lateness", metavar="SPAN", help="How late a record may come.")]
Fields = list[str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicJob:
    """A job of the one shape: source → steps → sink. `identity` is what its checkpoint belongs to."""

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
                raise usage_error(f"{option} {written} is read as well: the job would never end")
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
        Path | None, typer.Option("--sql", metavar="FILE", help="A query over the view `input` that gives a `value`.")
    ] = None,
    python: Annotated[
        str | None, typer.Option("--python", metavar="FILE.py[:FUNCTION]", help="A function, DataFrame to DataFrame.")
    ] = None,
    step: Annotated[
        list[str] | None,
        typer.Option("--step", metavar="FILE", help="FILE.sql or FILE.py[:FUNCTION]; repeated, one after the other."),
    ] = None,
    dead_letters: Annotated[
        str | None, typer.Option("--dead-letters", metavar="TOPIC", help="For rows that cannot be written.")
    ] = None,
) -> None:
    """From topics to a topic, exactly once, through a query or a function; with neither, records are replayed."""
    with translate_pipeline_errors():
        job = TopicJob(
            job="transform",
            topics=topic,
            to=to,
            steps=_steps(sql, python, step or []),
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
            "--by", metavar="FIELD", help="A group for each value of it; may be repeated. Of the JSON value, or key."
        ),
    ] = None,
    window: Annotated[str, typer.Option("--window", metavar="SPAN", help="What is taken together.")] = "1 minute",
    slide: Annotated[
        str | None, typer.Option("--slide", metavar="SPAN", help="How often a window begins, if windows overlap.")
    ] = None,
    count: Annotated[bool, typer.Option("--count", help="Records; so it is if nothing else is asked for.")] = False,
    sums: Annotated[
        Fields, typer.Option("--sum", metavar="FIELD", help="Of a number; may be repeated, as all of these.")
    ] = None,
    averages: Annotated[Fields, typer.Option("--avg", metavar="FIELD")] = None,
    least: Annotated[Fields, typer.Option("--min", metavar="FIELD")] = None,
    most: Annotated[Fields, typer.Option("--max", metavar="FIELD")] = None,
    distinct: Annotated[
        Fields, typer.Option("--distinct", metavar="FIELD", help="About how many different values it has.")
    ] = None,
    time: Annotated[
        str,
        typer.Option("--time", metavar="FIELD", help="When it was: ISO 8601 or milliseconds; else the record's time."),
    ] = "timestamp",
    lateness: Lateness = "10 minutes",
    updates: Annotated[
        bool, typer.Option("--updates", help="Write windows whenever they change, not once when they are final.")
    ] = False,
) -> None:
    """Counts, sums and more by window of time and by fields of JSON values, written to a topic exactly once."""
    from moldau.pipelines.fields import field_of, span_of
    from moldau.pipelines.presets import Aggregate

    asked = {"sum": sums, "avg": averages, "min": least, "max": most, "distinct": distinct}
    with translate_pipeline_errors():
        preset = Aggregate(
            by=[field_of(each, "--by") for each in by or ()],
            window=span_of(window, "--window"),
            slide=None if slide is None else span_of(slide, "--slide"),
            figures=_figures(asked, count=count),
            time=field_of(time, "--time"),
            lateness=span_of(lateness, "--lateness"),
            updates=updates,
        )
    steps, identity = preset.steps(), _identity(preset)
    TopicJob(job="aggregate", topics=topic, to=to, steps=steps, identity=identity, writes_changes=updates).run(
        reading, running, connection
    )


def _identity(preset: "Aggregate") -> dict[str, Any]:
    """What makes it this aggregate and no other."""
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
            help="What repetitions have in common: of the JSON value, or key.",
        ),
    ],
    lateness: Annotated[
        str, typer.Option("--lateness", metavar="SPAN", help="How long after the first a repetition may come.")
    ] = "10 minutes",
    time: Annotated[
        str | None,
        typer.Option(
            "--time", metavar="FIELD", help="Counted by this time, not by when it is read; drops what is later."
        ),
    ] = None,
) -> None:
    """Each key once: the first record that has it, as it came; repetitions are dropped. Exactly once."""
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
            note(f"{options.name} goes on where it was: {options.folder.checkpoint}")
        run = new_run(flow.job, identity, options.master or "local[*]")
        run_flow(replace(flow, source=source), options.conditions(), run)
    note(f"{options.name} is done")


def _figures(asked: Mapping[str, Fields], *, count: bool) -> "list[Figure]":
    from moldau.pipelines.fields import field_of
    from moldau.pipelines.presets import Figure

    figures = [Figure(kind, field_of(each, f"--{kind}")) for kind, names in asked.items() for each in names or ()]
    return [Figure("count"), *figures] if count or not figures else figures


def _steps(sql: Path | None, python: str | None, files: list[str]) -> "list[Step]":
    from moldau.pipelines.flow import SqlStep

    chosen = [*(["--sql"] if sql else []), *(["--python"] if python else []), *(["--step"] if files else [])]
    if len(chosen) > 1:
        raise usage_error(f"{' and '.join(chosen)} do not go together; for several steps, repeat --step")
    if sql is not None:
        return [SqlStep(_text(sql))]
    if python is not None:
        return [_function(python)]
    if files:
        return [_step(each) for each in files]
    # A replay: as it was, but for the number of the partition, which the other topic may not have.
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

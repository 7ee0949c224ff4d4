"""`moldau pipeline run check` and `moldau pipeline replay-dead`: records that violate rules, and their way back."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from moldau.cli.completion import complete_topics
from moldau.cli.connection_options import Connection
from moldau.cli.errors import usage_error
from moldau.cli.files import read_text
from moldau.cli.option_groups import expand_option_groups
from moldau.cli.output import note, show_json, show_table
from moldau.cli.pipeline_option_groups import JobOptions, ReadOptions
from moldau.cli.pipeline_options import eject, translate_pipeline_errors
from moldau.cli.pipeline_transforms import run_or_eject, steps_of

if TYPE_CHECKING:
    from moldau.pipelines.quality.check import Check
    from moldau.pipelines.run_folder import RunFolder

GROUPS_MAX: Final = 100


@expand_option_groups
def check(
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", show_default=False, autocompletion=complete_topics, help="Topic to check.")
    ],
    rules: Annotated[
        Path, typer.Option("--rules", metavar="FILE.yml", show_default=False, help="The rules, by topic.")
    ],
    dead_letters: Annotated[
        str, typer.Option("--dead-letters", metavar="TOPIC", show_default=False, help="Topic for violations.")
    ],
    reading: ReadOptions,
    running: JobOptions,
    connection: Connection,
    to: Annotated[str | None, typer.Option("--to", metavar="TOPIC", help="Topic for the records that pass.")] = None,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE.html", help="Write the report to this file.")
    ] = None,
) -> None:
    """Check JSON values against rules: violations go to dead letters, all others to a topic, exactly once."""
    from moldau.pipelines.quality.check import Check
    from moldau.pipelines.quality.rules import rules_of

    for option, written in (("--dead-letters", dead_letters), ("--to", to)):
        if written == topic:
            raise usage_error(f"{option} {topic} is read too: the job would never end")
    options = running.options(f"check-{topic}")
    with translate_pipeline_errors():
        parsed = rules_of(read_text(rules), topic, str(rules))
    if parsed.references and not (options.once or reading.until):
        raise usage_error(
            "the rule exists_in reads its topic when the job starts; add --once, and run the job regularly"
        )
    places = reading.look_up(connection, [topic])
    source = reading.source(connection, [topic], places, options.name)
    job = Check(name=options.name, source=source, rules=parsed, letters=dead_letters, to=to, options=connection.options)
    if options.eject is not None:
        eject(job.flow(), options)
        return
    page = (report or options.folder.path / "report.html").absolute()
    identity = {"topic": topic, "to": to, "dead_letters": dead_letters}
    try:
        run_or_eject(job.flow(), identity, options, places.topic_ids)
    finally:
        _write_page(page, job, options.folder, topic)


def _write_page(page: Path, job: "Check", folder: "RunFolder", topic: str) -> None:
    from moldau.pipelines.quality.page import check_page

    if not folder.path.exists():
        return
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
    page.write_text(check_page(topic, job.counted, folder.progress, now), encoding="utf-8")
    note(f"report: {page}")


@expand_option_groups
def replay_dead(
    topic: Annotated[
        str,
        typer.Argument(metavar="TOPIC", show_default=False, autocompletion=complete_topics, help="The dead letters."),
    ],
    reading: ReadOptions,
    running: JobOptions,
    connection: Connection,
    to: Annotated[
        str | None, typer.Option("--to", metavar="TOPIC", help="Write to this topic instead of the original one.")
    ] = None,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="REGEX", help="Only letters whose reason matches.")
    ] = None,
    sql: Annotated[
        Path | None, typer.Option("--sql", metavar="FILE", help="A fix: a query on `input` that keeps its columns.")
    ] = None,
    python: Annotated[
        str | None, typer.Option("--python", metavar="FILE.py[:FUNCTION]", help="A fix: a function of a DataFrame.")
    ] = None,
    browse: Annotated[
        bool, typer.Option("--list", help="Show the reasons and an example of each; write nothing.")
    ] = False,
) -> None:
    """Write dead letters back to the topics that they came from, each once, after a fix if one is given."""
    from moldau.pipelines.dead_letters import Replay

    if to == topic:
        raise usage_error(f"--to {topic} is read too: the job would never end")
    options = running.options(f"replay-{topic}")
    places = reading.look_up(connection, [topic])
    source = reading.source(connection, [topic], places, options.name)
    if browse:
        _browse(source, options, is_json=running.json)
        return
    with translate_pipeline_errors():
        fixes = steps_of(sql, python) if sql or python else []
    job = Replay(name=options.name, source=source, to=to, reason=reason, fixes=fixes, options=connection.options)
    run_or_eject(job.flow(), {"topic": topic, "to": to, "reason": reason}, options, places.topic_ids)


def _browse(source: Any, options: Any, *, is_json: bool) -> None:
    from dataclasses import asdict

    from moldau.cli.options import pairs
    from moldau.pipelines.dead_letters import letter_groups
    from moldau.pipelines.job_runner import with_session

    with translate_pipeline_errors():
        found = with_session(
            options.name,
            options.master,
            pairs(options.conf, "--conf"),
            lambda spark, _: letter_groups(spark, source, GROUPS_MAX),
        )
    if is_json:
        show_json([asdict(each) for each in found])
    else:
        show_table(
            ("topic", "reason", "count", "example"),
            [tuple(asdict(each).values()) for each in found],
            numbers=("count",),
        )

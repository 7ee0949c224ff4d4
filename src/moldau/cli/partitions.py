"""`moldau partition`: elect leaders."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moldau.cli.completion import complete_topics
from moldau.cli.errors import CommandError, usage_error
from moldau.cli.files import read_text
from moldau.cli.interrupts import run_async
from moldau.cli.options import BOOTSTRAP_DEFAULT, Bootstrap, Json
from moldau.cli.output import note, show_json, show_table

if TYPE_CHECKING:
    from moldau.client.async_client import AsyncClient
    from moldau.client.reassignments import Outcomes
    from moldau.model.ids import TopicPartition

app = typer.Typer(help="Elect leaders of partitions.", no_args_is_help=True)


@app.callback()
def partition() -> None:
    """Elect leaders of partitions."""


@app.command("elect-leaders")
def elect_leaders(
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC[:PARTITION]",
            help="Only this topic or partition; may be repeated.",
            autocompletion=complete_topics,
        ),
    ] = None,
    file: Annotated[Path | None, typer.Option("--file", metavar="FILE", help="A JSON file as for Kafka.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All partitions of the cluster.")] = False,
    unclean: Annotated[
        bool,
        typer.Option("--unclean", help="Elect a replica that is out of sync if no other is left: records are lost."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip the prompt of --unclean.")] = False,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
    json: Json = False,
) -> None:
    """Elect the preferred (first) replica of each partition as leader, if it is in sync."""
    if sum((bool(topics), file is not None, every)) != 1:
        raise usage_error("select partitions with one of --topic, --file, --all")
    listed = _read(file) if file else None
    if unclean and not yes:
        typer.confirm("Records that the elected replica lacks will be lost. Continue?", abort=True, err=True)
    outcomes = run_async(_elect(bootstrap_servers, topics or [], listed, unclean))
    _report(outcomes, json, is_unclean=unclean)


async def _elect(
    bootstrap_servers: str, topics: list[str], listed: "list[TopicPartition] | None", is_unclean: bool
) -> "Outcomes":
    from moldau.cli.cluster_client import connect_async
    from moldau.client.reassignments import Election, Reassignments

    async with connect_async(bootstrap_servers) as client:
        places = await _named(client, topics) if topics else listed
        return await Reassignments(client).elect(Election.UNCLEAN if is_unclean else Election.PREFERRED, places)


async def _named(client: "AsyncClient", topics: list[str]) -> "list[TopicPartition]":
    from moldau.model.ids import TopicPartition

    places = []
    for text in topics:
        name, _, index = text.partition(":")
        if index and not index.isdecimal():
            raise usage_error(f"--topic {text}: write TOPIC or TOPIC:PARTITION")
        view = await client.describe_topic(name)
        found = [TopicPartition(name, each.index) for each in view.partitions if not index or each.index == int(index)]
        if not found:
            raise CommandError(f"topic {name} has no partition {index}; its last is {len(view.partitions) - 1}")
        places += found
    return list(dict.fromkeys(places))


def _read(path: Path) -> "list[TopicPartition]":
    """`{"partitions": [{"topic": "orders", "partition": 0}]}`"""
    from moldau.client.reassignment_plans import InvalidPlan, decode_partitions

    try:
        places = decode_partitions(read_text(path))
    except InvalidPlan as error:
        raise usage_error(f"{path}: {error}") from error
    if not places:
        raise usage_error(f"{path} contains no partitions")
    return places


def _report(outcomes: "Outcomes", json: bool, *, is_unclean: bool) -> None:
    rows = [
        (*place, "elected" if error is None else _outcome(error.code.name, error.message))
        for place, error in sorted(outcomes.items())
    ]
    if json:
        show_json([{"topic": topic, "partition": index, "outcome": outcome} for topic, index, outcome in rows])
    elif rows:
        show_table(("topic", "partition", "outcome"), rows, numbers=("partition",))
    else:
        note("every partition has a leader" if is_unclean else "the preferred replica already leads every partition")
    failed = [place for place, error in outcomes.items() if error and error.code.name != "ELECTION_NOT_NEEDED"]
    if failed:
        raise CommandError(f"{len(failed)} of {len(outcomes)} elections failed")


def _outcome(code: str, message: str) -> str:
    return "not needed" if code == "ELECTION_NOT_NEEDED" else message

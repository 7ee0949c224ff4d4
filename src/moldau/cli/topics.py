"""`moldau topic`: create, list, describe, alter, delete, trim, analyze."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moldau.cli.completion import complete_topics
from moldau.cli.errors import CommandError, usage_error
from moldau.cli.options import BOOTSTRAP_DEFAULT, Bootstrap, Configs, Json, pairs
from moldau.cli.output import note, show_json, show_table, topic_id_text

if TYPE_CHECKING:
    from moldau.client.async_client import AsyncClient
    from moldau.client.blocking_client import BlockingClient
    from moldau.client.metadata import TopicView
    from moldau.client.types import TopicOutcome
    from moldau.model.ids import TopicPartition

app = typer.Typer(help="Create, list, describe, alter and delete topics.", no_args_is_help=True)

SAMPLE_DEFAULT = 10_000
SAMPLE_MAX = 100_000

NewNames = Annotated[list[str], typer.Argument(metavar="TOPIC…", show_default=False)]
Names = Annotated[list[str], typer.Argument(metavar="TOPIC…", show_default=False, autocompletion=complete_topics)]


@app.command()
def create(
    topics: NewNames,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, help="Number of partitions; default of the broker.")
    ] = None,
    replication_factor: Annotated[
        int | None, typer.Option("--replication-factor", "-r", min=1, help="Replicas of each partition.")
    ] = None,
    config: Configs = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="No error if it exists.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Validate only.")] = False,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
    json: Json = False,
) -> None:
    """Create one or more topics."""
    from moldau.cli.cluster_client import connect
    from moldau.client.types import NewTopic

    configs = pairs(config, "--config")
    new = [NewTopic(name, partitions or -1, replication_factor or -1, configs) for name in topics]
    with connect(bootstrap_servers) as client:
        outcomes = client.create_topics(new, validate_only=dry_run)
    tolerated = ("TOPIC_ALREADY_EXISTS",) if if_not_exists else ()
    _report(outcomes, "could be created" if dry_run else "created", json, tolerated)


@app.command("list")
def list_topics(
    internal: Annotated[bool, typer.Option("--internal", help="Include internal topics.")] = False,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
    json: Json = False,
) -> None:
    """List the topics."""
    from moldau.cli.cluster_client import connect

    with connect(bootstrap_servers) as client:
        topics = [each for each in client.describe_topics() if internal or not each.is_internal]
    if json:
        show_json([_summary(each) for each in topics])
    elif topics:
        rows = [(each.name, len(each.partitions), _replication_factor(each)) for each in topics]
        show_table(("topic", "partitions", "replicas"), rows, numbers=("partitions", "replicas"))
    else:
        note("no topics yet; try: moldau topic create hello")


@app.command()
def describe(
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="[TOPIC…]", show_default=False, autocompletion=complete_topics)
    ] = None,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
    json: Json = False,
) -> None:
    """Show partitions, leaders, replicas, offsets and settings of topics (all if none is named)."""
    from moldau.cli.cluster_client import connect

    with connect(bootstrap_servers) as client:
        views = client.describe_topics(topics)
        for view in views:
            if topics and view.error is not None:
                raise view.error
        shown = [view for view in views if topics or not view.is_internal]
        offsets = client.run(_offsets(client.asynchronous, shown))
        described = [_describe(client, view, offsets) for view in shown]
    if json:
        show_json(described)
        return
    for number, each in enumerate(described):
        if number:
            print()
        _show(each)


@app.command()
def alter(
    topic: Annotated[str, typer.Argument(show_default=False, autocompletion=complete_topics)],
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, help="New number of partitions.")
    ] = None,
    config: Configs = None,
    unset: Annotated[list[str] | None, typer.Option("--unset", metavar="KEY", help="Reset to the default.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Validate only.")] = False,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
    json: Json = False,
) -> None:
    """Add partitions to a topic, or change its settings."""
    from moldau.cli.cluster_client import connect
    from moldau.client.types import Resource, ResourceKind

    values = pairs(config, "--config")
    if partitions is None and not values and not unset:
        raise usage_error("nothing to alter: give --partitions N, --config KEY=VALUE or --unset KEY")
    with connect(bootstrap_servers) as client:
        if values or unset:
            resource = Resource(ResourceKind.TOPIC, topic)
            client.alter_configs(resource, values, removed=unset or (), validate_only=dry_run)
        if partitions is not None:
            for outcome in client.create_partitions({topic: partitions}, validate_only=dry_run):
                if outcome.error is not None:
                    raise outcome.error
    if json:
        show_json([{"name": topic, "partitions": partitions, "configs": values, "unset": unset or [], "error": None}])
    else:
        print(f"topic {topic} {'could be altered' if dry_run else 'altered'}")


@app.command()
def delete(
    topics: Names,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip the prompt.")] = False,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="No error if it does not exist.")] = False,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
    json: Json = False,
) -> None:
    """Delete topics with all their records."""
    from moldau.cli.cluster_client import connect

    if not yes and sys.stdin.isatty():
        typer.confirm(f"Delete {', '.join(topics)} with all records?", abort=True, err=True)
    with connect(bootstrap_servers) as client:
        outcomes = client.delete_topics(topics)
    _report(outcomes, "deleted", json, ("UNKNOWN_TOPIC_OR_PARTITION",) if if_exists else ())


@app.command()
def trim(
    topic: Annotated[str, typer.Argument(show_default=False, autocompletion=complete_topics)],
    before: Annotated[
        str,
        typer.Option("--before", metavar="WHERE", show_default=False, help="end, -10, @2026-01-01, @-7d, an offset."),
    ],
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Of this partition only; may be repeated.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be deleted.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip the prompt.")] = False,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
    json: Json = False,
) -> None:
    """Delete the oldest records of a topic, up to a position. Consumers continue behind them."""
    from moldau.cli.interrupts import run_async
    from moldau.cli.positions import parse_position
    from moldau.cli.topic_trim import trim_topic

    position = parse_position(before, "--before")
    run_async(trim_topic(bootstrap_servers, topic, position, partition, dry_run=dry_run, yes=yes, json=json))


@app.command()
def analyze(
    topic: Annotated[str, typer.Argument(show_default=False, autocompletion=complete_topics)],
    sample: Annotated[
        int, typer.Option("--sample", min=1, max=SAMPLE_MAX, help="About how many of the newest records to read.")
    ] = SAMPLE_DEFAULT,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
    json: Json = False,
) -> None:
    """Show size, times and rate of each partition, and batches, compression, record sizes and keys of a sample."""
    from moldau.cli.interrupts import run_async
    from moldau.cli.topic_analyze import analyze as analyze_topic

    run_async(analyze_topic(bootstrap_servers, topic, sample, json=json))


def _report(outcomes: "Sequence[TopicOutcome]", done: str, json: bool, tolerated: Sequence[str]) -> None:
    failed = [each for each in outcomes if each.error is not None and each.error.code.name not in tolerated]
    if json:
        show_json([_outcome(each) for each in outcomes])
    else:
        for each in outcomes:
            if each not in failed:
                print(f"topic {each.name} {'unchanged' if each.error else done}")
    if failed:
        raise CommandError("; ".join(f"topic {each.name}: {each.error and each.error.message}" for each in failed))


def _outcome(outcome: "TopicOutcome") -> dict[str, Any]:
    error = outcome.error
    return {
        "name": outcome.name,
        "topic_id": topic_id_text(outcome.topic_id),
        "partitions": outcome.partitions if outcome.partitions >= 0 else None,
        "replication_factor": outcome.replication_factor if outcome.replication_factor >= 0 else None,
        "error": None if error is None else {"code": error.code.name, "message": error.message},
    }


def _summary(topic: "TopicView") -> dict[str, Any]:
    return {
        "name": topic.name,
        "topic_id": topic_id_text(topic.topic_id),
        "is_internal": topic.is_internal,
        "partitions": len(topic.partitions),
        "replication_factor": _replication_factor(topic),
    }


def _replication_factor(topic: "TopicView") -> int:
    return max((len(each.replicas) for each in topic.partitions), default=0)


async def _offsets(client: "AsyncClient", topics: "list[TopicView]") -> "dict[tuple[TopicPartition, int], int]":
    """Return start and end offsets, of leaders that respond in time."""
    from moldau.cli.partial_results import available_offsets
    from moldau.client.types import EARLIEST, LATEST
    from moldau.model.ids import TopicPartition

    led = [TopicPartition(topic.name, each.index) for topic in topics for each in topic.partitions if each.leader >= 0]
    return await available_offsets(client, [(place, at) for place in led for at in (EARLIEST, LATEST)])


def _describe(
    client: "BlockingClient", topic: "TopicView", offsets: "dict[tuple[TopicPartition, int], int]"
) -> dict[str, Any]:
    from moldau.client.types import EARLIEST, LATEST
    from moldau.model.ids import TopicPartition

    partitions = []
    for each in topic.partitions:
        place = TopicPartition(topic.name, each.index)
        partitions.append(
            {
                "partition": each.index,
                "leader": each.leader if each.leader >= 0 else None,
                "leader_epoch": each.leader_epoch,
                "replicas": list(each.replicas),
                "isr": list(each.isr),
                "offline": list(each.offline),
                "start_offset": offsets.get((place, EARLIEST)),
                "end_offset": offsets.get((place, LATEST)),
            }
        )
    return {**_summary(topic), "configs": _own_configs(client, topic.name), "partitions": partitions}


def _own_configs(client: "BlockingClient", name: str) -> dict[str, str | None] | None:
    """Return the settings changed for this topic; None if the cluster does not allow or support that."""
    from moldau.client.types import ConfigSource, Resource, ResourceKind
    from moldau.model.errors import ClusterAuthorizationFailed, TopicAuthorizationFailed, UnsupportedVersion

    try:
        configs = client.describe_configs(Resource(ResourceKind.TOPIC, name))
    except (UnsupportedVersion, TopicAuthorizationFailed, ClusterAuthorizationFailed):
        return None
    return {each.name: each.value for each in configs if each.source == ConfigSource.TOPIC}


def _show(topic: dict[str, Any]) -> None:
    partitions = topic["partitions"]
    records = sum(
        each["end_offset"] - each["start_offset"]
        for each in partitions
        if each["end_offset"] is not None and each["start_offset"] is not None
    )
    print(f"topic {topic['name']}  id {topic['topic_id'] or '-'}  partitions {len(partitions)}  ", end="")
    print(f"replicas {topic['replication_factor']}  records {records}")
    for name, value in (topic["configs"] or {}).items():
        print(f"  {name}={value}")
    columns = ("partition", "leader", "epoch", "replicas", "isr", "offline", "start", "end")
    keys = ("partition", "leader", "leader_epoch", "replicas", "isr", "offline", "start_offset", "end_offset")
    rows = [[each[key] for key in keys] for each in partitions]
    show_table(columns, rows, numbers=("partition", "leader", "epoch", "start", "end"))

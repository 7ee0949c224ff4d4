"""`moldau queue dead`: list, replay and purge the dead letters of a queue."""

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Annotated, Final

import typer

from moldau.cli.completion import complete_groups, complete_topics
from moldau.cli.errors import CommandError
from moldau.cli.options import BOOTSTRAP_DEFAULT, Bootstrap, Json
from moldau.cli.output import note, show_json
from moldau.cli.standard_streams import write_out

if TYPE_CHECKING:
    from moldau.client.blocking_client import BlockingClient
    from moldau.model.ids import TopicPartition
    from moldau.records.record import Headers, Record

REPLAY_RECORDS: Final = 500  # in one batch of a partition
_CONTEXT: Final = re.compile(r"_+dlq\.errors\.")  # headers that the broker adds to a dead letter (KIP-1191)

app = typer.Typer(help="List, replay and purge jobs that were given up.", no_args_is_help=True)

Topic = Annotated[str, typer.Argument(show_default=False, autocompletion=complete_topics)]
Group = Annotated[
    str | None,
    typer.Option(
        "--group", "-g", help="The share group; by default of the topic's name.", autocompletion=complete_groups
    ),
]


@app.command("list")
def list_dead(
    topic: Topic,
    group: Group = None,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Stop after this many.")] = 20,
    template: Annotated[str, typer.Option("--format", metavar="TEXT", help="As of `moldau consume`.")] = "%p@%o %h %v",
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
    json: Json = False,
) -> None:
    """Print the first dead letters; their headers say where they come from and why."""
    from moldau.cli.cluster_client import connect
    from moldau.cli.queue_records import extents, records_between
    from moldau.cli.record_format import compile_template, to_json

    formatter = compile_template(template)
    with connect(bootstrap_servers) as client:
        dead = _required_topic(client, group or topic)
        found = [
            (place.partition, record)
            for place, (start, end) in extents(client, dead).items()
            for _, record in zip(range(count), records_between(client, place, start, end), strict=False)
        ][:count]
    if json:
        show_json([to_json(dead, partition, record) for partition, record in found])
    for partition, record in () if json else found:
        write_out(formatter(dead, partition, record))


@app.command()
def replay(
    topic: Topic,
    group: Group = None,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="Stop after this many.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Do not delete them from the dead-letter topic.")] = False,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
) -> None:
    """Put dead letters back into the queue, each with a full number of attempts, and delete them.

    When the command is interrupted, the last ones may be in both topics. A topic that several groups read delivers them
    to all of its groups.
    """
    from moldau.cli.cluster_client import connect
    from moldau.cli.queue_records import extents, records_between

    replayed = 0
    with connect(bootstrap_servers) as client:
        dead = _required_topic(client, group or topic)
        partitions = len(client.describe_topic(topic).partitions)
        for place, (start, end) in extents(client, dead).items():
            slice_: list[Record] = []
            for record in records_between(client, place, start, end):
                if count is not None and replayed + len(slice_) >= count:
                    break
                slice_.append(record)
                if len(slice_) == REPLAY_RECORDS:
                    replayed += _replay(client, topic, partitions, place, slice_, keeps=keep)
                    slice_ = []
            replayed += _replay(client, topic, partitions, place, slice_, keeps=keep)
    note(f"put {replayed} dead letters back into {topic}")


def _replay(
    client: "BlockingClient",
    topic: str,
    partitions: int,
    place: "TopicPartition",
    records: "list[Record]",
    *,
    keeps: bool,
) -> int:
    """Produce copies without the broker's headers, then delete the originals."""
    from moldau.client.partitioner import partition_for_key

    if not records:
        return 0
    batches = defaultdict(list)
    for number, record in enumerate(records):
        target = number % partitions if record.key is None else partition_for_key(record.key, partitions)
        batches[target].append((record.timestamp, record.key, record.value, _own_headers(record.headers)))
    for target, batch in batches.items():
        client.produce(topic, target, batch)
    if not keeps:
        client.delete_records(place.topic, place.partition, records[-1].offset + 1)
    return len(records)


def _own_headers(headers: "Headers") -> "Headers":
    return tuple(each for each in headers if not _CONTEXT.match(each[0]))


@app.command()
def purge(
    topic: Topic,
    group: Group = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip the prompt.")] = False,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
) -> None:
    """Delete all dead letters."""
    from moldau.cli.cluster_client import connect
    from moldau.cli.queue_records import extents

    with connect(bootstrap_servers) as client:
        dead = _required_topic(client, group or topic)
        filled = {place: end for place, (start, end) in extents(client, dead).items() if start < end}
        if filled and not yes:
            typer.confirm(f"Delete all records of {dead}?", abort=True)
        for place, end in filled.items():
            client.delete_records(place.topic, place.partition, end)
    note(f"purged {dead}")


def dead_letter_topic(client: "BlockingClient", group: str) -> str | None:
    """The dead-letter topic of a group, from its configs."""
    from moldau.client.queues import DEAD_LETTER_TOPIC
    from moldau.client.types import Resource, ResourceKind

    configs = client.describe_configs(Resource(ResourceKind.GROUP, group))
    return next((each.value for each in configs if each.name == DEAD_LETTER_TOPIC and each.value), None)


def _required_topic(client: "BlockingClient", group: str) -> str:
    topic = dead_letter_topic(client, group)
    if topic is None:
        raise CommandError(
            f"group {group} has no dead-letter topic (errors.deadletterqueue.topic.name); "
            "moldau queue create … --dead-letters TOPIC sets it"
        )
    return topic

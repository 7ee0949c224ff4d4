"""`moldau consume`: print the records of a topic as lines."""

from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moldau.cli.completion import complete_topics
from moldau.cli.errors import usage_error
from moldau.cli.interrupts import run_async
from moldau.cli.options import BOOTSTRAP_DEFAULT, Bootstrap, in_utf8
from moldau.cli.schema_values import Form, KeyForm, RegistryUrl, ValueForm
from moldau.cli.standard_streams import stop_on_broken_pipe, write_out

if TYPE_CHECKING:
    from moldau.cli.partition_reader import PartitionReader
    from moldau.cli.record_format import Formatter
    from moldau.client.positions import Position

app = typer.Typer()


@app.command()
def consume(
    topic: Annotated[str, typer.Argument(show_default=False, autocompletion=complete_topics)],
    start: Annotated[
        str,
        typer.Option("--from", "-f", metavar="WHERE", help="start, end, -10, @2026-01-01T00:00:00, @-1h or an offset."),
    ] = "start",
    until: Annotated[
        str | None,
        typer.Option("--until", "-u", metavar="WHERE", help="Stop at: end (as of now), @TIME or an offset."),
    ] = None,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="Stop after this many records.")] = None,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Read this partition only; may be repeated.")
    ] = None,
    template: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="TEXT",
            help="%t topic, %p partition, %o offset, %T time, %k key, %v value, %h headers, %K %V sizes; or json.",
        ),
    ] = "%v",
    json: Annotated[bool, typer.Option("--json", help="Same as --format json: one object per line.")] = False,
    group: Annotated[
        str | None,
        typer.Option("--group", "-g", help="Join this consumer group and commit offsets."),
    ] = None,
    key_form: KeyForm = Form.BYTES,
    value_form: ValueForm = Form.BYTES,
    registry: RegistryUrl = None,
    read_committed: Annotated[
        bool, typer.Option("--read-committed", help="Skip records of open and aborted transactions.")
    ] = False,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
) -> None:
    """Read a topic and print its records. Runs until it is stopped, unless --until or --count is given."""
    from moldau.cli.group_consumer import consume_in_group
    from moldau.cli.positions import parse_position
    from moldau.cli.schema_values import formatter_of
    from moldau.client.types import Isolation

    begin = parse_position(start, "--from")
    finish = None if until is None else parse_position(until, "--until")
    formatter = formatter_of("json" if json else template, registry, {"key": key_form, "value": value_form})
    if group is not None:
        if not group:
            raise usage_error("--group is empty")
        if finish is not None or partition:
            raise usage_error("--until and --partition cannot be combined with --group")
        in_utf8(topic, "TOPIC")
        in_utf8(group, "--group")
        consume_in_group(bootstrap_servers, topic, group, begin, count, formatter, is_committed_only=read_committed)
        return
    isolation = Isolation.READ_COMMITTED if read_committed else Isolation.READ_UNCOMMITTED
    run_async(_consume(bootstrap_servers, topic, partition, begin, finish, isolation, count, formatter))


async def _consume(
    bootstrap: str,
    topic: str,
    partitions: list[int] | None,
    begin: "Position",
    finish: "Position | None",
    isolation: Any,
    count: int | None,
    formatter: "Formatter",
) -> None:
    from moldau.cli.cluster_client import connect_async
    from moldau.cli.partition_reader import PartitionReader
    from moldau.cli.positions import resolve_end
    from moldau.client.positions import AtTime, extents, resolve
    from moldau.node.ports.clock import SystemClock

    async with connect_async(bootstrap) as client:
        view = await client.describe_topic(topic)
        places = _places(topic, [each.index for each in view.partitions], partitions)
        await client.topic(topic)
        known = await extents(client, places, isolation)
        positions = await resolve(client, begin, known, isolation)
        reader = PartitionReader(client, SystemClock(), positions, isolation=isolation)
        if isinstance(finish, AtTime) and finish.timestamp_ms > SystemClock().wall_ms():
            reader.until_ms = finish.timestamp_ms
        elif finish is not None:
            reader.ends = await resolve_end(client, finish, known, isolation)
        await _print(reader, count, formatter)


def _places(topic: str, there: list[int], wanted: list[int] | None) -> list[Any]:
    from moldau.model.ids import TopicPartition

    for each in wanted or ():
        if each not in there:
            raise usage_error(f"topic {topic} has {len(there)} partitions, partition {each} does not exist")
    return [TopicPartition(topic, each) for each in sorted(set(wanted or there))]


async def _print(reader: "PartitionReader", count: int | None, formatter: "Formatter") -> None:
    left = count
    async with aclosing(reader.chunks()) as chunks, stop_on_broken_pipe():
        async for place, records in chunks:
            shown = records if left is None else records[:left]
            lines: list[bytes] = []
            try:
                lines.extend(formatter(place.topic, place.partition, record) for record in shown)
            finally:  # also those before a record that cannot be decoded
                write_out(b"".join(lines))
            if left is not None:
                left -= len(shown)
                if left <= 0:
                    return

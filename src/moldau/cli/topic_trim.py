"""`moldau topic trim`: delete the records before a position."""

import sys
from typing import TYPE_CHECKING, Any

import typer

from moldau.cli.errors import usage_error
from moldau.cli.output import show_json, show_table

if TYPE_CHECKING:
    from moldau.client.async_client import AsyncClient
    from moldau.client.positions import Position
    from moldau.model.ids import TopicPartition


async def trim_topic(
    bootstrap: str,
    topic: str,
    before: "Position",
    partitions: list[int] | None,
    *,
    dry_run: bool,
    yes: bool,
    json: bool,
) -> None:
    """Delete the records before a position in each partition, after a look at what this is."""
    from moldau.cli.cluster_client import connect_async
    from moldau.client.positions import extents, resolve
    from moldau.client.types import Isolation
    from moldau.model.ids import TopicPartition

    async with connect_async(bootstrap) as client:
        view = await client.describe_topic(topic)
        known = [each.index for each in view.partitions]
        for each in partitions or ():
            if each not in known:
                raise usage_error(f"topic {topic} has {len(known)} partitions, partition {each} does not exist")
        places = [TopicPartition(topic, each) for each in sorted(set(partitions or known))]
        found = await extents(client, places, Isolation.READ_UNCOMMITTED)
        ends = await resolve(client, before, found, Isolation.READ_UNCOMMITTED)
        rows = [
            {"partition": place.partition, "start": found[place].start, "new_start": ends[place]} for place in places
        ]
        count = sum(each["new_start"] - each["start"] for each in rows)
        if not dry_run and count:
            if not yes and sys.stdin.isatty():
                typer.confirm(f"Delete {count} records of {topic} for good?", abort=True, err=True)
            await _delete(client, rows, {place.partition: place for place in places})
    _show(topic, rows, count, dry_run=dry_run, json=json)


async def _delete(client: "AsyncClient", rows: list[dict[str, Any]], places: "dict[int, TopicPartition]") -> None:
    for row in rows:
        if row["new_start"] > row["start"]:
            place = places[row["partition"]]
            row["new_start"] = await client.delete_records(place.topic, place.partition, row["new_start"])


def _show(topic: str, rows: list[dict[str, Any]], count: int, *, dry_run: bool, json: bool) -> None:
    if json:
        show_json({"topic": topic, "records": count, "is_dry_run": dry_run, "partitions": rows})
        return
    columns = ("partition", "start", "new start", "records")
    shown = [(each["partition"], each["start"], each["new_start"], each["new_start"] - each["start"]) for each in rows]
    show_table(columns, shown, numbers=columns)
    print(f"{count} records of {topic} {'would be deleted' if dry_run else 'deleted'}")

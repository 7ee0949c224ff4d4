"""`moldau group`: list, describe, members, reset-offsets, delete, delete-offsets."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moldau.cli.completion import complete_groups, complete_topics
from moldau.cli.errors import CommandError, usage_error
from moldau.cli.interrupts import run_async
from moldau.cli.options import BOOTSTRAP_DEFAULT, Bootstrap, Json
from moldau.cli.output import note, show_json, show_table
from moldau.cli.partial_results import RESPONSES_WAIT_MS, fail_if_unresponsive

if TYPE_CHECKING:
    from moldau.client.groups import DescribedGroup, Groups

app = typer.Typer(help="Show consumer groups and reset their offsets.", no_args_is_help=True)

Group = Annotated[str, typer.Argument(show_default=False, autocompletion=complete_groups)]
Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        "-t",
        metavar="TOPIC[:PARTITION]",
        help="Only this topic or partition; may be repeated.",
        autocompletion=complete_topics,
    ),
]


@app.command("list")
def list_groups(bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT, json: Json = False) -> None:
    """List the groups with state and protocol."""

    async def work(groups: "Groups") -> None:
        found, silent = await groups.list_reachable(RESPONSES_WAIT_MS)
        if json:
            show_json([{"group": each.group, "state": each.state, "protocol": each.protocol} for each in found])
        else:
            show_table(("group", "state", "protocol"), [(each.group, each.state, each.protocol) for each in found])
        fail_if_unresponsive(silent, "groups")

    _run(bootstrap_servers, work)


@app.command()
def describe(group: Group, bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT, json: Json = False) -> None:
    """Show a group's committed offsets (of a share group: start offsets), lag and members by partition."""
    from moldau.cli.group_offsets import Progress, ShareProgress, progress, share_progress

    async def work(groups: "Groups") -> None:
        described = await _described(groups, group)
        rows: Sequence[Progress | ShareProgress]
        columns: tuple[str, ...]
        if described.is_share_group:
            rows, columns = await share_progress(groups, described), ShareProgress._fields
        else:
            rows, columns = await progress(groups, described), Progress._fields
        if json:
            show_json(
                {
                    "group": group,
                    "state": described.state,
                    "protocol": described.protocol,
                    "assignor": described.assignor,
                    "coordinator": described.coordinator,
                    "lag": sum(row.lag or 0 for row in rows),
                    "partitions": [row._asdict() for row in rows],
                }
            )
            return
        note(f"{group}: {described.state}, {len(described.members)} members, {described.protocol} protocol")
        numbers = {"partition", "committed", "start", "end", "lag", "members"}
        show_table(columns, rows, numbers=tuple(each for each in columns if each in numbers))

    _run(bootstrap_servers, work)


@app.command()
def members(group: Group, bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT, json: Json = False) -> None:
    """List the members of a group and their partitions."""

    async def work(groups: "Groups") -> None:
        described = await _described(groups, group)
        if json:
            show_json(
                [
                    {
                        "member": each.member_id,
                        "instance": each.instance_id,
                        "client": each.client_id,
                        "host": each.host,
                        "partitions": [str(place) for place in each.partitions],
                    }
                    for each in described.members
                ]
            )
            return
        rows = [
            (each.member_id, each.instance_id, each.client_id, each.host, len(each.partitions), each.partitions)
            for each in described.members
        ]
        show_table(("member", "instance", "client", "host", "count", "partitions"), rows, numbers=("count",))

    _run(bootstrap_servers, work)


@app.command("reset-offsets")
def reset_offsets(
    group: Group,
    topics: Topics = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="WHERE", help="start, end, -10, @2026-01-01T00:00:00 or an offset."),
    ] = None,
    shift: Annotated[
        int | None, typer.Option("--shift", metavar="N", help="Move by N records (negative: back).")
    ] = None,
    by_duration: Annotated[
        str | None, typer.Option("--by-duration", metavar="90m", help="Move back by a time: 30s, 90m, 12h, 7d.")
    ] = None,
    from_file: Annotated[
        Path | None, typer.Option("--from-file", metavar="FILE", help="A file with lines of topic,partition,offset.")
    ] = None,
    execute: Annotated[
        bool, typer.Option("--execute", help="Commit the new offsets; otherwise only show them.")
    ] = False,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
    json: Json = False,
) -> None:
    """Reset the offsets of a group without members, also of a share group. --execute commits the new ones."""
    from moldau.cli.group_offsets import Plan, committed_offsets, plan, set_offsets

    given = [each for each in (to, shift, by_duration, from_file) if each is not None]
    if len(given) != 1:
        raise usage_error("give one of --to, --shift, --by-duration, --from-file")
    wanted = Plan(topics or [], to, shift, by_duration, from_file)

    async def work(groups: "Groups") -> None:
        described = await _described_if_there(groups, group)
        if described is not None and described.is_live:
            names = ", ".join(sorted({each.client_id for each in described.members}))
            raise CommandError(
                f"group {group} has {len(described.members)} members ({names}): stop them first, or their commits "
                "would overwrite the offsets"
            )
        is_share_group = described is not None and described.is_share_group
        moves = await plan(groups, await committed_offsets(groups, group, is_share_group=is_share_group), wanted)
        if execute:
            offsets = {place: new for place, _, new in moves}
            await set_offsets(groups, group, offsets, is_share_group=is_share_group)
        if json:
            show_json(
                {
                    "executed": execute,
                    "offsets": [
                        {"topic": place.topic, "partition": place.partition, "from": old, "to": new}
                        for place, old, new in moves
                    ],
                }
            )
            return
        rows = [(place.topic, place.partition, old, new) for place, old, new in moves]
        show_table(("topic", "partition", "from", "to"), rows, numbers=("partition", "from", "to"))
        note("offsets committed" if execute else "nothing was changed; add --execute to commit these offsets")

    _run(bootstrap_servers, work)


@app.command()
def delete(
    groups: Annotated[list[str], typer.Argument(metavar="GROUP…", show_default=False, autocompletion=complete_groups)],
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
) -> None:
    """Delete groups without members, and their offsets."""

    from moldau.model.errors import KafkaError

    async def work(known: "Groups") -> None:
        failed = 0
        for group in groups:
            try:
                await known.delete(group)
                note(f"deleted {group}")
            except KafkaError as error:
                failed += 1
                note(f"{group}: {error.message}")
        if failed:
            raise CommandError(f"{failed} of {len(groups)} groups could not be deleted")

    _run(bootstrap_servers, work)


@app.command("delete-offsets")
def delete_offsets(
    group: Group,
    topics: Topics = None,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
) -> None:
    """Delete a group's offsets of topics that it no longer reads."""
    from moldau.cli.group_offsets import chosen, delete_start_offsets

    if not topics:
        raise usage_error("name the topics with --topic")

    async def work(known: "Groups") -> None:
        described = await _described_if_there(known, group)
        if described is not None and described.is_share_group:
            await delete_start_offsets(known, group, topics)
            note(f"deleted the start offsets of {group} in {', '.join(sorted(set(topics)))}")
            return
        places = chosen(await known.offsets(group), topics)
        failed = await known.delete_offsets(group, places)
        for place, error in failed.items():
            note(f"{place}: {error.message}")
        if failed:
            raise CommandError(f"{len(failed)} of {len(places)} offsets could not be deleted")
        note(f"deleted {len(places)} offsets of {group}")

    _run(bootstrap_servers, work)


async def _described(groups: "Groups", group: str) -> "DescribedGroup":
    from moldau.model.errors import GroupIdNotFound

    try:
        return await groups.describe(group)
    except GroupIdNotFound:
        raise CommandError(f"there is no group {group}; moldau group list shows the groups") from None


async def _described_if_there(groups: "Groups", group: str) -> "DescribedGroup | None":
    from moldau.model.errors import GroupIdNotFound

    try:
        return await groups.describe(group)
    except GroupIdNotFound:
        return None  # offsets may be set before the first member joins


def _run(bootstrap_servers: str, work: Any) -> None:
    from moldau.cli.cluster_client import connect_async
    from moldau.client.groups import Groups

    async def connected() -> None:
        async with connect_async(bootstrap_servers) as client:
            await work(Groups(client))

    run_async(connected())

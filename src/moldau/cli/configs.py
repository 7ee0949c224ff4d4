"""`moldau config`: show and change settings of topics, brokers, groups and client metrics."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moldau.cli.errors import usage_error
from moldau.cli.options import BOOTSTRAP_DEFAULT, Bootstrap, Json, pairs
from moldau.cli.output import note, show_json, show_table

if TYPE_CHECKING:
    from moldau.client.types import ConfigEntry, Resource

app = typer.Typer(help="Show and change settings of topics, brokers and groups.", no_args_is_help=True)


class Kind(StrEnum):
    """Types of resources that have settings."""

    TOPIC = "topic"
    BROKER = "broker"
    GROUP = "group"
    CLIENT_METRICS = "client-metrics"


Of = Annotated[Kind, typer.Argument(metavar="topic|broker|group|client-metrics", show_default=False)]
Name = Annotated[str, typer.Argument(show_default=False, help="A topic, group, or broker id (`default`: all brokers).")]


@app.command()
def get(
    kind: Of,
    name: Name,
    keys: Annotated[list[str] | None, typer.Argument(metavar="[KEY…]", show_default=False)] = None,
    every: Annotated[bool, typer.Option("--all", "-a", help="Show the defaults too.")] = False,
    documentation: Annotated[bool, typer.Option("--doc", help="Show the documentation of each setting.")] = False,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
    json: Json = False,
) -> None:
    """Show the settings that were changed, the named ones, or all (--all)."""
    from moldau.cli.cluster_client import connect

    with connect(bootstrap_servers) as client:
        entries = client.describe_configs(_resource(kind, name), keys or None, with_documentation=documentation)
    shown = [each for each in entries if keys or every or _is_own(kind, each)]
    missing = sorted(set(keys or ()).difference(each.name for each in entries))
    if missing:
        raise usage_error(f"{kind.value} {name} has no setting {', '.join(missing)}; see: moldau config get … --all")
    if json:
        show_json([_entry(each, documentation) for each in shown])
    elif not shown:
        note(f"{kind.value} {name} has only default settings; --all shows them")
    else:
        _show(shown, documentation)


@app.command("set")
def set_configs(
    kind: Of,
    name: Name,
    settings: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE…]", show_default=False)] = None,
    unset: Annotated[list[str] | None, typer.Option("--unset", metavar="KEY", help="Reset to the default.")] = None,
    append: Annotated[
        list[str] | None, typer.Option("--append", metavar="KEY=VALUE", help="Append to a list of values.")
    ] = None,
    subtract: Annotated[
        list[str] | None, typer.Option("--subtract", metavar="KEY=VALUE", help="Remove from a list of values.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Validate only.")] = False,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
    json: Json = False,
) -> None:
    """Change settings; others keep their values."""
    from moldau.cli.cluster_client import connect

    values, added, taken = pairs(settings, "setting"), pairs(append, "--append"), pairs(subtract, "--subtract")
    if not (values or unset or added or taken):
        raise usage_error("nothing to change: give KEY=VALUE or --unset KEY")
    with connect(bootstrap_servers) as client:
        client.alter_configs(
            _resource(kind, name),
            values,
            removed=unset or (),
            appended=added,
            subtracted=taken,
            validate_only=dry_run,
        )
    if json:
        changes = {"set": values, "unset": unset or [], "append": added, "subtract": taken}
        show_json({"kind": kind.value, "name": name, **changes, "is_dry_run": dry_run})
    else:
        print(f"{kind.value} {name} {'could be changed' if dry_run else 'changed'}")


def _is_own(kind: Kind, entry: "ConfigEntry") -> bool:
    """Return whether the setting was changed for this resource, not for the whole cluster."""
    return entry.source_name == "topic" if kind is Kind.TOPIC else not entry.is_default


def _resource(kind: Kind, name: str) -> "Resource":
    from moldau.client.types import Resource, ResourceKind

    kinds = {
        Kind.TOPIC: ResourceKind.TOPIC,
        Kind.BROKER: ResourceKind.BROKER,
        Kind.GROUP: ResourceKind.GROUP,
        Kind.CLIENT_METRICS: ResourceKind.CLIENT_METRICS,
    }
    if kind is not Kind.BROKER:
        return Resource(kinds[kind], name)
    if name in ("default", "all", ""):
        return Resource(ResourceKind.BROKER, "")
    if not name.isdecimal():
        raise usage_error(f"{name} is not a broker id; use a number, or `default` for all brokers")
    return Resource(ResourceKind.BROKER, name)


def _entry(entry: "ConfigEntry", with_documentation: bool) -> dict[str, Any]:
    fields = {
        "name": entry.name,
        "value": entry.value,
        "source": entry.source_name,
        "is_default": entry.is_default,
        "is_sensitive": entry.is_sensitive,
        "is_read_only": entry.is_read_only,
    }
    return {**fields, "documentation": entry.documentation} if with_documentation else fields


def _show(entries: "list[ConfigEntry]", with_documentation: bool) -> None:
    columns: tuple[str, ...] = ("setting", "value", "source")
    rows: list[tuple[object, ...]] = [
        (each.name, "(hidden)" if each.is_sensitive else each.value, each.source_name) for each in entries
    ]
    if with_documentation:
        columns = (*columns, "documentation")
        rows = [(*row, each.documentation or "") for row, each in zip(rows, entries, strict=True)]
    show_table(columns, rows)

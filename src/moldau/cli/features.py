"""`moldau features`: list and upgrade the features of a cluster."""

import re
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from moldau.cli.errors import CommandError, usage_error
from moldau.cli.interrupts import run_async
from moldau.cli.options import BOOTSTRAP_DEFAULT, Bootstrap, Json, pairs
from moldau.cli.output import note, show_json, show_table
from moldau.cli.partial_results import fail_if_unresponsive

if TYPE_CHECKING:
    from moldau.client.async_client import AsyncClient
    from moldau.client.features import Features

app = typer.Typer(help="List and upgrade the features of a cluster.", no_args_is_help=True)

LEVEL_MAX: Final = 2**15 - 1
RELEASE: Final = re.compile(r"([0-9]{1,3}\.[0-9]{1,3})(\.[0-9]{1,3})?")


@app.command("list")
def list_features(bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT, json: Json = False) -> None:
    """Show the level of each feature, and the levels that all brokers support."""

    async def work(client: "AsyncClient") -> None:
        from moldau.client.features import describe_features

        found = await describe_features(client)
        if json:
            show_json(features_as_json(found))
        else:
            show_features(found)
        fail_if_unresponsive(found.unreachable, "supported levels")

    _run(bootstrap_servers, work)


@app.command()
def upgrade(
    release_version: Annotated[
        str | None,
        typer.Option("--release-version", metavar="X", help="To the levels of this release of Kafka, such as 4.2."),
    ] = None,
    feature: Annotated[
        list[str] | None,
        typer.Option("--feature", metavar="NAME=LEVEL", help="This feature to this level; may be repeated."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Validate only.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip the prompt.")] = False,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
    json: Json = False,
) -> None:
    """Raise features, all or none, once every broker runs the new version. Going back may be impossible.

    With --release-version, features that the cluster does not know, and those that are at their level, are left out.
    """
    named = _levels(feature)
    if (release_version is None) == (not named):
        raise usage_error("give either --release-version X or --feature NAME=LEVEL")
    wanted = named if release_version is None else _release(release_version)

    async def work(client: "AsyncClient") -> None:
        from moldau.client.features import describe_features, upgrade_features

        found = await describe_features(client)
        changes = wanted if release_version is None else _pending(found, wanted)
        if changes and not dry_run and not yes and sys.stdin.isatty():
            typer.confirm(f"Upgrade {_text(changes)}? This may be final.", abort=True, err=True)
        if changes:
            await upgrade_features(client, changes, validate_only=dry_run)
        _show_changes(found, changes, dry_run, json)

    _run(bootstrap_servers, work)


def _levels(texts: list[str] | None) -> dict[str, int]:
    levels = {}
    for name, level in pairs(texts, "--feature").items():
        if not (level.isascii() and level.isdecimal() and len(level) <= 5 and int(level) <= LEVEL_MAX):
            raise usage_error(f"--feature {name}={level}: the level must be a number from 0 to {LEVEL_MAX}")
        levels[name] = int(level)
    return levels


def _release(text: str) -> dict[str, int]:
    """Return the levels of a release such as 4.2 or 4.2.1."""
    from moldau.client.features import METADATA_LEVELS, levels_of_release

    found = RELEASE.fullmatch(text)
    if found is None or found[1] not in METADATA_LEVELS:
        raise usage_error(f"--release-version {text} is not known; use one of {', '.join(METADATA_LEVELS)}")
    return levels_of_release(found[1])


def _pending(found: "Features", wanted: Mapping[str, int]) -> dict[str, int]:
    """Return the levels that are above the finalized ones, of features that some broker supports."""
    if not any(found.supported.values()):
        raise CommandError("this cluster has no features: its brokers report none")
    for name in [each for each in wanted if each not in found.names]:
        note(f"{name} is left out: no broker supports it")
    return {
        name: level for name, level in wanted.items() if name in found.names and level > found.finalized.get(name, 0)
    }


def _text(levels: Mapping[str, int]) -> str:
    return ", ".join(f"{name} to {level}" for name, level in levels.items())


def _show_changes(found: "Features", changes: Mapping[str, int], dry_run: bool, json: bool) -> None:
    rows = [(name, found.finalized.get(name, 0), level) for name, level in changes.items()]
    if json:
        listed = [{"name": name, "old_level": old, "new_level": new} for name, old, new in rows]
        show_json({"is_dry_run": dry_run, "features": listed})
        return
    if not rows:
        print("nothing to upgrade")
    for name, old, new in rows:
        print(f"{name} {'could be upgraded' if dry_run else 'upgraded'} from {old} to {new}")


def show_features(found: "Features") -> None:
    """Print a table of the features."""
    rows = []
    for name in found.names:
        common = found.supported_by_all(name)
        supported = None if common is None else f"{common.lowest}-{common.highest}"
        rows.append((name, found.finalized.get(name, 0), _release_text(found, name), supported))
    show_table(("feature", "level", "release", "supported"), rows, numbers=("level",))


def _release_text(found: "Features", name: str) -> str | None:
    from moldau.client.features import METADATA_VERSION, release_of

    return release_of(found.finalized.get(name, 0)) if name == METADATA_VERSION else None


def features_as_json(found: "Features") -> list[dict[str, Any]]:
    """Return the JSON form of the features."""
    return [
        {
            "name": name,
            "level": found.finalized.get(name, 0),
            "release": _release_text(found, name),
            "supported": [
                {"broker": node, "lowest": levels[name].lowest, "highest": levels[name].highest}
                for node, levels in sorted(found.supported.items())
                if name in levels
            ],
        }
        for name in found.names
    ]


def _run(bootstrap_servers: str, work: "Callable[[AsyncClient], Awaitable[None]]") -> None:
    from moldau.cli.cluster_client import connect_async

    async def connected() -> None:
        async with connect_async(bootstrap_servers) as client:
            await work(client)

    run_async(connected())

"""`moldau schedule`: add, list, pause, resume, remove. The cluster publishes the records; no process runs for it."""

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from moldau.cli.completion import complete_schedules, complete_topics
from moldau.cli.errors import CommandError, usage_error
from moldau.cli.options import BOOTSTRAP_DEFAULT, Bootstrap, Json
from moldau.cli.output import note, show_json, show_table

if TYPE_CHECKING:
    from moldau.machines.schedules import Schedule

app = typer.Typer(help="Records that the cluster publishes at given times.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(show_default=False, autocompletion=complete_schedules)]


@app.command()
def add(
    name: Name,
    cron: Annotated[str, typer.Option("--cron", metavar="'M H D MONTH WEEKDAY'", help="Times, such as */5 * * * *.")],
    topic: Annotated[str, typer.Option("--topic", "-t", autocompletion=complete_topics)],
    key: Annotated[str | None, typer.Option("--key", "-k", help="Key of the records; null if not given.")] = None,
    value: Annotated[str | None, typer.Option("--value", help="Value of the records; null if not given.")] = None,
    timezone: Annotated[str, typer.Option("--timezone", help="Time zone of the times.")] = "UTC",
    catch_up: Annotated[
        str, typer.Option("--catch-up", metavar="once|all", help="After an outage: the last missed tick, or all.")
    ] = "once",
    replace: Annotated[bool, typer.Option("--replace", help="Change a schedule of this name.")] = False,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
) -> None:
    """Publish a record at each time of a cron expression, once per tick, from now on."""
    from moldau.cli.cluster_client import connect
    from moldau.client.cron import check_cron
    from moldau.client.schedules import find_schedule, set_schedule
    from moldau.model.errors import InvalidConfig

    if catch_up not in ("once", "all"):
        raise usage_error(f"--catch-up {catch_up}: use once or all")
    check_cron(cron, timezone)
    given = {"cron": cron, "topic": topic, "timezone": timezone, "catch.up": catch_up, "start.ms": _now()}
    given |= {option: text for option, text in (("key", key), ("value", value)) if text is not None}
    with connect(bootstrap_servers) as client:
        client.describe_topic(topic)
        if not replace and find_schedule(client, name) is not None:
            raise CommandError(f"there is a schedule {name} already; --replace changes it")
        try:
            set_schedule(client, name, given)
        except InvalidConfig as error:
            raise CommandError(f"the cluster rejected the schedule: {error.message}") from error
    note(f"added schedule {name}")


@app.command("list")
def list_all(bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT, json: Json = False) -> None:
    """List the schedules with the time of their next tick."""
    from moldau.cli.cluster_client import connect
    from moldau.client.schedules import list_schedules

    with connect(bootstrap_servers) as client:
        schedules = list_schedules(client)
    if json:
        show_json([{**each._asdict(), "next": _next_time(each)} for each in schedules])
        return
    rows = [
        (each.name, each.cron, each.timezone, each.topic, each.key, each.catch_up, each.is_paused, _next_time(each))
        for each in schedules
    ]
    show_table(("name", "cron", "timezone", "topic", "key", "catch up", "paused", "next"), rows)


def _next_time(schedule: "Schedule") -> str | None:
    from moldau.client.cron import next_tick

    if schedule.is_paused:
        return None
    next_ms = next_tick(schedule.cron, schedule.timezone, max(int(_now()), schedule.start_ms or 0))
    return None if next_ms is None else datetime.fromtimestamp(next_ms / 1000, UTC).isoformat()


@app.command()
def pause(name: Name, bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT) -> None:
    """Publish nothing until the schedule is resumed."""
    _change(bootstrap_servers, name, {"paused": "true"})
    note(f"paused {name}")


@app.command()
def resume(name: Name, bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT) -> None:
    """Publish from now on; ticks of the pause are skipped."""
    _change(bootstrap_servers, name, {"paused": "false", "start.ms": _now()})
    note(f"resumed {name}")


@app.command()
def remove(name: Name, bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT) -> None:
    """Remove a schedule; its records stay."""
    _change(bootstrap_servers, name, None)
    note(f"removed {name}")


def _change(bootstrap_servers: str, name: str, configs: dict[str, str] | None) -> None:
    """Set configs of an existing schedule, or remove it."""
    from moldau.cli.cluster_client import connect
    from moldau.client.schedules import find_schedule, remove_schedule, set_schedule

    with connect(bootstrap_servers) as client:
        if find_schedule(client, name) is None:
            raise CommandError(f"there is no schedule {name}; moldau schedule list shows the schedules")
        if configs is None:
            remove_schedule(client, name)
        else:
            set_schedule(client, name, configs)


def _now() -> str:
    return str(int(time.time() * 1000))

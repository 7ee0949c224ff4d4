"""`moldau user`: create, list and delete users that authenticate by SCRAM."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from moldau.cli.errors import CommandError
from moldau.cli.interrupts import run_async
from moldau.cli.options import BOOTSTRAP_DEFAULT, Bootstrap, Json
from moldau.cli.output import note, show_json, show_table
from moldau.cli.passwords import read_password

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from moldau.client.users import Users

app = typer.Typer(help="Show and change users with SCRAM credentials, of any Kafka cluster.", no_args_is_help=True)

ITERATIONS_DEFAULT: Final = 8192


class Mechanism(StrEnum):
    """The SCRAM mechanisms."""

    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"


Name = Annotated[str, typer.Argument(metavar="USER", show_default=False, help="The name of the user.")]


@app.command()
def create(
    name: Name,
    mechanism: Annotated[
        list[Mechanism] | None, typer.Option("--mechanism", "-m", help="May be repeated. [SCRAM-SHA-512]")
    ] = None,
    iterations: Annotated[int, typer.Option("--iterations", min=4096, max=16_384)] = ITERATIONS_DEFAULT,
    password_file: Annotated[
        Path | None, typer.Option("--password-file", metavar="FILE", help="Its first line, or - for standard input.")
    ] = None,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
    json: Json = False,
) -> None:
    """Create a user, or change the password. It is prompted for unless --password-file is given."""
    from moldau.node.ports.randomness import system_random

    password = read_password(password_file)
    names = [each.value for each in mechanism or [Mechanism.SCRAM_SHA_512]]

    async def work(users: "Users") -> None:
        for each in names:  # a request may alter a user only once
            await users.set_password(name, each, password, system_random(), iterations=iterations)

    _run(bootstrap_servers, work)
    if json:
        show_json({"user": name, "mechanisms": names, "iterations": iterations})
    else:
        print(f"user {name} authenticates by {', '.join(names)}")


@app.command("list")
def list_users(bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT, json: Json = False) -> None:
    """List users with their mechanisms."""
    rows: list[dict[str, object]] = []

    async def work(users: "Users") -> None:
        for user in await users.all():
            for mechanism, iterations in user.mechanisms.items():
                rows.append({"user": user.name, "mechanism": mechanism, "iterations": iterations})

    _run(bootstrap_servers, work)
    if json:
        show_json(rows)
    elif not rows:
        note("there are no users with SCRAM credentials")
    else:
        show_table(("user", "mechanism", "iterations"), [list(each.values()) for each in rows], numbers=("iterations",))


@app.command()
def delete(
    name: Name,
    mechanism: Annotated[
        list[Mechanism] | None, typer.Option("--mechanism", "-m", help="Only these; all if not given.")
    ] = None,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
    json: Json = False,
) -> None:
    """Delete the credentials of a user. Sessions that are already authenticated stay open."""
    unwanted = [each.value for each in mechanism or ()]

    async def work(users: "Users") -> None:
        user = await users.find(name)
        if user is None:
            raise CommandError(f"user {name} has no SCRAM credentials")
        unwanted[:] = unwanted or user.mechanisms
        for each in unwanted:
            await users.delete(name, each)

    _run(bootstrap_servers, work)
    if json:
        show_json({"user": name, "deleted": unwanted})
    else:
        print(f"user {name} no longer authenticates by {', '.join(unwanted)}")


def _run(bootstrap: str, work: "Callable[[Users], Awaitable[None]]") -> None:
    from moldau.cli.cluster_client import connect_async
    from moldau.client.users import Users

    async def connected() -> None:
        async with connect_async(bootstrap) as client:
            await work(Users(client))

    run_async(connected())

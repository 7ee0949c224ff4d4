"""`moldau user`: create, list and delete users that authenticate by SCRAM."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from moldau.cli.errors import CommandError, usage_error
from moldau.cli.files import read_text
from moldau.cli.options import BOOTSTRAP_DEFAULT, Bootstrap, Json
from moldau.cli.output import note, show_json, show_table

app = typer.Typer(help="Show and change users with SCRAM credentials, of any Kafka cluster.", no_args_is_help=True)

ITERATIONS_DEFAULT: Final = 8192
STDIN: Final = "-"


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
    from moldau.cli.cluster_client import connect
    from moldau.machines.access.scram import MECHANISMS, SALT_BYTES, salted_password
    from moldau.node.ports.randomness import system_random
    from moldau.wire.messages import AlterUserScramCredentialsRequest

    password = _password(password_file)
    upsertions = []
    for each in mechanism or [Mechanism.SCRAM_SHA_512]:
        salt, kind = system_random().randbytes(SALT_BYTES), MECHANISMS[each.value]
        upsertions.append(
            AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
                name=name,
                mechanism=kind,
                iterations=iterations,
                salt=salt,
                salted_password=salted_password(kind, password, salt, iterations),
            )
        )
    with connect(bootstrap_servers) as client:
        for upsertion in upsertions:  # a request may alter a user only once
            _alter(client, AlterUserScramCredentialsRequest(upsertions=[upsertion]))
    names = [each.value for each in mechanism or [Mechanism.SCRAM_SHA_512]]
    if json:
        show_json({"user": name, "mechanisms": names, "iterations": iterations})
    else:
        print(f"user {name} authenticates by {', '.join(names)}")


@app.command("list")
def list_users(bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT, json: Json = False) -> None:
    """List users with their mechanisms."""
    from moldau.cli.cluster_client import connect

    with connect(bootstrap_servers) as client:
        users = _describe(client, None)
    rows = [
        {"user": user, "mechanism": mechanism, "iterations": iterations}
        for user, infos in sorted(users.items())
        for mechanism, iterations in infos
    ]
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
    from moldau.cli.cluster_client import connect
    from moldau.machines.access.scram import MECHANISMS
    from moldau.wire.messages import AlterUserScramCredentialsRequest

    with connect(bootstrap_servers) as client:
        present = [each for each, _ in _describe(client, name).get(name, ())]
        if not present:
            raise CommandError(f"user {name} has no SCRAM credentials")
        unwanted = [each.value for each in mechanism or ()] or present
        for each in unwanted:
            deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion(name=name, mechanism=MECHANISMS[each])
            _alter(client, AlterUserScramCredentialsRequest(deletions=[deletion]))
    if json:
        show_json({"user": name, "deleted": unwanted})
    else:
        print(f"user {name} no longer authenticates by {', '.join(unwanted)}")


def _password(file: Path | None) -> str:
    """Return the password; it is never an argument, which other users of the machine could see."""
    if file is None:
        if not sys.stdin.isatty():
            raise usage_error("there is no terminal to type a password at; use --password-file FILE, or - for stdin")
        password = str(typer.prompt("Password", hide_input=True, confirmation_prompt=True))
    else:
        text = sys.stdin.readline() if str(file) == STDIN else read_text(file)
        password = text.partition("\n")[0].rstrip("\r")
    if not password:
        raise CommandError("the password is empty")
    return password


def _alter(client: Any, request: Any) -> None:
    from moldau.client.errors import check

    for result in client.send(request).results:
        check(result.error_code, result.error_message)


def _describe(client: Any, name: str | None) -> dict[str, list[tuple[str, int]]]:
    """Return mechanisms and iterations by user, of one user or of all."""
    from moldau.client.errors import check
    from moldau.machines.access.scram import ScramMechanism
    from moldau.model.error_codes import ErrorCode
    from moldau.wire.messages import DescribeUserScramCredentialsRequest

    wanted = None if name is None else [DescribeUserScramCredentialsRequest.UserName(name=name)]
    response = client.send(DescribeUserScramCredentialsRequest(users=wanted))
    check(response.error_code, response.error_message)
    users: dict[str, list[tuple[str, int]]] = {}
    for result in response.results:
        if result.error_code != ErrorCode.RESOURCE_NOT_FOUND:
            check(result.error_code, result.error_message)
            infos = [(ScramMechanism(each.mechanism).sasl_name, each.iterations) for each in result.credential_infos]
            users[result.user] = infos
    return users

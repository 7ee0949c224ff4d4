"""`moldau token`: delegation tokens (KIP-48), by which workers authenticate as a user for a limited time."""

import os
from base64 import b64encode
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from moldau.cli.client_options import ADDRESS, client_settings
from moldau.cli.errors import CommandError, usage_error
from moldau.cli.files import write_private
from moldau.cli.interrupts import run_async
from moldau.cli.options import BOOTSTRAP_DEFAULT, Bootstrap, Json, duration_ms
from moldau.cli.output import note, show_json, show_table
from moldau.cli.users import Mechanism

if TYPE_CHECKING:
    from moldau.client.tokens import DelegationToken, Tokens

app = typer.Typer(help="Create and manage delegation tokens, of any Kafka cluster.", no_args_is_help=True)

STDOUT: Final = "-"
COLUMNS: Final = ("id", "owner", "requester", "renewers", "issued", "expires", "renewable until")
TRUST_PREFIX: Final = "ssl.truststore."
SHARED_SETTINGS: Final = ("ssl.endpoint.identification.algorithm", "ssl.enabled.protocols")  # not the user's own key

TokenId = Annotated[str, typer.Argument(metavar="ID", show_default=False, help="The id of the token.")]


@app.callback()
def token() -> None:
    """Create and manage delegation tokens, of any Kafka cluster."""


@app.command()
def create(
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            show_default=False,
            help="Write client settings that authenticate by the token, readable by you alone; - prints them.",
        ),
    ],
    owner: Annotated[
        str | None, typer.Option("--owner", metavar="USER", help="Authenticate as this user instead of yourself.")
    ] = None,
    renewer: Annotated[
        list[str] | None, typer.Option("--renewer", metavar="USER", help="May renew the token, too; repeatable.")
    ] = None,
    lifetime: Annotated[
        str | None,
        typer.Option("--lifetime", metavar="7d", help="How long it can be renewed; the longest the brokers allow."),
    ] = None,
    mechanism: Annotated[Mechanism | None, typer.Option("--mechanism", "-m", help="That clients log in by.")] = None,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
    json: Json = False,
) -> None:
    """Create a token. Its secret is in the settings that --output names, and nowhere else."""
    lifetime_ms = -1 if lifetime is None else _positive_ms(lifetime, "--lifetime")
    if json and output == STDOUT:
        raise usage_error("--json does not show secrets: write the settings to a file with --output FILE")
    if output != STDOUT and not os.access(Path(output).absolute().parent, os.W_OK):
        raise usage_error(f"--output {output} cannot be written: its directory does not exist or is read-only")

    async def work(tokens: "Tokens") -> None:
        created = await tokens.create(owner, renewer or (), lifetime_ms)
        text = _settings_text(created, bootstrap_servers, mechanism)
        if output == STDOUT:
            print(text, end="")
            return
        write_private(Path(output), text)
        if json:
            show_json(_as_json(created) | {"settings": output})
        else:
            print(f"token {created.token_id} of {created.owner} expires {_time(created.expires_at_ms)}; use it with:")
            print(f"  moldau topic list --command-config {output}")

    _run(bootstrap_servers, work)


@app.command("list")
def list_tokens(
    owner: Annotated[
        list[str] | None, typer.Option("--owner", metavar="USER", help="Only tokens of this user; repeatable.")
    ] = None,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
    json: Json = False,
) -> None:
    """List the tokens that you own, may renew, or may describe. Secrets are not shown."""

    async def work(tokens: "Tokens") -> None:
        found = await tokens.describe(owner)
        if json:
            show_json([_as_json(each) for each in found])
        elif not found:
            note("there are no tokens that you may see")
        else:
            show_table(COLUMNS, [_row(each) for each in found])

    _run(bootstrap_servers, work)


@app.command()
def renew(
    token_id: TokenId,
    period: Annotated[
        str | None, typer.Option("--for", metavar="1d", help="From now on; by default the period of the brokers.")
    ] = None,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
    json: Json = False,
) -> None:
    """Let a token expire later, at most at the end of its lifetime."""
    period_ms = -1 if period is None else _positive_ms(period, "--for")

    async def work(tokens: "Tokens") -> None:
        expires_at_ms = await tokens.renew(await tokens.find(token_id), period_ms)
        _report_expiry(token_id, expires_at_ms, json)

    _run(bootstrap_servers, work)


@app.command()
def expire(
    token_id: TokenId,
    period: Annotated[
        str | None, typer.Option("--in", metavar="10m", help="Let it expire after this time instead of now.")
    ] = None,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
    json: Json = False,
) -> None:
    """Delete a token, or let it expire earlier. Sessions that it has authenticated last as long as it did."""
    period_ms = -1 if period is None else _positive_ms(period, "--in")

    async def work(tokens: "Tokens") -> None:
        expires_at_ms = await tokens.expire(await tokens.find(token_id), period_ms)
        if period is not None:
            _report_expiry(token_id, expires_at_ms, json)
        elif json:
            show_json({"id": token_id, "deleted": True})
        else:
            print(f"token {token_id} is deleted")

    _run(bootstrap_servers, work)


def _report_expiry(token_id: str, expires_at_ms: int, as_json: bool) -> None:
    if as_json:
        show_json({"id": token_id, "expires_ms": expires_at_ms})
    else:
        print(f"token {token_id} expires {_time(expires_at_ms)}")


def _positive_ms(text: str, option: str) -> int:
    found = duration_ms(text, option)
    if found == 0:
        raise usage_error(f"{option} {text}: must be more than zero")
    return found


def _settings_text(created: "DelegationToken", servers: str, mechanism: Mechanism | None) -> str:
    """Settings of the command, with the token instead of the user's own credentials."""
    given = client_settings()
    used = given.get("sasl.mechanism", "").strip().upper()
    by = mechanism.value if mechanism else used if used in set(Mechanism) else Mechanism.SCRAM_SHA_512.value
    is_encrypted = given.get("security.protocol", "").strip().upper().endswith("SSL")
    secret = b64encode(created.hmac).decode()
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    settings = {
        ADDRESS: servers,
        "security.protocol": "SASL_SSL" if is_encrypted else "SASL_PLAINTEXT",
        **{name: text for name, text in given.items() if name.startswith(TRUST_PREFIX) or name in SHARED_SETTINGS},
        "sasl.mechanism": by,
        "sasl.jaas.config": f'{module} required username="{created.token_id}" password="{secret}" tokenauth="true";',
    }
    return "".join(f"{name}={text}\n" for name, text in settings.items())


def _as_json(each: "DelegationToken") -> dict[str, Any]:
    return {
        "id": each.token_id,
        "owner": each.owner,
        "requester": each.requester,
        "renewers": list(each.renewers),
        "issued_ms": each.issued_at_ms,
        "expires_ms": each.expires_at_ms,
        "renewable_until_ms": each.expires_at_most_ms,
    }


def _row(each: "DelegationToken") -> list[object]:
    times = (each.issued_at_ms, each.expires_at_ms, each.expires_at_most_ms)
    return [each.token_id, each.owner, each.requester, list(each.renewers), *map(_time, times)]


def _time(wall_ms: int) -> str:
    try:
        return datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError):  # another cluster may have any number
        return str(wall_ms)


def _run(bootstrap_servers: str, work: Any) -> None:
    from moldau.cli.cluster_client import connect_async
    from moldau.client.tokens import Tokens
    from moldau.model.errors import (
        DelegationTokenAuthDisabled,
        DelegationTokenNotFound,
        DelegationTokenRequestNotAllowed,
    )

    async def connected() -> None:
        async with connect_async(bootstrap_servers) as client:
            await work(Tokens(client))

    try:
        run_async(connected())
    except DelegationTokenAuthDisabled:
        raise CommandError(
            "the cluster has no delegation tokens: set delegation.token.secret.key, the same on every node"
        ) from None
    except DelegationTokenRequestNotAllowed:
        raise CommandError(
            "tokens are managed only by users who have authenticated by SASL or a client certificate, not by a token: "
            "give your credentials with --command-config FILE"
        ) from None
    except DelegationTokenNotFound:
        raise CommandError("there is no such token that you own or may renew; see: moldau token list") from None

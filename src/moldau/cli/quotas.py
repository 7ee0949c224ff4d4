"""`moldau quota`: set, list, delete."""

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from moldau.cli.errors import CommandError, usage_error
from moldau.cli.interrupts import run_async
from moldau.cli.options import BOOTSTRAP_DEFAULT, Bootstrap, Json
from moldau.cli.output import note, show_json, show_table

if TYPE_CHECKING:
    from moldau.client.client_quotas import ClientQuotas, DescribedQuota, Entity

app = typer.Typer(help="Limit what clients use: bytes, request time, metadata changes, new connections.")

User = Annotated[str | None, typer.Option("--user", metavar="NAME", help="The quota of this user.")]
DefaultUser = Annotated[bool, typer.Option("--default-user", help="The quota of users without one of their own.")]
ClientId = Annotated[str | None, typer.Option("--client-id", metavar="ID", help="The quota of this client id.")]
DefaultClientId = Annotated[
    bool, typer.Option("--default-client-id", help="The quota of client ids without one of their own.")
]
Ip = Annotated[str | None, typer.Option("--ip", metavar="ADDRESS", help="The quota of this IP address.")]
DefaultIp = Annotated[bool, typer.Option("--default-ip", help="The quota of addresses without one of their own.")]

KEYS: Final = {
    "produce": "producer_byte_rate",
    "consume": "consumer_byte_rate",
    "request-percentage": "request_percentage",
    "mutations": "controller_mutation_rate",
    "connections": "connection_creation_rate",
}
DEFAULT_NAME: Final = "<default>"
COLUMNS: Final = ("user", "client id", "ip", "quota", "value")


@app.command("set")
def set_quota(
    user: User = None,
    default_user: DefaultUser = False,
    client_id: ClientId = None,
    default_client_id: DefaultClientId = False,
    ip: Ip = None,
    default_ip: DefaultIp = False,
    produce: Annotated[
        int | None, typer.Option("--produce", metavar="BYTES", min=1, help="Bytes per second from producers.")
    ] = None,
    consume: Annotated[
        int | None, typer.Option("--consume", metavar="BYTES", min=1, help="Bytes per second to consumers.")
    ] = None,
    percentage: Annotated[
        float | None,
        typer.Option("--request-percentage", metavar="PERCENT", min=0, help="Time of request handlers."),
    ] = None,
    mutations: Annotated[
        float | None,
        typer.Option("--mutations", metavar="RATE", min=0, help="Partitions created and deleted per second."),
    ] = None,
    connections: Annotated[
        int | None, typer.Option("--connections", metavar="RATE", min=1, help="New connections per second of an --ip.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only check the request.")] = False,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
) -> None:
    """Set quotas of a user, a client id, both together, or an address. The limits apply per broker."""
    entity = _entity(user, default_user, client_id, default_client_id, ip, default_ip)
    given = (produce, consume, percentage, mutations, connections)
    values = {key: float(value) for key, value in zip(KEYS.values(), given, strict=True) if value is not None}
    if not values:
        raise usage_error(f"give a limit: {', '.join('--' + name for name in KEYS)}")

    async def work(quotas: "ClientQuotas") -> None:
        await quotas.alter(entity, set_to=values, validate_only=dry_run)
        note(f"{'would set' if dry_run else 'set'} {', '.join(values)} of {_name(entity)}")

    _run(bootstrap_servers, work)


@app.command("list")
def list_quotas(
    user: User = None,
    default_user: DefaultUser = False,
    client_id: ClientId = None,
    default_client_id: DefaultClientId = False,
    ip: Ip = None,
    default_ip: DefaultIp = False,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
    json: Json = False,
) -> None:
    """List the quotas of all entities, or of those with the given names."""
    entity = _entity(user, default_user, client_id, default_client_id, ip, default_ip, is_required=False)

    async def work(quotas: "ClientQuotas") -> None:
        from moldau.client.client_quotas import filter_of

        _show(await quotas.describe(filter_of(entity)), json)

    _run(bootstrap_servers, work)


@app.command()
def delete(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[QUOTA]...", show_default=False, help="Such as producer_byte_rate; by default all."),
    ] = None,
    user: User = None,
    default_user: DefaultUser = False,
    client_id: ClientId = None,
    default_client_id: DefaultClientId = False,
    ip: Ip = None,
    default_ip: DefaultIp = False,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
) -> None:
    """Delete quotas of one entity."""
    entity = _entity(user, default_user, client_id, default_client_id, ip, default_ip)

    async def work(quotas: "ClientQuotas") -> None:
        from moldau.client.client_quotas import filter_of

        found = await quotas.describe(filter_of(entity), strict=True)
        present = [key for each in found for key in each.values]
        missing = [name for name in names or () if name not in present]
        if missing or not present:
            what = ", ".join(missing) or "quota"
            raise CommandError(f"{_name(entity)} has no {what}; moldau quota list shows all quotas")
        await quotas.alter(entity, remove=names or present)
        note(f"deleted {', '.join(names or present)} of {_name(entity)}")

    _run(bootstrap_servers, work)


def _entity(
    user: str | None,
    default_user: bool,
    client_id: str | None,
    default_client_id: bool,
    ip: str | None,
    default_ip: bool,
    *,
    is_required: bool = True,
) -> dict[str, str | None]:
    entity: dict[str, str | None] = {}
    for kind, name, is_default in (
        ("user", user, default_user),
        ("client-id", client_id, default_client_id),
        ("ip", ip, default_ip),
    ):
        if name is not None and is_default:
            raise usage_error(f"--{kind} and --default-{kind} exclude each other")
        if name is not None or is_default:
            entity[kind] = name
    if is_required and not entity:
        raise usage_error(
            "say whose quota: --user, --client-id, --ip, --default-user, --default-client-id, --default-ip"
        )
    if "ip" in entity and len(entity) > 1:
        raise usage_error("--ip cannot be combined with --user or --client-id")
    return entity


def _name(entity: "Entity") -> str:
    return " ".join(f"{kind}={DEFAULT_NAME if name is None else name}" for kind, name in entity.items())


def _show(found: "list[DescribedQuota]", json: bool) -> None:
    if json:
        show_json([{"entity": dict(each.entity), "quotas": dict(each.values)} for each in found])
        return
    rows = [
        (*(_cell(each.entity, kind) for kind in ("user", "client-id", "ip")), key, f"{value:.15g}")
        for each in found
        for key, value in each.values.items()
    ]
    show_table(COLUMNS, rows, numbers=("value",))


def _cell(entity: "Entity", kind: str) -> str | None:
    if kind not in entity:
        return None
    return DEFAULT_NAME if entity[kind] is None else entity[kind]


def _run(bootstrap_servers: str, work: Any) -> None:
    from moldau.cli.cluster_client import connect_async
    from moldau.client.client_quotas import ClientQuotas

    async def connected() -> None:
        async with connect_async(bootstrap_servers) as client:
            await work(ClientQuotas(client))

    run_async(connected())

"""`moldau acl`: allow, deny, list, delete."""

from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from moldau.cli.completion import complete_groups, complete_topics
from moldau.cli.errors import CommandError, usage_error
from moldau.cli.interrupts import run_async
from moldau.cli.option_groups import expand_option_groups
from moldau.cli.options import BOOTSTRAP_DEFAULT, Bootstrap, Json
from moldau.cli.output import note, show_json, show_table

if TYPE_CHECKING:
    from moldau.client.acls import Acls
    from moldau.machines.access.acls import AclBinding, AclFilter, ResourceKind

app = typer.Typer(help="Show and change who may do what, of any Kafka cluster.", no_args_is_help=True)

CLUSTER_NAME: Final = "kafka-cluster"

Names = list[str] | None
Principals = Annotated[
    Names, typer.Option("--principal", "-p", metavar="TYPE:NAME", help="User:alice, or User:* for all; repeatable.")
]
Hosts = Annotated[Names, typer.Option("--host", metavar="ADDRESS", help="Only from this address; repeatable.")]
Operations = Annotated[
    Names, typer.Option("--operation", "-o", metavar="NAME,…", help="read, write, describe, all …; repeatable.")
]


@dataclass(frozen=True)
class Resources:
    """The resources that ACLs are for."""

    topic: Annotated[
        Names, typer.Option("--topic", "-t", help="A topic, or * for all; repeatable.", autocompletion=complete_topics)
    ] = None
    group: Annotated[
        Names, typer.Option("--group", "-g", help="A group, or * for all; repeatable.", autocompletion=complete_groups)
    ] = None
    txn: Annotated[Names, typer.Option("--txn", metavar="ID", help="A transactional id; repeatable.")] = None
    user: Annotated[Names, typer.Option("--user", help="A user, whose tokens are managed; repeatable.")] = None
    token: Annotated[Names, typer.Option("--token", metavar="ID", help="A delegation token; repeatable.")] = None
    cluster: Annotated[bool, typer.Option("--cluster", help="The cluster.")] = False
    prefixed: Annotated[bool, typer.Option("--prefixed", help="The names are prefixes.")] = False

    def named(self) -> "Iterator[tuple[ResourceKind, str]]":
        from moldau.machines.access.acls import ResourceKind

        for kind, names in (
            (ResourceKind.TOPIC, self.topic),
            (ResourceKind.GROUP, self.group),
            (ResourceKind.TRANSACTIONAL_ID, self.txn),
            (ResourceKind.USER, self.user),
            (ResourceKind.DELEGATION_TOKEN, self.token),
        ):
            yield from ((kind, name) for name in names or ())
        if self.cluster:
            yield ResourceKind.CLUSTER, CLUSTER_NAME


Producer = Annotated[
    bool, typer.Option("--producer", help="All that producing to the --topic needs, with --txn in transactions.")
]
Consumer = Annotated[bool, typer.Option("--consumer", help="All that consuming the --topic in the --group needs.")]


@app.command()
@expand_option_groups
def allow(
    resources: Resources,
    principal: Principals = None,
    operation: Operations = None,
    host: Hosts = None,
    producer: Producer = False,
    consumer: Consumer = False,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
    json: Json = False,
) -> None:
    """Allow principals operations on resources."""
    from moldau.machines.access.acls import Permission

    permissions = [*_permissions(resources, operation), *_of_roles(resources, producer=producer, consumer=consumer)]
    _create(bootstrap_servers, resources, Permission.ALLOW, permissions, principal, host, json)


@app.command()
@expand_option_groups
def deny(
    resources: Resources,
    principal: Principals = None,
    operation: Operations = None,
    host: Hosts = None,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
    json: Json = False,
) -> None:
    """Deny principals operations on resources. Denials take precedence over permissions."""
    from moldau.machines.access.acls import Permission

    _create(bootstrap_servers, resources, Permission.DENY, _permissions(resources, operation), principal, host, json)


@app.command("list")
@expand_option_groups
def list_acls(
    resources: Resources,
    principal: Principals = None,
    operation: Operations = None,
    host: Hosts = None,
    matching: Annotated[
        bool, typer.Option("--matching", "-m", help="All ACLs that concern the named resources, with prefixes and *.")
    ] = False,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
    json: Json = False,
) -> None:
    """List ACLs: all, or those of some resources, principals, operations and hosts."""
    filters = list(_filters(resources, principal, operation, host, is_matching=matching))

    async def work(acls: "Acls") -> None:
        found = {acl: None for selected in filters for acl in await acls.list(selected)}
        _show(sorted(found), json)

    _run(bootstrap_servers, work)


@app.command()
@expand_option_groups
def delete(
    resources: Resources,
    principal: Principals = None,
    operation: Operations = None,
    host: Hosts = None,
    every: Annotated[bool, typer.Option("--all", help="Delete every ACL of the cluster.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the ACLs without deleting them.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip the prompt.")] = False,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
    json: Json = False,
) -> None:
    """Delete the ACLs of some resources, principals, operations and hosts."""
    filters = list(_filters(resources, principal, operation, host, is_matching=False))
    if filters == [_everything()] and not every:
        raise usage_error("name resources, principals, operations or hosts, or use --all to delete every ACL")

    async def find(acls: "Acls") -> None:
        for selected in filters:
            found.update(dict.fromkeys(await acls.list(selected)))

    async def work(acls: "Acls") -> None:
        found.clear()
        found.update(dict.fromkeys(await acls.delete(filters)))

    found: dict[AclBinding, None] = {}
    if dry_run or not yes:
        _run(bootstrap_servers, find)
    if not dry_run:
        if not yes:
            _show(sorted(found), as_json=False)
            if not found:
                return
            typer.confirm(f"Delete {_count(len(found))}?", abort=True, err=True)
        _run(bootstrap_servers, work)
        note(f"deleted {_count(len(found))}")
    if json or yes or dry_run:
        _show(sorted(found), json)


# What the options describe


def _permissions(resources: Resources, operations: Names) -> list[tuple[Any, str, Any]]:
    """Return kind, name and operation of each permission."""
    named = list(resources.named())
    wanted = [_operation(each) for text in operations or () for each in text.split(",") if each.strip()]
    return [(kind, name, operation) for (kind, name), operation in product(named, wanted)]


def _of_roles(resources: Resources, *, producer: bool, consumer: bool) -> list[tuple[Any, str, Any]]:
    """Return the permissions that kafka-acls gives to producers and consumers."""
    from moldau.machines.access.acls import Operation, ResourceKind

    if (producer or consumer) and not resources.topic:
        raise usage_error("--producer and --consumer need a --topic")
    if consumer and not resources.group:
        raise usage_error("--consumer needs a --group")
    of_topic, of_group, of_transaction = [], [], []
    if producer:
        of_topic += [Operation.WRITE, Operation.DESCRIBE, Operation.CREATE]
        of_transaction += [Operation.WRITE, Operation.DESCRIBE]
    if consumer:
        of_topic += [Operation.READ, Operation.DESCRIBE]
        of_group += [Operation.READ]
    return [
        *((ResourceKind.TOPIC, name, each) for name in resources.topic or () for each in dict.fromkeys(of_topic)),
        *((ResourceKind.GROUP, name, each) for name in resources.group or () for each in of_group),
        *((ResourceKind.TRANSACTIONAL_ID, name, each) for name in resources.txn or () for each in of_transaction),
    ]


def _operation(text: str) -> Any:
    from moldau.machines.access.acls import Operation

    allowed = {each.name: each for each in Operation if each >= Operation.ALL}
    name = text.strip().upper().replace("-", "_")
    if name not in allowed:
        raise usage_error(f"--operation {text.strip()} is unknown; use {', '.join(each.lower() for each in allowed)}")
    return allowed[name]


def _principal(text: str) -> str:
    kind, colon, name = text.partition(":")
    if not colon:
        return f"User:{text}"
    if not kind or not name:
        raise usage_error(f"--principal {text}: write it as TYPE:NAME, such as User:alice")
    return text


def _pattern(resources: Resources, kind: Any, name: str) -> Any:
    from moldau.machines.access.acls import PatternType, ResourceKind

    if resources.prefixed and name == "*":
        raise usage_error("with --prefixed, * is a prefix like any other; leave --prefixed out for all names")
    if resources.prefixed and kind is not ResourceKind.CLUSTER:
        return PatternType.PREFIXED
    return PatternType.LITERAL


def _filters(
    resources: Resources, principals: Names, operations: Names, hosts: Names, *, is_matching: bool
) -> "Iterator[AclFilter]":
    from moldau.machines.access.acls import AclFilter, Operation, PatternType, ResourceKind

    places: list[tuple[Any, str | None, Any]] = [
        (kind, name, PatternType.MATCH if is_matching else _pattern(resources, kind, name))
        for kind, name in resources.named()
    ]
    wanted = [_operation(each) for text in operations or () for each in text.split(",") if each.strip()]
    wanted_principals: list[str | None] = [_principal(each) for each in principals or ()]
    wanted_hosts: list[str | None] = [*(hosts or ())]
    for (kind, name, pattern), operation, principal, host in product(
        places or [(ResourceKind.ANY, None, PatternType.PREFIXED if resources.prefixed else PatternType.ANY)],
        wanted or [Operation.ANY],
        wanted_principals or [None],
        wanted_hosts or [None],
    ):
        yield AclFilter(kind, name, pattern, principal, host, operation)


def _everything() -> "AclFilter":
    from moldau.machines.access.acls import AclFilter

    return AclFilter()


# Requests and results


def _create(
    bootstrap_servers: str,
    resources: Resources,
    permission: Any,
    permissions: list[tuple[Any, str, Any]],
    principals: Names,
    hosts: Names,
    as_json: bool,
) -> None:
    from moldau.machines.access.acls import AclBinding

    if not principals:
        raise usage_error("give a --principal such as User:alice")
    if not permissions:
        raise usage_error("give a resource (--topic, --group, --txn, --cluster …) and an --operation")
    wanted = [
        AclBinding(kind, name, _pattern(resources, kind, name), principal, host, operation, permission)
        for (kind, name, operation), principal, host in product(
            permissions, [_principal(each) for each in principals], hosts or ["*"]
        )
    ]

    async def work(acls: "Acls") -> None:
        errors = await acls.create(wanted)
        created = [acl for acl, error in zip(wanted, errors, strict=True) if error is None]
        _show(created, as_json)
        failed = [(acl, error) for acl, error in zip(wanted, errors, strict=True) if error is not None]
        if failed:
            acl, error = failed[0]
            more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
            raise CommandError(f"{acl.operation.name} on {acl.kind.name} {acl.name}{more} failed: {error.message}")

    _run(bootstrap_servers, work)


def _show(acls: "list[AclBinding]", as_json: bool) -> None:
    names = ("permission", "principal", "operation", "resource", "name", "pattern", "host")
    rows = [
        (
            each.permission.name.lower(),
            each.principal,
            each.operation.name.lower(),
            each.kind.name.lower(),
            each.name,
            each.pattern.name.lower(),
            each.host,
        )
        for each in acls
    ]
    if as_json:
        show_json([dict(zip(names, row, strict=True)) for row in rows])
    elif not rows:
        note("no ACLs")
    else:
        show_table(names, rows)


def _count(count: int) -> str:
    return f"{count} ACL" if count == 1 else f"{count} ACLs"


def _run(bootstrap_servers: str, work: "Callable[[Acls], Coroutine[Any, Any, None]]") -> None:
    from moldau.cli.cluster_client import connect_async
    from moldau.client.acls import Acls

    async def connected() -> None:
        async with connect_async(bootstrap_servers) as client:
            await work(Acls(client))

    run_async(connected())

"""`moldau quorum`: show and change the voters of the metadata quorum."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from moldau.cli.errors import CommandError, usage_error
from moldau.cli.interrupts import run_async
from moldau.cli.options import BOOTSTRAP_DEFAULT, Bootstrap, Json
from moldau.cli.output import show_json, show_table, topic_id_text

if TYPE_CHECKING:
    from moldau.client.quorum import Quorum, QuorumView
    from moldau.model.ids import Address

app = typer.Typer(help="Show the controller quorum, add and remove voters.", no_args_is_help=True)

Node = Annotated[int, typer.Argument(metavar="NODE", min=0, show_default=False, help="The controller's node id.")]
Directory = Annotated[
    str | None,
    typer.Option("--directory-id", metavar="ID", help="Id of its data directory; looked up if not given."),
]


@app.command()
def describe(bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT, json: Json = False) -> None:
    """Show leader, voters and observers, and how far each has replicated."""

    async def work(quorum: "Quorum") -> None:
        from moldau.cli.clusters import quorum_as_json

        view = await quorum.describe()
        if json:
            show_json(quorum_as_json(view))
        else:
            show_quorum(view)

    _run(bootstrap_servers, work)


@app.command("add-controller")
def add_controller(
    node: Node,
    listener: Annotated[
        str, typer.Option("--listener", metavar="[NAME://]HOST:PORT", help="Its address for the other controllers.")
    ],
    directory_id: Directory = None,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
    json: Json = False,
) -> None:
    """Add a voter. The controller must run in this cluster and have caught up."""

    async def work(quorum: "Quorum") -> None:
        view = await quorum.describe()
        if any(each.node_id == node for each in view.voters) and directory_id is None:
            raise CommandError(f"controller {node} is a voter already; if its disk was replaced, remove it first")
        where = _listener(listener, view)
        directory = _parsed(directory_id) or await _observer_directory(quorum, node)
        cluster = await quorum.client.describe_cluster()
        await quorum.add_controller(node, directory, (where,), cluster_id=cluster.cluster_id)
        voters = sorted({*(each.node_id for each in view.voters), node})
        if json:
            show_json({"controller": node, "voters": voters})
        else:
            print(f"controller {node} is a voter now, of {len(voters)}")

    _run(bootstrap_servers, work)


@app.command("remove-controller")
def remove_controller(
    node: Node, directory_id: Directory = None, bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT, json: Json = False
) -> None:
    """Remove a voter. A majority of the remaining voters must be running."""

    async def work(quorum: "Quorum") -> None:
        view = await quorum.describe()
        directory = _parsed(directory_id) or _directory_of(view, node)
        cluster = await quorum.client.describe_cluster()
        await quorum.remove_controller(node, directory, cluster_id=cluster.cluster_id)
        voters = [each.node_id for each in view.voters if each.node_id != node]
        if json:
            show_json({"controller": node, "voters": voters})
        else:
            print(f"controller {node} is no longer a voter, {len(voters)} remain")

    _run(bootstrap_servers, work)


@app.command()
def upgrade(bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT, json: Json = False) -> None:
    """Move the voters from controller.quorum.voters to the metadata log, so that they can change. Irreversible."""

    async def work(quorum: "Quorum") -> None:
        await quorum.enable_dynamic_voters()
        if json:
            show_json({"kraft_version": 1})
            return
        print("the voters are in the metadata log (kraft.version 1): use add-controller and remove-controller")

    _run(bootstrap_servers, work)


def show_quorum(view: "QuorumView") -> None:
    leader = view.leader_id if view.leader_id >= 0 else "none"
    print(f"leader {leader}  epoch {view.epoch}  high watermark {view.high_watermark}")
    columns = ("node", "role", "end", "lag", "behind", "listeners", "directory")
    names = {name for each in (*view.voters, *view.observers) for name, _ in each.listeners}
    rows = [
        (
            each.node_id,
            "leader" if each.node_id == view.leader_id and role == "voter" else role,
            each.end_offset if each.end_offset >= 0 else None,
            view.lag(each),
            None if (behind_ms := view.behind_ms(each)) is None else f"{behind_ms / 1000:.1f} s",
            [str(where) if len(names) == 1 else f"{name}://{where}" for name, where in each.listeners],
            topic_id_text(each.directory_id),
        )
        for role, replicas in (("voter", view.voters), ("observer", view.observers))
        for each in replicas
    ]
    show_table(columns, rows, numbers=("node", "end", "lag", "behind"))


def _parsed(directory_id: str | None) -> bytes | None:
    from moldau.storage.log_dir import decode_id

    if directory_id is None:
        return None
    try:
        return decode_id(directory_id)
    except ValueError:
        raise usage_error(
            f"--directory-id {directory_id}: must be 22 letters, digits, - and _; see its meta.properties"
        ) from None


def _directory_of(view: "QuorumView", node: int) -> bytes:
    found = [each.directory_id for each in view.voters if each.node_id == node]
    if not found:
        voters = ", ".join(str(each.node_id) for each in view.voters)
        raise CommandError(f"controller {node} is not a voter; the voters are {voters}")
    return found[0]


async def _observer_directory(quorum: "Quorum", node: int) -> bytes:
    """Return the directory id that the running node reports."""
    observers = await quorum.active_observers(node)
    if not observers:
        raise CommandError(
            f"node {node} does not follow the quorum (see moldau quorum describe): start it before you add it, with "
            "this cluster's id and controllers in its settings"
        )
    if len(observers) > 1:
        raise CommandError(f"node {node} was seen with several data directories; choose one with --directory-id")
    return observers[0].directory_id


def _listener(text: str, view: "QuorumView") -> "tuple[str, Address]":
    from moldau.client.addresses import parse_address

    name, separator, address = text.rpartition("://")
    known = [name for each in view.voters for name, _ in each.listeners]
    try:
        return (name if separator else known[0] if known else "CONTROLLER"), parse_address(address)
    except ValueError as error:
        raise usage_error(f"--listener {text}: {error}") from error


def _run(bootstrap_servers: str, work: "Callable[[Quorum], Awaitable[None]]") -> None:
    from moldau.cli.cluster_client import connect_async
    from moldau.client.quorum import Quorum

    async def connected() -> None:
        async with connect_async(bootstrap_servers) as client:
            await work(Quorum(client))

    run_async(connected())

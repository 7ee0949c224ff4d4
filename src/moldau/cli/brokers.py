"""`moldau broker`: what each broker holds, emptying one, and forgetting one that is gone."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moldau.cli.errors import Complaint, wrong_usage
from moldau.cli.options import BOOTSTRAP_DEFAULT, Bootstrap, Json
from moldau.cli.output import human_bytes, note, show_json, show_table
from moldau.cli.reassign import Throttle, until_settled

if TYPE_CHECKING:
    from moldau.client.asynchronous import AsyncClient
    from moldau.client.brokers import BrokerState
    from moldau.client.plans import Assignment

app = typer.Typer(help="Look at brokers, empty one, forget one.", no_args_is_help=True)

Broker = Annotated[int, typer.Argument(metavar="BROKER", min=0, show_default=False, help="The broker's id.")]


@app.command("list")
def list_brokers(bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT, json: Json = False) -> None:
    """Who there is, whether it serves, and how much it holds and leads."""

    async def work(client: "AsyncClient") -> None:
        from moldau.client.brokers import Brokers

        found = await Brokers(client).all()
        if json:
            show_json([_told(each) for each in found])
            return
        columns = ("broker", "address", "rack", "state", "leaders", "preferred", "replicas", "behind", "size", "free")
        numbers = ("broker", "leaders", "preferred", "replicas", "behind", "size", "free")
        show_table(columns, [_row(each) for each in found], numbers=numbers)

    _run(bootstrap_servers, work)


@app.command()
def drain(
    broker: Broker,
    throttle: Throttle = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be moved.")] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Stay until it is empty.")] = True,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
    json: Json = False,
) -> None:
    """Move all partitions of a broker to the others, so that it can be stopped for good."""
    if throttle is not None and not wait:
        raise wrong_usage("--throttle is taken off when the broker is empty: leave out --no-wait")

    async def work(client: "AsyncClient") -> None:
        from moldau.client.plans import encode_plan

        plan = await _plan(client, broker)
        if json and dry_run:
            print(encode_plan(plan))
        elif dry_run:
            show_table(("topic", "partition", "target"), [(*place, to) for place, to in plan.items()])
        else:
            await _carry_out(client, broker, plan, throttle, wait)
            if json:
                show_json({"broker": broker, "partitions": len(plan), "is_empty": wait})
            else:
                print(f"broker {broker} is empty" if wait else f"{len(plan)} partitions leave broker {broker}")
                await _say_what_is_next(client, broker)

    _run(bootstrap_servers, work)


@app.command()
def remove(
    broker: Broker,
    force: Annotated[bool, typer.Option("--force", help="Although partitions still count on it.")] = False,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
) -> None:
    """Forget a broker that has been stopped for good."""

    async def work(client: "AsyncClient") -> None:
        from moldau.client.brokers import Brokers

        brokers = Brokers(client)
        states = {each.node_id: each for each in await brokers.all(with_sizes=False)}
        state = states.get(broker)
        if state is None:
            raise Complaint(f"there is no broker {broker}; moldau broker list shows those there are")
        if not state.is_fenced:
            raise Complaint(f"broker {broker} runs, and would come back at once: drain it, stop it, then remove it")
        if state.replicas and not force:
            raise Complaint(
                f"{state.replicas} partitions have a replica on broker {broker}: move them away first (moldau broker "
                f"drain {broker}), or say --force and they stay short of one"
            )
        await brokers.unregister(broker)
        print(f"broker {broker} is forgotten")

    _run(bootstrap_servers, work)


async def _plan(client: "AsyncClient", broker: int) -> "Assignment":
    from moldau.client.moves import Moves
    from moldau.client.plans import drained

    moves = Moves(client)
    racks = await moves.racks()
    current = await moves.assignment()
    if broker not in racks and not any(broker in replicas for replicas in current.values()):
        raise Complaint(f"there is no broker {broker}; moldau broker list shows those there are")
    return drained(current, [broker], racks)


async def _carry_out(
    client: "AsyncClient", broker: int, plan: "Assignment", throttle: int | None, is_patient: bool
) -> None:
    """Begin what is not under way yet, and wait until the broker holds nothing, whoever began it."""
    from moldau.client.moves import Moves

    moves = Moves(client)
    if plan:
        _, outcomes = await moves.begin(plan, throttle_bytes=throttle, is_additional=True)
        failed = [f"{place}: {error.message}" for place, error in outcomes.items() if error is not None]
        if failed:
            raise Complaint("; ".join(failed))
    if not is_patient:
        return
    leaving = {place: each.target for place, each in (await moves.reassignments.ongoing()).items()} | plan
    leaving = {place: target for place, target in leaving.items() if broker not in target}
    if leaving:
        await until_settled(moves, leaving)
        await moves.clear_up(leaving)
    left = [str(place) for place, replicas in (await moves.assignment()).items() if broker in replicas]
    if left:
        raise Complaint(f"broker {broker} still holds {', '.join(left)}: run this again")


async def _say_what_is_next(client: "AsyncClient", broker: int) -> None:
    from moldau.client.quorum import Quorum
    from moldau.model.errors import ClusterAuthorizationFailed, UnsupportedVersion

    try:
        votes = any(each.node_id == broker for each in (await Quorum(client).describe()).voters)
    except (UnsupportedVersion, ClusterAuthorizationFailed):
        votes = False
    if votes:
        note(f"it is a controller too: moldau quorum remove-controller {broker}")
    note(f"next: stop it, then: moldau broker remove {broker}")


def _row(state: "BrokerState") -> tuple[object, ...]:
    return (
        state.node_id,
        str(state.address) if state.address else None,
        state.rack,
        "fenced" if state.is_fenced else "unreachable" if state.size_bytes is None else "serves",
        state.leaders,
        state.preferred,
        state.replicas,
        state.out_of_sync,
        None if state.size_bytes is None else human_bytes(state.size_bytes),
        None if state.free_bytes is None else human_bytes(state.free_bytes),
    )


def _told(state: "BrokerState") -> dict[str, Any]:
    return {
        "id": state.node_id,
        "host": state.address.host if state.address else None,
        "port": state.address.port if state.address else None,
        "rack": state.rack,
        "is_fenced": state.is_fenced,
        "leaders": state.leaders,
        "preferred": state.preferred,
        "replicas": state.replicas,
        "out_of_sync": state.out_of_sync,
        "size_bytes": state.size_bytes,
        "free_bytes": state.free_bytes,
    }


def _run(bootstrap_servers: str, work: "Callable[[AsyncClient], Awaitable[None]]") -> None:
    from moldau.cli.connecting import connect_asynchronously
    from moldau.client.plans import BrokenPlan

    async def connected() -> None:
        async with connect_asynchronously(bootstrap_servers) as client:
            await work(client)

    try:
        asyncio.run(connected())
    except BrokenPlan as broken:
        raise Complaint(str(broken)) from broken

"""`moldau broker`: what each broker holds, emptying one, and forgetting one that is gone."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from moldau.cli.errors import CommandError, usage_error
from moldau.cli.options import BOOTSTRAP_DEFAULT, Bootstrap, Json
from moldau.cli.output import human_bytes, note, show_json, show_table
from moldau.cli.reassignments import Throttle, wait_until_settled

if TYPE_CHECKING:
    from moldau.client.async_client import AsyncClient
    from moldau.client.brokers import BrokerState
    from moldau.client.reassignment_plans import Assignment

app = typer.Typer(help="Look at brokers, empty one, forget one.", no_args_is_help=True)

COUNTS: Final = ("state", "leaders", "preferred", "replicas", "size", "free")

Broker = Annotated[int, typer.Argument(metavar="BROKER", min=0, show_default=False, help="The broker's id.")]


@app.command("list")
def list_brokers(bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT, json: Json = False) -> None:
    """Who there is, whether it serves, and how much it holds and leads."""

    async def work(client: "AsyncClient") -> None:
        from moldau.client.brokers import Brokers

        found = await Brokers(client).all()
        if json:
            show_json([_as_json(each) for each in found])
        else:
            show_brokers(found)

    _run(bootstrap_servers, work)


@app.command()
def drain(
    broker: Broker,
    throttle: Throttle = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be moved.")] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Stay until it is empty.")] = True,
    undo: Annotated[bool, typer.Option("--undo", help="Let it get new partitions again; nothing moves back.")] = False,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
    json: Json = False,
) -> None:
    """Move all partitions of a broker to the others and give it no new ones, so that it can be stopped for good."""
    if throttle is not None and not wait:
        raise usage_error("--throttle is taken off when the broker is empty: leave out --no-wait")
    if undo and (dry_run or throttle is not None):
        raise usage_error("--undo moves nothing: leave out --dry-run and --throttle")

    async def roll_back(client: "AsyncClient") -> None:
        from moldau.client.brokers import Brokers

        await Brokers(client).uncordon(broker)
        if json:
            show_json({"broker": broker, "is_drained": False})
        else:
            print(f"broker {broker} gets new partitions again; moldau reassign generate gives it its share of the old")

    async def work(client: "AsyncClient") -> None:
        from moldau.client.reassignment_plans import encode_plan

        plan = await _plan(client, broker)
        if json and dry_run:
            print(encode_plan(plan))
        elif dry_run:
            rows = [(*place, to) for place, to in plan.items()]
            show_table(("topic", "partition", "target"), rows, numbers=("partition",))
        else:
            await _carry_out(client, broker, plan, throttle, wait)
            if json:
                show_json({"broker": broker, "partitions": len(plan), "is_empty": wait})
            else:
                print(f"broker {broker} is empty" if wait else f"{len(plan)} partitions leave broker {broker}")
                await _say_what_is_next(client, broker)

    _run(bootstrap_servers, roll_back if undo else work)


@app.command()
def remove(
    broker: Broker,
    force: Annotated[bool, typer.Option("--force", help="Although partitions still count on it.")] = False,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
    json: Json = False,
) -> None:
    """Forget a broker that has been stopped for good."""

    async def work(client: "AsyncClient") -> None:
        from moldau.client.brokers import Brokers
        from moldau.model.errors import InvalidConfig, InvalidRequest

        brokers = Brokers(client)
        states = {each.node_id: each for each in await brokers.all(with_sizes=False)}
        state = states.get(broker)
        if state is None:
            raise _unknown(broker)
        if not state.is_fenced:
            raise CommandError(f"broker {broker} runs, and would come back at once: drain it, stop it, then remove it")
        if state.replicas and not force:
            raise CommandError(
                f"{state.replicas} partitions have a replica on broker {broker}: move them away first (moldau broker "
                f"drain {broker}), or say --force and they stay short of one"
            )
        with contextlib.suppress(InvalidConfig, InvalidRequest):  # a cluster of another make
            await brokers.uncordon(broker)  # or whoever has its number one day would get nothing
        await brokers.unregister(broker)
        if json:
            show_json({"broker": broker, "is_forgotten": True})
        else:
            print(f"broker {broker} is forgotten")

    _run(bootstrap_servers, work)


async def _plan(client: "AsyncClient", broker: int) -> "Assignment":
    from moldau.client.brokers import Brokers
    from moldau.client.plan_executor import PlanExecutor
    from moldau.client.reassignment_plans import plan_drain

    moves = PlanExecutor(client)
    states = {each.node_id: each for each in await Brokers(client).all()}
    if broker not in states:
        raise _unknown(broker)
    others = {node for node, each in states.items() if each.is_drained and node != broker}  # they get nothing new
    racks = {node: rack for node, rack in (await moves.racks()).items() if node not in others}
    if not racks.keys() - {broker}:
        raise CommandError(
            f"no other broker accepts partitions (moldau broker list): add one before draining broker {broker}"
        )
    await _check_led(client, broker)
    return plan_drain(await moves.assignment(), [broker], racks)


async def _check_led(client: "AsyncClient", broker: int) -> None:
    """What nobody leads is copied from nobody: it would be waited for in vain."""
    orphans = [
        f"{topic.name}-{each.index}"
        for topic in await client.describe_topics()
        for each in topic.partitions
        if broker in each.replicas and each.leader < 0
    ]
    if orphans:
        raise CommandError(
            f"{', '.join(orphans)} has no leader that it could be copied from: start one of its brokers "
            "(moldau cluster health), or delete the topic"
        )


async def _let_out(client: "AsyncClient", broker: int) -> None:
    """One that was forgotten although partitions counted on it gets nothing any more as it is."""
    from moldau.client.brokers import Brokers
    from moldau.model.errors import InvalidConfig, InvalidRequest

    cluster = await client.describe_cluster(with_fenced=True)
    if all(each.node_id != broker for each in cluster.brokers):
        return
    try:
        await Brokers(client).cordon(broker)
    except (InvalidConfig, InvalidRequest) as refusal:  # a cluster of another make
        note(f"it may be given new partitions meanwhile: {refusal.message}")


def _unknown(broker: int) -> CommandError:
    return CommandError(f"there is no broker {broker}; moldau broker list shows those there are")


async def _carry_out(
    client: "AsyncClient", broker: int, plan: "Assignment", throttle: int | None, is_patient: bool
) -> None:
    """Begin what is not under way yet, and wait until the broker holds nothing, whoever began it."""
    from moldau.client.plan_executor import PlanExecutor

    await _let_out(client, broker)
    moves = PlanExecutor(client)
    if plan:
        _, outcomes = await moves.begin(plan, throttle_bytes=throttle, is_additional=True)
        failed = [f"{place}: {error.message}" for place, error in outcomes.items() if error is not None]
        if failed:
            raise CommandError("; ".join(failed))
    if not is_patient:
        return
    leaving = {place: each.target for place, each in (await moves.reassignments.ongoing()).items()} | plan
    leaving = {place: target for place, target in leaving.items() if broker not in target}
    if leaving:
        await wait_until_settled(moves, leaving)
        await moves.clear_up(leaving)
    left = [str(place) for place, replicas in (await moves.assignment()).items() if broker in replicas]
    if left:
        raise CommandError(f"broker {broker} still holds {', '.join(left)}: run this again")


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


def show_brokers(states: "list[BrokerState]") -> None:
    """Print a table that fits into 80 columns, as long as addresses are short and no broker is in a rack."""
    has_racks = any(each.rack for each in states)
    columns = ("id", "address", *(("rack",) if has_racks else ()), *COUNTS)
    show_table(columns, [_row(each, has_racks=has_racks) for each in states], numbers=("id", *COUNTS[1:]))


def _row(state: "BrokerState", *, has_racks: bool) -> tuple[object, ...]:
    return (
        state.node_id,
        str(state.address) if state.address else None,
        *((state.rack,) if has_racks else ()),
        _state(state),
        state.leaders,
        state.preferred,
        f"{state.replicas}, {state.out_of_sync} behind" if state.out_of_sync else state.replicas,
        None if state.size_bytes is None else human_bytes(state.size_bytes),
        None if state.free_bytes is None else human_bytes(state.free_bytes),
    )


def _state(state: "BrokerState") -> str:
    if state.is_fenced:
        return "fenced"
    if state.size_bytes is None:
        return "unreachable"
    return "drained" if state.is_drained else "serves"


def _as_json(state: "BrokerState") -> dict[str, Any]:
    return {
        "id": state.node_id,
        "host": state.address.host if state.address else None,
        "port": state.address.port if state.address else None,
        "rack": state.rack,
        "is_fenced": state.is_fenced,
        "is_drained": state.is_drained,
        "leaders": state.leaders,
        "preferred": state.preferred,
        "replicas": state.replicas,
        "out_of_sync": state.out_of_sync,
        "size_bytes": state.size_bytes,
        "free_bytes": state.free_bytes,
    }


def _run(bootstrap_servers: str, work: "Callable[[AsyncClient], Awaitable[None]]") -> None:
    from moldau.cli.cluster_client import connect_async
    from moldau.client.reassignment_plans import InvalidPlan

    async def connected() -> None:
        async with connect_async(bootstrap_servers) as client:
            await work(client)

    try:
        asyncio.run(connected())
    except InvalidPlan as broken:
        raise CommandError(str(broken)) from broken

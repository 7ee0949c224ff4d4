"""`moldau broker`: list brokers, drain one, and unregister one that was stopped for good."""

import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from moldau.cli.errors import CommandError, usage_error
from moldau.cli.interrupts import run_async
from moldau.cli.options import BOOTSTRAP_DEFAULT, Bootstrap, Json
from moldau.cli.output import human_bytes, note, show_json, show_table
from moldau.cli.reassignments import Throttle, wait_until_settled

if TYPE_CHECKING:
    from moldau.client.async_client import AsyncClient
    from moldau.client.brokers import BrokerState
    from moldau.client.reassignment_plans import Assignment

app = typer.Typer(help="List, drain and remove brokers.", no_args_is_help=True)

COUNTS: Final = ("state", "leaders", "preferred", "replicas", "size", "free")

Broker = Annotated[int, typer.Argument(metavar="BROKER", min=0, show_default=False, help="The broker's id.")]


@app.command("list")
def list_brokers(bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT, json: Json = False) -> None:
    """List the brokers: state, partitions that they lead and hold, and disk space."""

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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show which partitions would move.")] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the broker is empty.")] = True,
    undo: Annotated[bool, typer.Option("--undo", help="Allow new partitions on it again; nothing moves back.")] = False,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
    json: Json = False,
) -> None:
    """Move all partitions of a broker to the others and place no new ones on it, so that it can be removed."""
    if throttle is not None and not wait:
        raise usage_error("--throttle is removed when the broker is empty, so it cannot be combined with --no-wait")
    if undo and (dry_run or throttle is not None):
        raise usage_error("--undo moves nothing and cannot be combined with --dry-run or --throttle")

    async def roll_back(client: "AsyncClient") -> None:
        from moldau.client.brokers import Brokers

        await Brokers(client).uncordon(broker)
        if json:
            show_json({"broker": broker, "is_drained": False})
        else:
            print(f"broker {broker} accepts new partitions again; to move old ones to it: moldau reassign generate")

    async def work(client: "AsyncClient") -> None:
        from moldau.client.reassignment_plans import encode_plan

        plan = await _plan(client, broker)
        if json and dry_run:
            print(encode_plan(plan))
        elif dry_run:
            rows = [(*place, to) for place, to in plan.items()]
            show_table(("topic", "partition", "target"), rows, numbers=("partition",))
        else:
            await _move_all(client, broker, plan, throttle, wait)
            if json:
                show_json({"broker": broker, "partitions": len(plan), "is_empty": wait})
            else:
                print(f"broker {broker} is empty" if wait else f"moving {len(plan)} partitions off broker {broker}")
                await _note_next_steps(client, broker)

    _run(bootstrap_servers, roll_back if undo else work)


@app.command()
def remove(
    broker: Broker,
    force: Annotated[bool, typer.Option("--force", help="Even if partitions still have replicas on it.")] = False,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
    json: Json = False,
) -> None:
    """Unregister a broker that has been stopped for good."""

    async def work(client: "AsyncClient") -> None:
        from moldau.client.brokers import Brokers
        from moldau.model.errors import InvalidConfig, InvalidRequest

        brokers = Brokers(client)
        states = {each.node_id: each for each in await brokers.all(with_sizes=False)}
        state = states.get(broker)
        if state is None:
            raise _unknown(broker)
        if not state.is_fenced:
            raise CommandError(f"broker {broker} is running and would register again: drain and stop it first")
        if state.replicas and not force:
            raise CommandError(
                f"{state.replicas} partitions have a replica on broker {broker}: move them first (moldau broker drain "
                f"{broker}), or use --force and leave them under-replicated"
            )
        with contextlib.suppress(InvalidConfig, InvalidRequest):  # not every Kafka cluster knows cordoned.log.dirs
            await brokers.uncordon(broker)  # for the next broker with this id
        await brokers.unregister(broker)
        if json:
            show_json({"broker": broker, "is_forgotten": True})
        else:
            print(f"broker {broker} is removed")

    _run(bootstrap_servers, work)


async def _plan(client: "AsyncClient", broker: int) -> "Assignment":
    from moldau.client.brokers import Brokers
    from moldau.client.plan_executor import PlanExecutor
    from moldau.client.reassignment_plans import plan_drain

    moves = PlanExecutor(client)
    states = {each.node_id: each for each in await Brokers(client).all()}
    if broker not in states:
        raise _unknown(broker)
    others = {node for node, each in states.items() if each.is_drained and node != broker}
    racks = {node: rack for node, rack in (await moves.racks()).items() if node not in others}
    if not racks.keys() - {broker}:
        raise CommandError(
            f"no other broker accepts partitions (moldau broker list): add one before draining broker {broker}"
        )
    await _check_led(client, broker)
    return plan_drain(await moves.assignment(), [broker], racks)


async def _check_led(client: "AsyncClient", broker: int) -> None:
    """A partition without a leader cannot be copied: draining it would never end."""
    orphans = [
        f"{topic.name}-{each.index}"
        for topic in await client.describe_topics()
        for each in topic.partitions
        if broker in each.replicas and each.leader < 0
    ]
    if orphans:
        raise CommandError(
            f"{', '.join(orphans)} cannot be copied without a leader: start one of its brokers "
            "(moldau cluster health), or delete the topic"
        )


async def _exclude_from_placement(client: "AsyncClient", broker: int) -> None:
    """Place no new partitions on the broker; one that is already unregistered gets none anyway."""
    from moldau.client.brokers import Brokers
    from moldau.model.errors import InvalidConfig, InvalidRequest

    cluster = await client.describe_cluster(with_fenced=True)
    if all(each.node_id != broker for each in cluster.brokers):
        return
    try:
        await Brokers(client).cordon(broker)
    except (InvalidConfig, InvalidRequest) as error:  # not every Kafka cluster knows cordoned.log.dirs
        note(f"new partitions may still be placed on the broker: {error.message}")


def _unknown(broker: int) -> CommandError:
    return CommandError(f"there is no broker {broker}; moldau broker list shows the brokers")


async def _move_all(client: "AsyncClient", broker: int, plan: "Assignment", throttle: int | None, waits: bool) -> None:
    """Start the moves that are not in progress yet, and wait until the broker is empty."""
    from moldau.client.plan_executor import PlanExecutor
    from moldau.client.reassignments import Election

    await _exclude_from_placement(client, broker)
    moves = PlanExecutor(client)
    if plan:
        _, outcomes = await moves.begin(plan, throttle_bytes=throttle, is_additional=True)
        failed = [f"{place}: {error.message}" for place, error in outcomes.items() if error is not None]
        if failed:
            raise CommandError("; ".join(failed))
    if not waits:
        return
    leaving = {place: each.target for place, each in (await moves.reassignments.ongoing()).items()} | plan
    leaving = {place: target for place, target in leaving.items() if broker not in target}
    if leaving:
        await wait_until_settled(moves, leaving)
        await moves.clear_up(leaving)
        await moves.reassignments.elect(Election.PREFERRED, leaving)  # the plan balances preferred leaders
    left = [str(place) for place, replicas in (await moves.assignment()).items() if broker in replicas]
    if left:
        raise CommandError(f"broker {broker} still holds {', '.join(left)}: run the command again")


async def _note_next_steps(client: "AsyncClient", broker: int) -> None:
    from moldau.client.quorum import Quorum
    from moldau.model.errors import ClusterAuthorizationFailed, UnsupportedVersion

    try:
        votes = any(each.node_id == broker for each in (await Quorum(client).describe()).voters)
    except (UnsupportedVersion, ClusterAuthorizationFailed):
        votes = False
    if votes:
        note(f"it is also a voter of the quorum: moldau quorum remove-controller {broker}")
    note(f"next: stop it, then run moldau broker remove {broker}")


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
        run_async(connected())
    except InvalidPlan as broken:
        raise CommandError(str(broken)) from broken

"""`moldau reassign`: move partitions by a plan, as Kafka's tools write it: generate, execute, verify, cancel, list."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from moldau.cli.completion import complete_topics
from moldau.cli.errors import CommandError, usage_error
from moldau.cli.files import read_text
from moldau.cli.options import BOOTSTRAP_DEFAULT, Bootstrap, Json
from moldau.cli.output import note, show_json, show_table

if TYPE_CHECKING:
    from moldau.client.plan_executor import PartitionMove, PlanExecutor
    from moldau.client.reassignment_plans import Assignment
    from moldau.client.reassignments import Outcomes

app = typer.Typer(help="Move partitions between brokers by a plan.", no_args_is_help=True)

NOT_DONE: Final = 1
LOOK_EVERY_S: Final = 1.0

PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", show_default=False, help="A file in Kafka's JSON form.")]
Throttle = Annotated[
    int | None,
    typer.Option("--throttle", metavar="BYTES", min=1, help="Copy no more than this per second and broker."),
]


@app.command()
def generate(
    brokers: Annotated[str, typer.Option("--brokers", metavar="ID,…", help="Who shall hold the partitions.")],
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", "-t", metavar="TOPIC", help="A topic to move; may be repeated.", autocompletion=complete_topics
        ),
    ] = None,
    topics_file: Annotated[
        Path | None, typer.Option("--topics-file", metavar="FILE", help="The same as Kafka's JSON.")
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            "--replication-factor", "-r", min=1, metavar="N", help="As many copies; else as many as there are."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write the plan there.")] = None,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
    json: Json = False,
) -> None:
    """Make a plan that spreads topics evenly over brokers and moves as little as it can. Nothing is changed yet."""
    wanted = _brokers(brokers)
    names = _topics(topics, topics_file)

    async def work(moves: "PlanExecutor") -> None:
        from moldau.client.reassignment_plans import encode_plan, plan_balance

        racks = await moves.racks()
        absent = [each for each in wanted if each not in racks]
        if absent:
            raise CommandError(f"no such broker serves: {_listed(absent)}; those that do: {_listed(sorted(racks))}")
        before = await moves.assignment(names or None)
        plan = plan_balance(before, {each: racks[each] for each in wanted}, replicas)
        if out is not None:
            out.write_text(encode_plan(plan) + "\n")
        if json:
            print(encode_plan(plan))
        else:
            _show_plan(plan, before, out)

    _run(bootstrap_servers, work)


@app.command()
def execute(
    plan: PlanFile,
    throttle: Throttle = None,
    additional: Annotated[
        bool, typer.Option("--additional", help="Although other partitions are being moved; also to change --throttle.")
    ] = False,
    rollback: Annotated[
        Path | None, typer.Option("--rollback", metavar="FILE", help="Write a plan there that leads back.")
    ] = None,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
    json: Json = False,
) -> None:
    """Begin to move partitions as the plan says. `verify` tells how far it is."""
    wanted = _read(plan)

    def keep(before: "Assignment") -> None:
        """Nothing moves if the way back could not be kept; and it is there if something goes wrong on the way."""
        from moldau.client.reassignment_plans import encode_plan

        if rollback is not None:
            rollback.write_text(encode_plan(before) + "\n")
        else:
            note(f"to go back, keep this: {encode_plan(before)}")

    async def work(moves: "PlanExecutor") -> None:
        from moldau.client.plan_executor import ReassignmentInProgress

        try:
            before, outcomes = await moves.begin(wanted, throttle_bytes=throttle, is_additional=additional, keep=keep)
        except ReassignmentInProgress as running:
            raise CommandError(f"{running}: wait for them (moldau reassign list), or add --additional") from None
        if json:
            show_json({"before": _plan_as_json(before), "partitions": _outcomes_as_json(outcomes)})
        else:
            rest = ", the others are there or on their way" if len(outcomes) < len(wanted) else ""
            limit = f"; each broker copies at most {throttle} bytes a second" if throttle is not None else ""
            print(f"{len(outcomes) - _failures(outcomes)} of {len(wanted)} partitions begin to move{rest}{limit}")
        _fail_on_errors(outcomes)

    _run(bootstrap_servers, work)


@app.command()
def verify(
    plan: PlanFile,
    wait: Annotated[bool, typer.Option("--wait", help="Until all is done.")] = False,
    preserve_throttles: Annotated[
        bool, typer.Option("--preserve-throttles", help="Leave the limits on when all is done.")
    ] = False,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
    json: Json = False,
) -> None:
    """Tell how far a plan is, and take its limits off once it is done. Ends with 1 while it is not."""
    wanted = _read(plan)
    is_done = False

    async def work(moves: "PlanExecutor") -> None:
        nonlocal is_done
        found = await (wait_until_settled(moves, wanted) if wait else moves.progress(wanted))
        is_done = all(each.is_done for each in found)
        freed = [] if preserve_throttles or any(_moves(each) for each in found) else await moves.clear_up(wanted)
        if json:
            show_json({"is_done": is_done, "unthrottled": freed, "partitions": [_move_as_json(each) for each in found]})
            return
        rows = [
            (each.partition.topic, each.partition.partition, each.stage.value, each.replicas, each.target, _share(each))
            for each in found
        ]
        columns = ("topic", "partition", "state", "replicas", "target", "copied")
        show_table(columns, rows, numbers=("partition", "copied"))
        note(_verdict(found) + (f"; limits taken off: {', '.join(freed)}" if freed else ""))

    _run(bootstrap_servers, work)
    if not is_done:
        raise typer.Exit(NOT_DONE)


@app.command()
def cancel(
    plan: PlanFile,
    preserve_throttles: Annotated[bool, typer.Option("--preserve-throttles", help="Leave the limits on.")] = False,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
    json: Json = False,
) -> None:
    """Call off what is under way: the partitions of the plan stay, or go back, where they were."""
    wanted = _read(plan)

    async def work(moves: "PlanExecutor") -> None:
        outcomes = await moves.cancel(wanted)
        freed = [] if preserve_throttles else await moves.clear_up(wanted)
        if json:
            show_json({"unthrottled": freed, "partitions": _outcomes_as_json(outcomes)})
        else:
            done = len(outcomes) - _failures(outcomes)
            print(f"{done} moves called off" if outcomes else "no partition of the plan is being moved")
        _fail_on_errors(outcomes)

    _run(bootstrap_servers, work)


@app.command("list")
def list_moves(bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT, json: Json = False) -> None:
    """What is being moved just now."""

    async def work(moves: "PlanExecutor") -> None:
        moving = await moves.reassignments.ongoing()
        if json:
            show_json(
                [
                    {
                        "topic": place.topic,
                        "partition": place.partition,
                        "replicas": list(each.replicas),
                        "adding": list(each.adding),
                        "removing": list(each.removing),
                    }
                    for place, each in moving.items()
                ]
            )
        elif moving:
            rows = [(*place, each.replicas, each.adding, each.removing) for place, each in moving.items()]
            show_table(("topic", "partition", "replicas", "adding", "removing"), rows, numbers=("partition",))
        else:
            note("no partition is being moved")

    _run(bootstrap_servers, work)


async def wait_until_settled(moves: "PlanExecutor", plan: "Assignment") -> "list[PartitionMove]":
    """Look until nothing of the plan moves any more; each step forward is told."""
    told = -1
    while True:
        found = await moves.progress(plan)
        done = sum(each.is_done for each in found)
        if not any(map(_moves, found)):
            return found
        if done != told:
            note(f"{done} of {len(found)} partitions have moved")
            told = done
        await asyncio.sleep(LOOK_EVERY_S)


def _moves(move: "PartitionMove") -> bool:
    return move.stage.value == "moving"


def _share(move: "PartitionMove") -> str | None:
    return None if move.copied is None else f"{move.copied:.0%}"


def _verdict(found: "Sequence[PartitionMove]") -> str:
    stages = ("done", "moving", "elsewhere", "gone")
    counts = {stage: sum(each.stage.value == stage for each in found) for stage in stages}
    gone = f", {counts['gone']} gone from the cluster" if counts["gone"] else ""
    if all(each.is_done for each in found):
        return f"done: {counts['done']} partitions are where the plan wants them{gone}"
    stray = f", {counts['elsewhere']} are not where the plan wants them and do not move" if counts["elsewhere"] else ""
    return f"not done: {counts['done']} of {len(found)} are there, {counts['moving']} move{stray}{gone}"


def _read(path: Path) -> "Assignment":
    from moldau.client.reassignment_plans import InvalidPlan, decode_plan

    try:
        return decode_plan(read_text(path))
    except InvalidPlan as error:
        raise usage_error(f"{path}: {error}") from error


def _topics(names: list[str] | None, file: Path | None) -> list[str]:
    from moldau.client.reassignment_plans import InvalidPlan, decode_topics

    if file is None:
        return names or []
    try:
        return [*(names or ()), *decode_topics(read_text(file))]
    except InvalidPlan as error:
        raise usage_error(f"{file}: {error}") from error


def _brokers(text: str) -> list[int]:
    parts = [each.strip() for each in text.split(",") if each.strip()]
    if not parts or not all(each.isdecimal() for each in parts):
        raise usage_error(f"--brokers {text}: write their ids, as in 1,2,3")
    return sorted({int(each) for each in parts})


def _listed(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids)) or "none"


def _show_plan(plan: "Assignment", before: "Assignment", out: Path | None) -> None:
    if not plan:
        note("nothing to do: the partitions are spread evenly over these brokers")
        return
    rows = [(*place, before[place], replicas, _newcomers(before[place], replicas)) for place, replicas in plan.items()]
    show_table(("topic", "partition", "replicas", "target", "copied to"), rows, numbers=("partition",))
    copies = sum(len(_newcomers(before[place], replicas)) for place, replicas in plan.items())
    where = f"now: moldau reassign execute {out}" if out else "--out FILE keeps the plan, --json prints it"
    note(f"{len(plan)} of {len(before)} partitions would change, {copies} copies be made; {where}")


def _newcomers(before: Sequence[int], after: Sequence[int]) -> list[int]:
    return [each for each in after if each not in before]


def _plan_as_json(assignment: "Assignment") -> Any:
    import json

    from moldau.client.reassignment_plans import encode_plan

    return json.loads(encode_plan(assignment))


def _move_as_json(move: "PartitionMove") -> dict[str, Any]:
    return {
        "topic": move.partition.topic,
        "partition": move.partition.partition,
        "state": move.stage.value,
        "replicas": list(move.replicas),
        "target": list(move.target),
        "copied": move.copied,
    }


def _outcomes_as_json(outcomes: "Outcomes") -> list[dict[str, Any]]:
    return [
        {
            "topic": place.topic,
            "partition": place.partition,
            "error": None if error is None else {"code": error.code.name, "message": error.message},
        }
        for place, error in sorted(outcomes.items())
    ]


def _failures(outcomes: "Outcomes") -> int:
    return sum(error is not None for error in outcomes.values())


def _fail_on_errors(outcomes: "Outcomes") -> None:
    failed = [f"{place}: {error.message}" for place, error in sorted(outcomes.items()) if error is not None]
    if failed:
        raise CommandError("; ".join(failed))


def _run(bootstrap_servers: str, work: "Callable[[PlanExecutor], Awaitable[None]]") -> None:
    from moldau.cli.cluster_client import connect_async
    from moldau.client.plan_executor import PlanExecutor
    from moldau.client.reassignment_plans import InvalidPlan

    async def connected() -> None:
        async with connect_async(bootstrap_servers) as client:
            await work(PlanExecutor(client))

    try:
        asyncio.run(connected())
    except InvalidPlan as broken:
        raise CommandError(str(broken)) from broken

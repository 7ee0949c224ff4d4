"""`moldau reassign`: move partitions with a plan in Kafka's JSON form: generate, execute, verify, cancel, list."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from moldau.cli.completion import complete_topics
from moldau.cli.errors import CommandError, usage_error
from moldau.cli.files import read_text
from moldau.cli.interrupts import run_async
from moldau.cli.options import BOOTSTRAP_DEFAULT, Bootstrap, Json
from moldau.cli.output import note, show_json, show_table

if TYPE_CHECKING:
    from moldau.client.plan_executor import PartitionMove, PlanExecutor
    from moldau.client.reassignment_plans import Assignment
    from moldau.client.reassignments import Outcomes

app = typer.Typer(help="Move partitions between brokers with a plan.", no_args_is_help=True)

NOT_DONE: Final = 1
POLL_S: Final = 1.0

PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", show_default=False, help="A plan in Kafka's JSON form.")]
Throttle = Annotated[
    int | None,
    typer.Option("--throttle", metavar="BYTES", min=1, help="Limit of copied bytes per second and broker."),
]


@app.command()
def generate(
    brokers: Annotated[str, typer.Option("--brokers", metavar="ID,…", help="Brokers that shall hold the partitions.")],
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", "-t", metavar="TOPIC", help="A topic to move; may be repeated.", autocompletion=complete_topics
        ),
    ] = None,
    topics_file: Annotated[
        Path | None, typer.Option("--topics-file", metavar="FILE", help="Topics in Kafka's JSON form.")
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            "--replication-factor", "-r", min=1, metavar="N", help="Replicas per partition; unchanged if not given."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write the plan to this file.")
    ] = None,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
    json: Json = False,
) -> None:
    """Generate a plan that balances topics over brokers with as few moves as possible. Nothing is changed yet."""
    wanted = _brokers(brokers)
    names = _topics(topics, topics_file)

    async def work(moves: "PlanExecutor") -> None:
        from moldau.client.reassignment_plans import encode_plan, plan_balance

        racks = await moves.racks()
        absent = [each for each in wanted if each not in racks]
        if absent:
            raise CommandError(f"not running: broker {_listed(absent)}; running: {_listed(sorted(racks))}")
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
        bool, typer.Option("--additional", help="Even if other partitions are moving; also to change --throttle.")
    ] = False,
    rollback: Annotated[
        Path | None, typer.Option("--rollback", metavar="FILE", help="Write a plan that undoes this one.")
    ] = None,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
    json: Json = False,
) -> None:
    """Start to move partitions as planned. `verify` shows the progress."""
    wanted = _read(plan)

    def save_rollback(before: "Assignment") -> None:
        """Called before the first move: if the rollback plan cannot be saved, nothing is moved."""
        from moldau.client.reassignment_plans import encode_plan

        if rollback is not None:
            rollback.write_text(encode_plan(before) + "\n")
        else:
            note(f"to roll back, keep this plan: {encode_plan(before)}")

    async def work(moves: "PlanExecutor") -> None:
        from moldau.client.plan_executor import ReassignmentInProgress

        try:
            before, outcomes = await moves.begin(
                wanted, throttle_bytes=throttle, is_additional=additional, keep=save_rollback
            )
        except ReassignmentInProgress as running:
            raise CommandError(f"{running}: wait for them (moldau reassign list), or add --additional") from None
        if json:
            show_json({"before": _plan_as_json(before), "partitions": _outcomes_as_json(outcomes)})
        else:
            rest = ", the others are in place or moving already" if len(outcomes) < len(wanted) else ""
            limit = f"; each broker copies at most {throttle} bytes a second" if throttle is not None else ""
            print(f"{len(outcomes) - _failures(outcomes)} of {len(wanted)} partitions start to move{rest}{limit}")
        _fail_on_errors(outcomes)

    _run(bootstrap_servers, work)


@app.command()
def verify(
    plan: PlanFile,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the plan is done.")] = False,
    preserve_throttles: Annotated[
        bool, typer.Option("--preserve-throttles", help="Keep the throttles when the plan is done.")
    ] = False,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
    json: Json = False,
) -> None:
    """Show the progress of a plan, and remove its throttles once it is done. The exit code is 1 until then."""
    wanted = _read(plan)
    is_done = False

    async def work(moves: "PlanExecutor") -> None:
        nonlocal is_done
        found = await (wait_until_settled(moves, wanted) if wait else moves.progress(wanted))
        is_done = all(each.is_done for each in found)
        freed = [] if preserve_throttles or any(_is_moving(each) for each in found) else await moves.clear_up(wanted)
        if json:
            show_json({"is_done": is_done, "unthrottled": freed, "partitions": [_move_as_json(each) for each in found]})
            return
        rows = [
            (
                each.partition.topic,
                each.partition.partition,
                each.stage.value,
                each.replicas,
                each.target,
                _copied_share(each),
            )
            for each in found
        ]
        columns = ("topic", "partition", "state", "replicas", "target", "copied")
        show_table(columns, rows, numbers=("partition", "copied"))
        note(_verdict(found) + (f"; throttles removed: {', '.join(freed)}" if freed else ""))

    _run(bootstrap_servers, work)
    if not is_done:
        raise typer.Exit(NOT_DONE)


@app.command()
def cancel(
    plan: PlanFile,
    preserve_throttles: Annotated[bool, typer.Option("--preserve-throttles", help="Keep the throttles.")] = False,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
    json: Json = False,
) -> None:
    """Cancel the moves of a plan: its partitions return to their previous replicas."""
    wanted = _read(plan)

    async def work(moves: "PlanExecutor") -> None:
        outcomes = await moves.cancel(wanted)
        freed = [] if preserve_throttles else await moves.clear_up(wanted)
        if json:
            show_json({"unthrottled": freed, "partitions": _outcomes_as_json(outcomes)})
        else:
            done = len(outcomes) - _failures(outcomes)
            print(f"{done} moves cancelled" if outcomes else "no partition of the plan is moving")
        _fail_on_errors(outcomes)

    _run(bootstrap_servers, work)


@app.command("list")
def list_moves(bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT, json: Json = False) -> None:
    """List the partitions that are moving."""

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
            note("no partition is moving")

    _run(bootstrap_servers, work)


async def wait_until_settled(moves: "PlanExecutor", plan: "Assignment") -> "list[PartitionMove]":
    """Poll until nothing of the plan is moving; print progress."""
    printed = -1
    while True:
        found = await moves.progress(plan)
        done = sum(each.is_done for each in found)
        if not any(map(_is_moving, found)):
            return found
        if done != printed:
            note(f"{done} of {len(found)} partitions have moved")
            printed = done
        await asyncio.sleep(POLL_S)


def _is_moving(move: "PartitionMove") -> bool:
    return move.stage.value == "moving"


def _copied_share(move: "PartitionMove") -> str | None:
    return None if move.copied is None else f"{move.copied:.0%}"


def _verdict(found: "Sequence[PartitionMove]") -> str:
    stages = ("done", "moving", "elsewhere", "gone")
    counts = {stage: sum(each.stage.value == stage for each in found) for stage in stages}
    gone = f", {counts['gone']} no longer exist" if counts["gone"] else ""
    if all(each.is_done for each in found):
        return f"done: {counts['done']} partitions are in place{gone}"
    stray = f", {counts['elsewhere']} are elsewhere and not moving" if counts["elsewhere"] else ""
    return f"not done: {counts['done']} of {len(found)} are in place, {counts['moving']} moving{stray}{gone}"


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
        raise usage_error(f"--brokers {text}: write ids such as 1,2,3")
    return sorted({int(each) for each in parts})


def _listed(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids)) or "none"


def _show_plan(plan: "Assignment", before: "Assignment", out: Path | None) -> None:
    if not plan:
        note("nothing to do: the partitions are balanced over these brokers")
        return
    rows = [
        (*place, before[place], replicas, _added_replicas(before[place], replicas)) for place, replicas in plan.items()
    ]
    show_table(("topic", "partition", "replicas", "target", "copied to"), rows, numbers=("partition",))
    copies = sum(len(_added_replicas(before[place], replicas)) for place, replicas in plan.items())
    where = f"next: moldau reassign execute {out}" if out else "--out FILE saves the plan, --json prints it"
    note(f"{len(plan)} of {len(before)} partitions would change, {copies} replicas be copied; {where}")


def _added_replicas(before: Sequence[int], after: Sequence[int]) -> list[int]:
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
        run_async(connected())
    except InvalidPlan as broken:
        raise CommandError(str(broken)) from broken

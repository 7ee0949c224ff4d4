"""`moldau log-dirs`: the log dirs of each broker."""

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from moldau.cli.completion import complete_topics
from moldau.cli.errors import CommandError
from moldau.cli.interrupts import run_async
from moldau.cli.options import BOOTSTRAP_DEFAULT, Bootstrap, Json
from moldau.cli.output import human_bytes, note, show_json, show_table
from moldau.cli.partial_results import fail_if_unresponsive

if TYPE_CHECKING:
    from moldau.client.async_client import AsyncClient
    from moldau.client.log_dirs import LogDir, LogDirs

app = typer.Typer()

COLUMNS: Final = ("broker", "log dir", "state", "total", "free", "size", "partitions", "futures")
NUMBERS: Final = ("broker", "total", "free", "size", "partitions", "futures")


@app.command()
def log_dirs(
    broker: Annotated[
        list[int] | None,
        typer.Option("--broker", min=0, metavar="ID", help="Of this broker only; may be repeated."),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC",
            help="Count replicas of this topic only; may be repeated.",
            autocompletion=complete_topics,
        ),
    ] = None,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
    json: Json = False,
) -> None:
    """Show each log dir of each broker: space, size of the replicas, copies that move there, and whether it is offline.

    With --json, also the size and lag of each replica. The exit code is 1 if a broker does not respond.
    """
    found = run_async(_find(bootstrap_servers, broker or [], topic or []))
    if json:
        show_json([_as_json(each) for each in found.found])
    else:
        show_table(COLUMNS, [_row(each) for each in found.found], numbers=NUMBERS)
        for each in found.found:
            if each.error is not None:
                note(f"log dir {each.path} of broker {each.broker} is offline: {each.error.name}")
    fail_if_unresponsive(found.unreachable, "log dirs")


async def _find(bootstrap: str, brokers: list[int], topics: list[str]) -> "LogDirs":
    from moldau.cli.cluster_client import connect_async
    from moldau.client.log_dirs import describe_log_dirs

    async with connect_async(bootstrap) as client:
        await _check_topics(client, topics)
        view = await client.describe_cluster(with_fenced=True)
        known = [int(each.node_id) for each in view.brokers]
        for each in brokers:
            if each not in known:
                raise CommandError(f"there is no broker {each}; the brokers are {', '.join(map(str, known))}")
        return await describe_log_dirs(client, set(brokers or known), topics)


async def _check_topics(client: "AsyncClient", topics: list[str]) -> None:
    for each in await client.describe_topics(topics) if topics else ():
        if each.error is not None:
            raise each.error


def _row(log_dir: "LogDir") -> tuple[object, ...]:
    return (
        log_dir.broker,
        log_dir.path,
        "offline" if log_dir.is_offline else "drained" if log_dir.is_cordoned else "online",
        None if log_dir.total_bytes is None else human_bytes(log_dir.total_bytes),
        None if log_dir.free_bytes is None else human_bytes(log_dir.free_bytes),
        human_bytes(log_dir.size_bytes),
        len(log_dir.replicas) - len(log_dir.futures),
        len(log_dir.futures),
    )


def _as_json(log_dir: "LogDir") -> dict[str, Any]:
    return {
        "broker": log_dir.broker,
        "log_dir": log_dir.path,
        "is_offline": log_dir.is_offline,
        "error": None if log_dir.error is None else log_dir.error.name,
        "is_drained": log_dir.is_cordoned,
        "total_bytes": log_dir.total_bytes,
        "free_bytes": log_dir.free_bytes,
        "size_bytes": log_dir.size_bytes,
        "partitions": [
            {
                "topic": each.partition.topic,
                "partition": each.partition.partition,
                "size_bytes": each.size_bytes,
                "lag": each.lag,
                "is_future": each.is_future,
            }
            for each in log_dir.replicas
        ],
    }

"""`moldau up`: a cluster of several brokers on this machine, under one supervisor."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from moldau import __version__
from moldau.cli.interrupts import run_async
from moldau.cli.options import pairs
from moldau.cli.output import note, show_table
from moldau.cli.standard_streams import ignore_full_disk

if TYPE_CHECKING:
    from moldau.cli.local.layout import LocalCluster
    from moldau.cli.local.supervisor import RunningNode

app = typer.Typer()

DIRECTORY_DEFAULT: Final = Path("moldau-cluster")
PORT_MAX: Final = 65_535
COLUMNS: Final = ("node", "kafka", "controller", "metrics", "pid")


@app.command()
def up(
    brokers: Annotated[
        int | None, typer.Option("--brokers", "-n", min=1, max=100, help="Number of brokers. [3]")
    ] = None,
    data: Annotated[
        Path, typer.Option("--data", "-d", metavar="DIRECTORY", help="Where to keep the data.")
    ] = DIRECTORY_DEFAULT,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", "-p", min=1, max=PORT_MAX, help="Port of the first broker; others follow from it. [9092]"
        ),
    ] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Restart nodes that exit.")] = False,
    settings: Annotated[
        list[str] | None, typer.Option("-c", metavar="KEY=VALUE", help="A setting of all nodes, by Kafka's name.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not show the nodes' log lines.")] = False,
) -> None:
    """Run a cluster on this machine until it is stopped (Ctrl-C, SIGTERM).

    A second start on the same directory continues the same cluster. The first three nodes are controllers too.
    """
    from moldau.cli.local.layout import LocalCluster
    from moldau.cli.local.preflight import check_folders_and_ports

    given = pairs(settings, "-c")
    cluster = LocalCluster.open(data, brokers=brokers, port=port, settings=given, check=check_folders_and_ports)
    _run(cluster, restart, quiet)


def _run(cluster: "LocalCluster", restarts: bool, is_quiet: bool) -> None:
    from moldau.cli.local.supervisor import Supervisor

    def log(line: str) -> None:
        if not is_quiet:
            note(line)

    def announce(running: "list[RunningNode]") -> None:
        with ignore_full_disk(sys.stdout):
            _announce(cluster, running)

    async def supervise() -> None:
        await Supervisor(cluster, note=note, log=log, restarts=restarts).run(announce)

    run_async(supervise())


def _announce(cluster: "LocalCluster", running: "list[RunningNode]") -> None:
    servers = cluster.bootstrap_servers
    first = servers.split(",")[0]
    option = "" if first == "localhost:9092" else f" -b {first}"
    print(f"moldau {__version__}: {len(cluster.nodes)} brokers serve on {servers}")
    print(f"  data  {cluster.folder} (cluster {cluster.state.cluster_id})")
    print()
    show_table(COLUMNS, [_row(each) for each in running], numbers=("node", "pid"))
    print()
    print(f"  try   moldau cluster health{option}")
    print(f"        moldau topic create orders --partitions 6{option}")
    print(f"        echo hello | moldau produce orders{option}")
    print(f"        moldau topic describe orders{option}")
    if len(running) > 1:
        print(f"        kill -9 {running[1].pid}  # node {running[1].node.node_id} fails, the others take over")
    print("  stop  Ctrl-C")


def _row(running: "RunningNode") -> tuple[object, ...]:
    address, controller = running.node.address, running.node.controller
    return (
        running.node.node_id,
        str(address),
        None if controller is None else f"{address.host}:{controller.port}",
        running.metrics,
        running.pid,
    )

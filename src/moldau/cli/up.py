"""`moldau up`: a cluster of several brokers on this machine, under one supervisor."""

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from moldau import __version__
from moldau.cli.options import pairs
from moldau.cli.output import note
from moldau.cli.standard_streams import ignore_full_disk

if TYPE_CHECKING:
    from moldau.cli.local.layout import LocalCluster

app = typer.Typer()

FOLDER_DEFAULT: Final = Path("moldau-cluster")
PORT_MAX: Final = 65_535


@app.command()
def up(
    brokers: Annotated[int | None, typer.Option("--brokers", "-n", min=1, max=100, help="How many. [3]")] = None,
    data: Annotated[
        Path, typer.Option("--data", "-d", metavar="FOLDER", help="Where to keep the data.")
    ] = FOLDER_DEFAULT,
    port: Annotated[
        int | None, typer.Option("--port", "-p", min=1, max=PORT_MAX, help="Of the first broker. [9092]")
    ] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Start a node again that ends by itself.")] = False,
    settings: Annotated[
        list[str] | None, typer.Option("-c", metavar="KEY=VALUE", help="A setting of all nodes, by Kafka's name.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not show the nodes' log lines.")] = False,
) -> None:
    """Run a cluster on this machine until it is stopped (Ctrl-C, SIGTERM).

    A second start on the same folder continues the same cluster. The first three nodes are controllers too.
    """
    from moldau.cli.local.layout import LocalCluster
    from moldau.cli.local.preflight import check_folders_and_ports

    said = pairs(settings, "-c")
    cluster = LocalCluster.open(data, brokers=brokers, port=port, settings=said, check=check_folders_and_ports)
    _run(cluster, restart, quiet)


def _run(cluster: "LocalCluster", restarts: bool, is_quiet: bool) -> None:
    from moldau.cli.local.supervisor import Supervisor

    def log(line: str) -> None:
        if not is_quiet:
            note(line)

    def announce() -> None:
        with ignore_full_disk(sys.stdout):
            _announce(cluster)

    async def supervise() -> None:
        await Supervisor(cluster, say=note, log=log, restarts=restarts).run(announce)

    asyncio.run(supervise())


def _announce(cluster: "LocalCluster") -> None:
    servers = cluster.bootstrap_servers
    first = servers.split(",")[0]
    option = "" if first == "localhost:9092" else f" -b {first}"
    controllers = ", ".join(str(each.node_id) for each in cluster.state.controllers)
    print(f"moldau {__version__}: {len(cluster.nodes)} brokers serve on {servers}")
    print(f"  data         {cluster.folder} (cluster {cluster.state.cluster_id})")
    print(f"  controllers  {controllers}")
    print(f"  try          moldau cluster health{option}")
    print(f"               moldau topic create orders --partitions 6{option}")
    print(f"               echo hello | moldau produce orders{option}")
    print(f"               moldau topic describe orders{option}")
    print("  stop         Ctrl-C")

"""`moldau up`: a cluster of several brokers on this machine, under one supervisor."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from moldau import __version__
from moldau.cli.interrupts import run_async
from moldau.cli.local.console_process import ConsoleProcess, Serve, console_process
from moldau.cli.options import pairs
from moldau.cli.output import note, show_table
from moldau.cli.standard_streams import ignore_full_disk

if TYPE_CHECKING:
    from moldau.cli.local.layout import LocalCluster
    from moldau.cli.local.security import ClusterSecurity
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
    secure: Annotated[
        bool, typer.Option("--secure", help="TLS, users with passwords and ACLs; writes settings for clients.")
    ] = False,
    serve: Serve = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not show the nodes' log lines.")] = False,
) -> None:
    """Run a cluster on this machine until it is stopped (Ctrl-C, SIGTERM).

    A second start on the same directory continues the same cluster. The first three nodes are controllers too.
    """
    from moldau.cli.local.layout import INTER_BROKER_PROTOCOL, LocalCluster
    from moldau.cli.local.preflight import check_folders_and_ports
    from moldau.cli.local.security import ClusterSecurity

    given = pairs(settings, "-c")
    security = ClusterSecurity.open(data, is_wanted=secure)
    with console_process(serve, is_secured=security is not None or INTER_BROKER_PROTOCOL in given) as console:
        cluster = LocalCluster.open(
            data,
            brokers=brokers,
            port=port,
            settings=given if security is None else security.node_settings | given,
            scram_users=None if security is None else security.scram_users,
            acls=() if security is None else security.acls,
            check=check_folders_and_ports,
            prepare=lambda cluster: None if security is None else security.write(cluster.bootstrap_servers),
        )
        _run(cluster, security, console, restart, quiet)


def _run(
    cluster: "LocalCluster",
    security: "ClusterSecurity | None",
    console: ConsoleProcess | None,
    restarts: bool,
    is_quiet: bool,
) -> None:
    from moldau.cli.local.supervisor import Supervisor

    def log(line: str) -> None:
        if not is_quiet:
            note(line)

    def announce(running: "list[RunningNode]") -> None:
        with ignore_full_disk(sys.stdout):
            _announce(cluster, security, running)
        if console is not None:
            console.start(cluster.bootstrap_servers)

    async def supervise() -> None:
        await Supervisor(cluster, note=note, log=log, restarts=restarts).run(announce)

    run_async(supervise())


def _announce(cluster: "LocalCluster", security: "ClusterSecurity | None", running: "list[RunningNode]") -> None:
    servers = cluster.bootstrap_servers
    first = servers.split(",")[0]
    option = "" if first == "localhost:9092" or security is not None else f" -b {first}"
    count = "1 broker serves" if len(running) == 1 else f"{len(running)} brokers serve"
    print(f"moldau {__version__}: {count} on {servers}")
    print(f"  data  {cluster.folder} (cluster {cluster.state.cluster_id})")
    print()
    show_table(COLUMNS, [_row(each) for each in running], numbers=("node", "pid"))
    print()
    if security is not None:
        _announce_clients(security)
    print(f"{'  try' if security is None else '     '}   moldau cluster health{option}")
    print(f"        moldau topic create orders --partitions 6{option}")
    print(f"        echo hello | moldau produce orders{option}")
    print(f"        moldau topic describe orders{option}")
    if len(running) > 1:
        print(f"        kill -9 {running[1].pid}  # node {running[1].node.node_id} fails, the others take over")
    print("  stop  Ctrl-C")


def _announce_clients(security: "ClusterSecurity") -> None:
    """Print how each client connects. Passwords stay in files, because output is often kept."""
    from moldau.cli.local.security import ADMIN, APP

    settings = f'json.load(open("{security.client_file(APP, "json")}"))'
    print(f"  TLS and passwords: {ADMIN} may do everything, {APP} may produce and consume. Clients connect with")
    print(f"        moldau            --command-config {security.client_file(APP)}")
    print(f"        kcat              -F {security.client_file(APP, 'kcat')}")
    print(f"        Java, Kafka tools {security.client_file(APP)}")
    print(f'        confluent-kafka   Producer({settings}["confluent_kafka"])')
    print(f'        kafka-python      KafkaProducer(**{settings}["kafka_python"])')
    print(f'        Spark             spark.read.format("moldau").options(**{settings}["spark"])')
    print()
    print(f"  try   export MOLDAU_COMMAND_CONFIG={security.client_file(ADMIN)}")


def _row(running: "RunningNode") -> tuple[object, ...]:
    address, controller = running.node.address, running.node.controller
    return (
        running.node.node_id,
        str(address),
        None if controller is None else f"{address.host}:{controller.port}",
        running.metrics,
        running.pid,
    )

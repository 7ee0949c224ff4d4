"""Options that the benchmark commands share."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moldau.cli.options import BOOTSTRAP_VARIABLE

if TYPE_CHECKING:
    from moldau.cli.bench.session import Plan


class Client(StrEnum):
    """The client that sends the load."""

    RAW = "raw"
    LIBRDKAFKA = "librdkafka"


Where = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-servers",
        "--bootstrap-server",
        "-b",
        envvar=BOOTSTRAP_VARIABLE,
        metavar="HOST:PORT,…",
        show_default=False,
        help="A cluster to measure, of any Kafka. Without it, a broker is started.",
    ),
]
Embedded = Annotated[bool, typer.Option("--embedded", help=f"Start a broker, even if {BOOTSTRAP_VARIABLE} is set.")]
Folder = Annotated[
    Path | None,
    typer.Option(
        "--folder", exists=True, file_okay=False, help="Directory for the data; deleted afterwards. [temporary]"
    ),
]
Rounds = Annotated[
    int, typer.Option("--rounds", "-n", min=1, max=1000, help="Rounds: how often each load is measured.")
]
Connections = Annotated[
    int, typer.Option("--connections", min=1, max=256, help="Connections; each has its own partition.")
]
By = Annotated[Client, typer.Option("--client", help="The client: prepared bytes on plain sockets, or librdkafka.")]
Rate = Annotated[float, typer.Option("--rate", min=0.01, max=10_000, help="Rate in megabytes per second.")]
Seconds = Annotated[float, typer.Option("--seconds", min=0.1, max=600, help="Duration of a round.")]
InFlight = Annotated[int, typer.Option("--in-flight", min=1, max=1000, help="Requests in flight per connection.")]
ValueBytes = Annotated[int, typer.Option("--value-bytes", min=0, max=1_000_000, help="Size of a record's value.")]
Records = Annotated[int, typer.Option("--records", min=1, max=100_000_000, help="Records of a round, with librdkafka.")]
BatchRecords = Annotated[int, typer.Option("--batch", min=1, max=100_000, help="Records in a batch.")]


def plan_of(where: str | None, embedded: bool, folder: Path | None, rounds: int, connections: int) -> "Plan":
    from moldau.cli.bench.session import Plan

    return Plan(None if embedded else where, folder, rounds, connections)

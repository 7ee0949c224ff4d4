"""`moldau plan`: the partitions, brokers, disks and network that a target load needs."""

from typing import Annotated

import typer

from moldau.cli.errors import usage_error
from moldau.cli.options import Json, duration_ms
from moldau.cli.output import show_json, show_table

app = typer.Typer()


@app.command()
def plan(
    load: Annotated[
        str, typer.Argument(metavar="LOAD", show_default=False, help="10TB/day, 115MB/s, or messages: 350000/s.")
    ],
    message_size: Annotated[str, typer.Option("--message-size", metavar="SIZE", help="Of a message.")] = "1KB",
    peak: Annotated[float, typer.Option("--peak", min=1, help="The peak load, in multiples of the average.")] = 3,
    retention: Annotated[str, typer.Option("--retention", metavar="DURATION", help="12h, 7d …")] = "7d",
    replicas: Annotated[int, typer.Option("--replicas", min=1, max=100)] = 3,
    groups: Annotated[int, typer.Option("--groups", min=0, help="Consumer groups that read everything.")] = 1,
    consumers: Annotated[int, typer.Option("--consumers", min=1, help="Members of the largest group.")] = 1,
    compression: Annotated[float, typer.Option("--compression", min=1, help="4 if batches shrink to a quarter.")] = 1,
    partition_rate: Annotated[
        str, typer.Option("--partition-rate", metavar="SIZE", help="What one partition takes in a second.")
    ] = "25MB",
    broker_disk: Annotated[str, typer.Option("--broker-disk", metavar="SIZE", help="Disk of one broker.")] = "8TB",
    broker_network: Annotated[
        str, typer.Option("--broker-network", metavar="SIZE", help="What one broker sends or receives in a second.")
    ] = "1.25GB",
    broker_partitions: Annotated[
        int, typer.Option("--broker-partitions", min=1, help="Replicas that one broker holds.")
    ] = 4_000,
    free: Annotated[int, typer.Option("--free", min=0, max=90, help="Percent of the disks to keep free.")] = 20,
    json: Json = False,
) -> None:
    """Compute the size of a cluster for a load, and show each formula. It needs no cluster.

    --partition-rate and --broker-network depend on the machines: measure them with `moldau bench`.
    """
    from moldau.cli.capacity import Plan, Target, parse_load, parse_size, shown

    try:
        message_bytes = parse_size(message_size)
        target = Target(
            bytes_per_s=parse_load(load, message_bytes),
            message_bytes=message_bytes,
            peak_factor=peak,
            retention_s=duration_ms(retention, "--retention") / 1000,
            replicas=replicas,
            groups=groups,
            consumers=consumers,
            compression=compression,
            partition_bytes_per_s=parse_size(partition_rate),
            broker_disk_bytes=parse_size(broker_disk),
            broker_network_bytes_per_s=parse_size(broker_network),
            broker_partitions=broker_partitions,
            free_share=free / 100,
        )
    except ValueError as error:
        raise usage_error(str(error)) from error
    figures = list(Plan(target).figures())
    if json:
        show_json([each._asdict() for each in figures])
    else:
        show_table(("", "needed", "formula"), [(each.name, shown(each), each.formula) for each in figures])

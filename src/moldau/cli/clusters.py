"""`moldau cluster`: check brokers, controllers and partitions, and show what the cluster consists of."""

from typing import TYPE_CHECKING, Any

import typer

from moldau.cli.interrupts import run_async
from moldau.cli.options import BOOTSTRAP_DEFAULT, Bootstrap, Json
from moldau.cli.output import note, show_json, show_table

if TYPE_CHECKING:
    from moldau.cli.cluster_summary import ClusterSummary
    from moldau.client.health import Health, UnhealthyPartition
    from moldau.client.quorum import QuorumReplica, QuorumView
    from moldau.client.types import ClusterBroker

app = typer.Typer(help="Check and describe the cluster.", no_args_is_help=True)

UNHEALTHY = 1
PARTITIONS_SHOWN = 20


@app.callback()
def cluster() -> None:
    """Check and describe the cluster."""


@app.command()
def health(bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT, json: Json = False) -> None:
    """Show brokers, controller, quorum and unhealthy partitions. The exit code is 1 if anything is wrong."""
    found = run_async(_examine(bootstrap_servers))
    if json:
        show_json(health_as_json(found))
    else:
        _show(found)
    if not found.is_healthy:
        raise typer.Exit(UNHEALTHY)


@app.command()
def info(bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT, json: Json = False) -> None:
    """Show brokers and controllers with roles and releases, features, and the number of topics and groups."""
    from moldau.cli.cluster_summary import show_summary

    show_summary(run_async(_collect(bootstrap_servers)), json=json)


async def _collect(bootstrap_servers: str) -> "ClusterSummary":
    from moldau.cli.cluster_client import connect_async
    from moldau.cli.cluster_summary import collect

    async with connect_async(bootstrap_servers) as client:
        return await collect(client)


async def _examine(bootstrap_servers: str) -> "Health":
    from moldau.cli.cluster_client import connect_async
    from moldau.client.health import check_health

    async with connect_async(bootstrap_servers) as client:
        return await check_health(client)


def _show(found: "Health") -> None:
    serving = len(found.cluster.brokers) - len(found.fenced) - len(found.unreachable)
    print(f"cluster     {found.cluster.cluster_id}")
    print(f"brokers     {serving} of {len(found.cluster.brokers)} serve: {_ids(found)}")
    print(f"controller  {_controller(found)}")
    print(f"topics      {found.topics} with {found.partitions} partition{'s' if found.partitions != 1 else ''}")
    counts = (found.under_replicated, found.under_min_isr, found.offline)
    labels = ("under-replicated", "below min.insync.replicas", "offline")
    print("partitions  " + ", ".join(f"{len(sick)} {label}" for sick, label in zip(counts, labels, strict=True)))
    if found.reassigning:
        print(f"moving      {found.reassigning} partitions; see: moldau reassign list")
    if found.unhealthy:
        print()
        columns = ("topic", "partition", "leader", "replicas", "isr", "min isr")
        show_table(
            columns, [_row(each) for each in found.unhealthy[:PARTITIONS_SHOWN]], numbers=("partition", "min isr")
        )
        if len(found.unhealthy) > PARTITIONS_SHOWN:
            note(f"… and {len(found.unhealthy) - PARTITIONS_SHOWN} more; --json shows all")
    print()
    problems = list(found.problems())
    print("\n".join(f"unhealthy: {each}" for each in problems) or "healthy")
    for each in found.advice():
        note(each)


def _ids(found: "Health") -> str:
    def label(broker: "ClusterBroker") -> str:
        state = " (fenced)" if broker.is_fenced else " (unreachable)" if broker.node_id in found.unreachable else ""
        return f"{broker.node_id}{state}"

    return ", ".join(map(label, found.cluster.brokers)) or "-"


def _controller(found: "Health") -> str:
    quorum = found.quorum
    if found.has_no_controller:
        return "none"
    if quorum is None:
        return str(found.cluster.controller) if found.cluster.controller >= 0 else "-"
    voters = ", ".join(str(each.node_id) for each in quorum.voters)
    return f"{quorum.leader_id} (epoch {quorum.epoch}), voters {voters}"


def _row(sick: "UnhealthyPartition") -> tuple[object, ...]:
    leader = sick.leader if sick.leader >= 0 else None
    return sick.partition.topic, sick.partition.partition, leader, sick.replicas, sick.isr, sick.min_isr


def health_as_json(found: "Health") -> dict[str, Any]:
    """Return the JSON form of the health."""
    return {
        "is_healthy": found.is_healthy,
        "problems": list(found.problems()),
        "advice": list(found.advice()),
        "cluster_id": found.cluster.cluster_id,
        "brokers": [
            {
                "id": each.node_id,
                "host": each.host,
                "port": each.port,
                "rack": each.rack,
                "is_fenced": each.is_fenced,
                "is_reachable": not each.is_fenced and each.node_id not in found.unreachable,
            }
            for each in found.cluster.brokers
        ],
        "quorum": None if found.quorum is None else quorum_as_json(found.quorum),
        "topics": found.topics,
        "partitions": found.partitions,
        "reassigning": found.reassigning,
        "under_replicated": [_partition_as_json(each) for each in found.under_replicated],
        "under_min_isr": [_partition_as_json(each) for each in found.under_min_isr],
        "offline": [_partition_as_json(each) for each in found.offline],
    }


def _partition_as_json(sick: "UnhealthyPartition") -> dict[str, Any]:
    return {
        "topic": sick.partition.topic,
        "partition": sick.partition.partition,
        "leader": sick.leader if sick.leader >= 0 else None,
        "replicas": list(sick.replicas),
        "isr": list(sick.isr),
        "min_isr": sick.min_isr,
    }


def quorum_as_json(quorum: "QuorumView") -> dict[str, Any]:
    """Return the JSON form of the quorum."""
    return {
        "leader": quorum.leader_id if quorum.leader_id >= 0 else None,
        "epoch": quorum.epoch,
        "high_watermark": quorum.high_watermark,
        "voters": [_replica_as_json(quorum, each) for each in quorum.voters],
        "observers": [_replica_as_json(quorum, each) for each in quorum.observers],
    }


def _replica_as_json(quorum: "QuorumView", replica: "QuorumReplica") -> dict[str, Any]:
    from moldau.cli.output import topic_id_text

    return {
        "id": replica.node_id,
        "directory_id": topic_id_text(replica.directory_id),
        "listeners": [f"{name}://{where}" for name, where in replica.listeners],
        "end_offset": replica.end_offset if replica.end_offset >= 0 else None,
        "lag": quorum.lag(replica),
        "behind_ms": quorum.behind_ms(replica),
    }

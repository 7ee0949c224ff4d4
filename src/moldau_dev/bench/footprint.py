"""The memory of an idle broker, also with many connections or many partitions, and its startup time."""

import contextlib
import resource
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from moldau.cli.bench import processes
from moldau.cli.bench.cluster import Cluster, own_broker
from moldau.cli.bench.rounds import Tell
from moldau.cli.bench.servers import Server
from moldau.cli.bench.streams import Address, connected
from moldau.cli.errors import CommandError
from moldau.wire.framing import RequestHeader, frame_request
from moldau.wire.messages import ApiVersionsRequest

CONNECTIONS: Final = 2_000
PARTITIONS: Final = 1_000
PARTITIONS_PER_TOPIC: Final = 100
SETTLE_S: Final = 1.0
DESCRIPTORS_SPARE: Final = 100
MANY_CONNECTIONS: Final = {"max.connections.per.ip": "10000", "max.connections": "10000"}


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of memory, and seconds from the command until the broker serves requests."""

    idle_bytes: int
    start_s: float
    connections: int
    connections_bytes: int
    partitions: int
    partitions_start_s: float
    partitions_bytes: int


def measure_footprint(
    folder: Path, tell: Tell, connections: int = CONNECTIONS, partitions: int = PARTITIONS
) -> Footprint:
    tell("idle broker")
    with own_broker(folder, MANY_CONNECTIONS) as cluster:
        idle_bytes, start_s = _settled_bytes(cluster), _started_in_s(cluster)
        tell(f"{connections} idle connections")
        with _idle_connections(cluster, connections):
            connected_bytes = _settled_bytes(cluster)
        tell(f"creating {partitions} partitions")
        _create_partitions(cluster, partitions)
    tell(f"starting with {partitions} partitions")
    with own_broker(folder, MANY_CONNECTIONS) as cluster:
        return Footprint(
            idle_bytes=idle_bytes,
            start_s=start_s,
            connections=connections,
            connections_bytes=connected_bytes - idle_bytes,
            partitions=partitions,
            partitions_start_s=_started_in_s(cluster),
            partitions_bytes=_settled_bytes(cluster),
        )


def _settled_bytes(cluster: Cluster) -> int:
    assert isinstance(cluster.server, Server), "the broker is ours"
    time.sleep(SETTLE_S)
    return processes.memory_bytes(cluster.server.pid)


def _started_in_s(cluster: Cluster) -> float:
    assert isinstance(cluster.server, Server), "the broker is ours"
    return cluster.server.started_in_s


@contextlib.contextmanager
def _idle_connections(cluster: Cluster, count: int) -> Iterator[None]:
    """Open connections that send one request, as every client does, and are idle afterwards."""
    assert isinstance(cluster.server, Server), "the broker is ours"
    allow_descriptors(count + DESCRIPTORS_SPARE)
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(_greeted(cluster.server.address))
        yield


def _greeted(address: Address) -> socket.socket:
    connection = connected(address)
    header = RequestHeader(ApiVersionsRequest.API_KEY, 0, 0, "moldau-bench")
    connection.sendall(b"".join(frame_request(header, ApiVersionsRequest())))  # type: ignore[arg-type]
    if not connection.recv(4096):
        raise CommandError("the broker closed a connection on its first request; its log says why")
    return connection


def allow_descriptors(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= count:
        return
    if hard != resource.RLIM_INFINITY and hard < count:
        raise CommandError(f"{count} file descriptors are needed and {hard} are allowed here (ulimit -Hn)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def _create_partitions(cluster: Cluster, count: int) -> None:
    for first in range(0, count, PARTITIONS_PER_TOPIC):
        cluster.client.create_topic(
            f"footprint-{first}", partitions=min(PARTITIONS_PER_TOPIC, count - first), replication_factor=1
        )

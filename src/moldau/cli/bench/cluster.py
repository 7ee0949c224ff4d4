"""The cluster under test: an embedded one, or any Kafka cluster; each round uses new topics."""

import contextlib
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from moldau.cli.bench import servers, stalls
from moldau.cli.cluster_client import connect
from moldau.cli.errors import CommandError
from moldau.cli.local.layout import LocalCluster
from moldau.client.blocking_client import BlockingClient
from moldau.client.types import LATEST
from moldau.model.errors import UnknownTopicOrPartition
from moldau.model.ids import Address, TopicPartition
from moldau.model.units import GiB

DISK_FREE_BYTES_MIN: Final = 5 * GiB
REMOVAL_S_MAX: Final = 30.0
REMOVAL_CHECK_S: Final = 0.02
LEADER_S_MAX: Final = 10.0

# An interrupted benchmark leaves data on a foreign cluster for at most an hour.
TOPIC_CONFIGS: Final = {"retention.ms": "3600000", "file.delete.delay.ms": "0"}
BROKER_SETTINGS: Final = {"moldau.metrics.listener": "127.0.0.1:0", "moldau.log.level": "warning"}


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic of one round, and the address of each partition's leader."""

    name: str
    leaders: tuple[Address, ...]


class Cluster:
    """The cluster to measure. `server` is its process or processes; None if the benchmark did not start it."""

    def __init__(
        self,
        client: BlockingClient,
        bootstrap_servers: str,
        server: servers.MeasuredServer | None,
        *,
        replicas: int = -1,
    ) -> None:
        self._client = client
        self._token = os.urandom(3).hex()
        self._topics_made = 0
        self.bootstrap_servers = bootstrap_servers
        self.server = server
        self.data: list[Path] = []
        self.replicas = replicas

    @property
    def client(self) -> BlockingClient:
        return self._client

    @contextlib.contextmanager
    def topic(
        self, partitions: int, configs: Mapping[str, str] | None = None, *, replicas: int | None = None
    ) -> Iterator[Topic]:
        """Create a topic for the block; delete it afterwards and wait until its files are removed."""
        # All names have the same length, so all frames of a load do too.
        name = f"moldau-bench-{self._token}-{self._topics_made:05d}"
        self._topics_made += 1
        self._client.create_topic(
            name,
            partitions=partitions,
            replication_factor=self.replicas if replicas is None else replicas,
            configs={**TOPIC_CONFIGS, **(configs or {})},
        )
        try:
            yield Topic(name, self._leaders(name, partitions))
        finally:
            self._client.delete_topic(name)
            self._wait_for_removal(name)

    def end_offsets(self, topic: Topic) -> list[int]:
        wanted = {TopicPartition(topic.name, index): LATEST for index in range(len(topic.leaders))}
        found = self._client.list_offsets(wanted)
        return [found[each].offset for each in wanted]

    def cpu_s(self) -> float | None:
        return None if self.server is None else self.server.cpu_s()

    def stall_buckets(self) -> dict[float, int]:
        if self.server is None or self.server.metrics is None:
            return {}
        return stalls.parse_buckets(stalls.scrape(self.server.metrics))

    def _leaders(self, name: str, partitions: int) -> tuple[Address, ...]:
        deadline = time.monotonic() + LEADER_S_MAX
        while time.monotonic() < deadline:
            with contextlib.suppress(UnknownTopicOrPartition):  # some brokers may not have the metadata yet
                view = self._client.describe_topic(name)
                nodes = self._client.describe_cluster().brokers
                brokers = {each.node_id: Address(each.host, each.port) for each in nodes}
                if len(view.partitions) == partitions and all(each.leader in brokers for each in view.partitions):
                    return tuple(brokers[each.leader] for each in view.partitions)
            time.sleep(REMOVAL_CHECK_S)
        raise CommandError(f"topic {name} has no leaders after {LEADER_S_MAX:g} s")

    def _wait_for_removal(self, name: str) -> None:
        deadline = time.monotonic() + REMOVAL_S_MAX
        while self._is_on_disk(name) and time.monotonic() < deadline:
            time.sleep(REMOVAL_CHECK_S)

    def _is_on_disk(self, name: str) -> bool:
        return any(each.startswith(name) for folder in self.data for each in os.listdir(folder))


@contextlib.contextmanager
def bench_folder(where: Path | None) -> Iterator[Path]:
    """A temporary folder for brokers and baselines, so that both write to the same file system."""
    folder = Path(tempfile.mkdtemp(prefix="moldau-bench-", dir=where))
    try:
        free_bytes = shutil.disk_usage(folder).free
        if free_bytes < DISK_FREE_BYTES_MIN:
            raise CommandError(
                f"{folder} has {free_bytes / GiB:.1f} GiB free and 5 are needed; name another with --folder"
            )
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def own_broker(folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[Cluster]:
    """An embedded broker, which runs as long as the benchmark."""
    with (
        servers.broker(folder, {**BROKER_SETTINGS, **(settings or {})}) as server,
        connect(server.bootstrap_servers) as client,
    ):
        cluster = Cluster(client, server.bootstrap_servers, server)
        cluster.data = [folder / "data"]
        yield cluster


@contextlib.contextmanager
def own_cluster(folder: Path, brokers: int, settings: Mapping[str, str] | None = None) -> Iterator[Cluster]:
    """An embedded cluster on this machine; topics have a replica on each broker."""
    local = LocalCluster.open(
        folder / "cluster",
        brokers=brokers,
        port=_free_port_of(2 * brokers),
        controller_port=_free_port_of(brokers),
        settings={**BROKER_SETTINGS, **(settings or {})},
    )
    nodes = [servers.node(each.settings_file, folder / f"node-{each.node_id}.log") for each in local.nodes]
    with servers.Servers(nodes) as running, connect(running.bootstrap_servers) as client:
        cluster = Cluster(client, running.bootstrap_servers, running, replicas=brokers)
        cluster.data = [each.folder for each in local.nodes]
        yield cluster


def _free_port_of(count: int) -> int:
    """Return the first of `count` consecutive ports that are free now."""
    while True:
        with contextlib.ExitStack() as stack:
            first = stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
            with contextlib.suppress(OSError, OverflowError):
                for port in range(first + 1, first + count):
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
                return int(first)


@contextlib.contextmanager
def any_cluster(bootstrap_servers: str) -> Iterator[Cluster]:
    with connect(bootstrap_servers) as client:
        yield Cluster(client, bootstrap_servers, None)

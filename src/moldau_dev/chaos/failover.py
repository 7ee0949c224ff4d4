"""Measure how long writes are unavailable when a broker fails: `python -m moldau_dev.chaos.failover --runs 30`.

Before each fault all replicas are in sync and every broker leads its share. A probe writes to one partition of the
victim, one record at a time with acks=all; the figure is the longest time between two acknowledgements around it.
"""

import argparse
import asyncio
import statistics
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from enum import Enum
from functools import partial
from itertools import pairwise
from typing import Any, Final, Protocol

import confluent_kafka as library

from moldau.client.async_client import AsyncClient
from moldau.client.reassignments import Election, Reassignments
from moldau.client.settings import ClientSettings
from moldau.client.types import Resource, ResourceKind
from moldau.model.errors import KafkaError
from moldau.model.units import HOUR_MS
from moldau.node.ports.clock import SystemClock
from moldau.node.ports.randomness import system_random
from moldau.node.ports.sockets import SocketNetwork
from moldau.records.builder import build_batch
from moldau.testing.broker import setting_names
from moldau_dev.chaos.faulty_cluster import FaultyCluster, faulty_cluster
from moldau_dev.chaos.faulty_disks import DiskFault, FaultyDisks
from moldau_dev.chaos.namespaces import Wires

TOPIC: Final = "failover"
PARTITIONS: Final = 6
WARM_RECORDS: Final = 20
WAIT_S_MAX: Final = 90.0  # librdkafka's default request timeout is 60 s
IMPATIENCE_MS: Final = 5_000


class Victim(Enum):
    """The node that fails, and how."""

    LEADER = "kill -9 of a leader"
    LEADER_AND_CONTROLLER = "kill -9 of a leader that is the active controller"
    CONTROLLER = "kill -9 of the active controller, which leads nothing that is written"
    STOPPED_LEADER = "clean stop of a leader"
    SILENT_LEADER = "a leader cut off in silence"
    FAILING_DISK = "writes of a leader fail (EIO)"
    FAILING_DISK_OF_CONTROLLER = "writes of a leader that is the active controller fail (EIO)"
    READ_ONLY_DISK = "the disk of a leader becomes read-only (EROFS)"
    FULL_DISK = "the disk of a leader is full (ENOSPC)"
    HANGING_DISK = "writes of a leader hang"

    @property
    def disk_fault(self) -> DiskFault:
        return DISK_FAULTS.get(self, DiskFault.NONE)

    @property
    def is_controller(self) -> bool | None:
        """Whether the leader that fails is the active controller."""
        return self in (Victim.LEADER_AND_CONTROLLER, Victim.FAILING_DISK_OF_CONTROLLER)


DISK_FAULTS: Final = {
    Victim.FAILING_DISK: DiskFault.FAIL_WRITES,
    Victim.FAILING_DISK_OF_CONTROLLER: DiskFault.FAIL_WRITES,
    Victim.READ_ONLY_DISK: DiskFault.READ_ONLY,
    Victim.FULL_DISK: DiskFault.FULL,
    Victim.HANGING_DISK: DiskFault.HANG,
}


class Probe(Protocol):
    """Writes one record after the other, in its own thread."""

    acknowledged_s: list[float]  # times

    def start(self) -> None: ...

    def stop(self) -> None: ...


class OwnProbe:
    """Moldau's own client: detects a lost connection at once, looks up the new leader every few ms."""

    def __init__(self, servers: str, partition: int) -> None:
        self.acknowledged_s: list[float] = []
        self._servers, self._partition = servers, partition
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="probe")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(WAIT_S_MAX)

    async def _run(self) -> None:
        settings = ClientSettings(
            connect_timeout_ms=500, request_timeout_ms=1_000, retry_backoff_ms=10, retry_backoff_max_ms=20
        )
        async with AsyncClient(
            SocketNetwork(), SystemClock(), system_random(), self._servers, settings=settings
        ) as client:
            await self._work(client)

    async def _work(self, client: AsyncClient) -> None:
        identity = await client.init_producer_id()
        sequence = 0
        while not self._is_over.is_set():
            records = [(time.time_ns() // 1_000_000, None, b"%d" % sequence, ())]
            batch = build_batch(
                records, producer_id=identity.producer_id, producer_epoch=identity.epoch, base_sequence=sequence
            )

            async def write(batch: bytes = bytes(batch)) -> None:
                await client.produce(TOPIC, self._partition, batch)

            await self._retry(write)
            sequence += 1

    async def _retry(self, act: Callable[[], Awaitable[None]]) -> None:
        while not self._is_over.is_set():
            try:
                await act()
                self.acknowledged_s.append(time.monotonic())
                return
            except (OSError, KafkaError):
                await asyncio.sleep(0.01)


class MetadataProbe(OwnProbe):
    """The same client with metadata changes, which need an active controller."""

    async def _work(self, client: AsyncClient) -> None:
        count = 0
        while not self._is_over.is_set():
            count += 1
            changed = {"retention.ms": str(HOUR_MS + count)}

            async def change(changed: dict[str, str] = changed) -> None:
                await client.alter_configs(Resource(ResourceKind.TOPIC, TOPIC), changed)

            await self._retry(change)


class LibrdkafkaProbe:
    """librdkafka with its defaults, except for acks and idempotence."""

    def __init__(self, servers: str, partition: int, **more: object) -> None:
        """`more` are settings, with `_` for `.`."""
        self.acknowledged_s: list[float] = []
        self._partition = partition
        self._is_over = threading.Event()
        settings = {"bootstrap.servers": servers, "enable.idempotence": True, "acks": "all", "log_level": 0}
        self._producer = library.Producer({**settings, **setting_names(more)})
        self._thread = threading.Thread(target=self._run, name="probe")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(WAIT_S_MAX)
        self._producer.flush(WAIT_S_MAX)

    def _run(self) -> None:
        while not self._is_over.is_set():
            self._producer.produce(TOPIC, b"x", partition=self._partition, on_delivery=self._settled)
            self._producer.flush(WAIT_S_MAX)

    def _settled(self, error: Any, _: Any) -> None:
        if error is None:
            self.acknowledged_s.append(time.monotonic())


PROBES: Final[dict[str, Callable[[str, int], Probe]]] = {
    "own": OwnProbe,
    "librdkafka": LibrdkafkaProbe,
    "impatient": partial(LibrdkafkaProbe, socket_timeout_ms=IMPATIENCE_MS),
    "metadata": MetadataProbe,
}
# Metadata is measured only if the controller fails, timeouts only if connections stay open.
MEANT_FOR: Final = {
    "metadata": (Victim.LEADER_AND_CONTROLLER, Victim.CONTROLLER, Victim.FAILING_DISK_OF_CONTROLLER),
    "impatient": (Victim.SILENT_LEADER,),
}


def measure(cluster: FaultyCluster, victim: Victim, probe_names: Iterable[str]) -> dict[str, float]:
    """Measure one failover: the longest time without an acknowledgement, by probe. Heals the cluster."""
    _prepare(cluster)
    controller = cluster.controller_id
    leaders = cluster.leaders_of(TOPIC)
    partition, node = next(
        (index, leader)
        for index, leader in sorted(leaders.items())
        if leader is not None and (leader == controller) == victim.is_controller
    )
    probes = {name: PROBES[name](cluster.bootstrap_servers, partition) for name in probe_names}
    for probe in probes.values():
        probe.start()
    try:
        for probe in probes.values():
            _wait_for(probe, WARM_RECORDS)
        struck_s = time.monotonic()
        _strike(cluster, victim, controller if victim is Victim.CONTROLLER else node)
        for probe in probes.values():
            _wait_for(probe, len(probe.acknowledged_s) + WARM_RECORDS)
    finally:
        for probe in probes.values():
            probe.stop()
        cluster.mend()
        if victim is Victim.STOPPED_LEADER:
            cluster.stop(node)  # wait until it has stopped: it must not be started before
        elif victim.disk_fault:
            cluster.kill(node)  # a running broker would wait longer after each failure before it trusts its disk
        cluster.start()
    return {name: _longest_gap_s(probe.acknowledged_s, struck_s) for name, probe in probes.items()}


def _prepare(cluster: FaultyCluster) -> None:
    """Wait until all replicas are in sync, and elect the preferred leaders."""
    cluster.wait_until_in_sync()

    def elect() -> bool:
        with cluster.client() as client:
            client.run(Reassignments(client.asynchronous).elect(Election.PREFERRED, None))
            view = client.describe_topic(TOPIC)
        return all(each.leader == each.replicas[0] for each in view.partitions)

    cluster.wait_until(elect, "the preferred leaders")


def _strike(cluster: FaultyCluster, victim: Victim, node: int) -> None:
    if victim is Victim.STOPPED_LEADER:
        cluster[node].terminate()
    elif victim is Victim.SILENT_LEADER:
        assert cluster.wires is not None
        cluster.wires.cut_off(node)
    elif victim.disk_fault:
        assert cluster.disks is not None
        cluster.disks.strike(node, victim.disk_fault)
    else:
        cluster.kill(node)


def _wait_for(probe: Probe, count: int) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    while len(probe.acknowledged_s) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the probe has {len(probe.acknowledged_s)} acknowledgements, not {count}")
        time.sleep(0.005)


def _longest_gap_s(acknowledged_s: Sequence[float], struck_s: float) -> float:
    """Return the longest gap from the last acknowledgement before the fault."""
    before = [each for each in acknowledged_s if each <= struck_s][-1:]
    times = [*before, *(each for each in acknowledged_s if each > struck_s)]
    return max(later - earlier for earlier, later in pairwise(times))


def figures(gaps_s: Sequence[float]) -> str:
    ordered = sorted(gaps_s)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return f"median {statistics.median(ordered):.3f} s, p99 {p99:.3f} s, max {ordered[-1]:.3f} s ({len(ordered)} runs)"


def _is_possible(victim: Victim) -> bool:
    if victim.disk_fault:
        return FaultyDisks.are_possible()
    return victim is not Victim.SILENT_LEADER or Wires.are_allowed()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m moldau_dev.chaos.failover", description=__doc__)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--probe", choices=PROBES, action="append", help="the probe to run (default: all)")
    parser.add_argument("--victim", choices=[each.name.lower() for each in Victim], action="append")
    options = parser.parse_args(arguments)
    for victim in Victim:
        if options.victim and victim.name.lower() not in options.victim:
            continue
        if not _is_possible(victim):
            sys.stdout.write(f"{victim.value}: not on this machine\n")
            continue
        with faulty_cluster(has_wires=victim is Victim.SILENT_LEADER, has_disks=bool(victim.disk_fault)) as cluster:
            cluster.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3, min_insync_replicas=2)
            for probe in options.probe or [each for each in PROBES if victim in MEANT_FOR.get(each, Victim)]:
                gaps = [measure(cluster, victim, [probe])[probe] for _ in range(options.runs)]
                sys.stdout.write(f"{victim.value}, {probe}: {figures(gaps)}\n")
                sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Faults of real processes: kinds, targets, and healing."""

import random
import time
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from moldau_dev.chaos.faulty_cluster import FaultyCluster
from moldau_dev.chaos.faulty_disks import DiskFault
from moldau_dev.chaos.namespaces import RUNNER

OUTAGES_S: Final = (0.2, 1.0, 4.0, 12.0)


class Kind(Enum):
    """The kind of fault."""

    KILL = "kill -9"
    PAUSE = "SIGSTOP"
    STOP = "clean stop"
    CUT_OFF = "cut off"
    CUT_ONE_WAY = "cut one way"
    FAIL_WRITES = "failing disk"
    FULL_DISK = "full disk"
    READ_ONLY_DISK = "read-only disk"
    SLOW_DISK = "slow disk"
    HANGING_DISK = "hanging disk"


class Target(Enum):
    """The node that the fault is injected into."""

    LEADER = "leader"
    FOLLOWER = "follower"
    CONTROLLER = "controller"
    ALL = "all"


NETWORK_KINDS: Final = (Kind.CUT_OFF, Kind.CUT_ONE_WAY)
DISK_FAULTS: Final = {
    Kind.FAIL_WRITES: DiskFault.FAIL_WRITES,
    Kind.FULL_DISK: DiskFault.FULL,
    Kind.READ_ONLY_DISK: DiskFault.READ_ONLY,
    Kind.SLOW_DISK: DiskFault.SLOW,
    Kind.HANGING_DISK: DiskFault.HANG,
}
SLOW_CALLS_MS: Final = (5, 20, 100)  # the delay of each write and sync


@dataclass(frozen=True, slots=True)
class FaultCase:
    """A kind of fault and its target."""

    kind: Kind
    target: Target

    def __str__(self) -> str:
        return f"{self.kind.value} {self.target.value}"


def fault_cases(*, has_wires: bool, has_disks: bool) -> list[FaultCase]:
    """Return every useful combination. Without any healthy disk or link, nothing can be expected to go on."""
    partial = (*NETWORK_KINDS, *DISK_FAULTS)
    kinds = [
        kind for kind in Kind if (has_wires or kind not in NETWORK_KINDS) and (has_disks or kind not in DISK_FAULTS)
    ]
    return [
        FaultCase(kind, target) for kind in kinds for target in Target if not (kind in partial and target is Target.ALL)
    ]


@dataclass(slots=True)
class Faults:
    """Injects faults into a cluster, heals it, and counts the faults."""

    cluster: FaultyCluster
    topic: str
    rng: random.Random
    fired: Counter[str] = field(default_factory=Counter)
    _with_failed_disk: set[int] = field(default_factory=set)

    def strike(self, cell: FaultCase) -> tuple[int, ...]:
        """Inject a fault and return the affected nodes, without waiting."""
        nodes = self._find(cell.target)
        match cell.kind:
            case Kind.KILL:
                self.cluster.kill(*nodes)
            case Kind.PAUSE:
                self.cluster.pause(*nodes)
            case Kind.STOP:
                self.cluster.stop(*nodes)
            case Kind.CUT_OFF:
                self._cut_off(nodes)
            case Kind.CUT_ONE_WAY:
                self._cut_one_way(nodes[0])
            case disk_fault:
                self._fail_disks(nodes, DISK_FAULTS[disk_fault])
        self.fired[str(cell)] += 1
        return nodes

    def heal(self) -> None:
        """Restart, resume and reconnect all nodes; does not wait until they are in sync."""
        self.cluster.mend()
        for node in self._with_failed_disk:  # restarted: a running broker does not trust its disk for a while
            self.cluster.kill(node)
        self._with_failed_disk.clear()
        self.cluster.resume()
        self.cluster.start()

    def outage_s(self) -> float:
        return self.rng.choice(OUTAGES_S) * self.rng.uniform(0.5, 1.0)

    def _find(self, target: Target) -> tuple[int, ...]:
        cluster = self.cluster
        if target is Target.ALL:
            return cluster.nodes
        if target is Target.CONTROLLER:
            return (cluster.controller_id,)
        partition = self.rng.choice(sorted(cluster.leaders_of(self.topic)))
        leader = cluster.leader_of(self.topic, partition)
        if target is Target.LEADER:
            return (leader,)
        return (self.rng.choice([node for node in cluster.nodes if node != leader]),)

    def _cut_off(self, nodes: tuple[int, ...]) -> None:
        """Cut nodes off from the others, and half of the time also from the clients."""
        assert self.cluster.wires is not None
        with_clients = (RUNNER,) if self.rng.random() < 0.5 else ()
        self.cluster.wires.cut_off(*nodes, *with_clients)

    def _cut_one_way(self, node: int) -> None:
        assert self.cluster.wires is not None
        other = self.rng.choice([each for each in self.cluster.nodes if each != node])
        self.cluster.wires.cut(*self.rng.choice(((node, other), (other, node))))

    def _fail_disks(self, nodes: tuple[int, ...], fault: DiskFault) -> None:
        assert self.cluster.disks is not None
        for node in nodes:
            self.cluster.disks.strike(node, fault, self.rng.choice(SLOW_CALLS_MS))
            if fault is not DiskFault.SLOW:
                self._with_failed_disk.add(node)


def wait(seconds: float) -> None:
    """Sleep for the length of an outage, which is part of the fault and not a wait for a condition."""
    time.sleep(seconds)

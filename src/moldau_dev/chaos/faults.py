"""Faults of real processes: kinds, targets, and healing."""

import random
import time
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from moldau.testing.cluster import Cluster
from moldau_dev.chaos.namespaces import RUNNER, Wires

OUTAGES_S: Final = (0.2, 1.0, 4.0, 12.0)


class Kind(Enum):
    """The kind of fault."""

    KILL = "kill -9"
    PAUSE = "SIGSTOP"
    STOP = "clean stop"
    CUT_OFF = "cut off"
    CUT_ONE_WAY = "cut one way"


class Target(Enum):
    """The node that the fault is injected into."""

    LEADER = "leader"
    FOLLOWER = "follower"
    CONTROLLER = "controller"
    ALL = "all"


NETWORK_KINDS: Final = (Kind.CUT_OFF, Kind.CUT_ONE_WAY)


@dataclass(frozen=True, slots=True)
class FaultCase:
    """A kind of fault and its target."""

    kind: Kind
    target: Target

    def __str__(self) -> str:
        return f"{self.kind.value} {self.target.value}"


def fault_cases(*, has_wires: bool) -> list[FaultCase]:
    """Return every useful combination."""
    kinds = [kind for kind in Kind if has_wires or kind not in NETWORK_KINDS]
    return [
        FaultCase(kind, target)
        for kind in kinds
        for target in Target
        if not (kind in NETWORK_KINDS and target is Target.ALL)
    ]


@dataclass(slots=True)
class Faults:
    """Injects faults into a cluster, heals it, and counts the faults."""

    cluster: Cluster
    topic: str
    rng: random.Random
    wires: Wires | None = None
    fired: Counter[str] = field(default_factory=Counter)

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
        self.fired[str(cell)] += 1
        return nodes

    def heal(self) -> None:
        """Restart, resume and reconnect all nodes; does not wait until they are in sync."""
        if self.wires is not None:
            self.wires.mend()
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
        assert self.wires is not None
        with_clients = (RUNNER,) if self.rng.random() < 0.5 else ()
        self.wires.cut_off(*nodes, *with_clients)

    def _cut_one_way(self, node: int) -> None:
        assert self.wires is not None
        other = self.rng.choice([each for each in self.cluster.nodes if each != node])
        self.wires.cut(*self.rng.choice(((node, other), (other, node))))


def wait(seconds: float) -> None:
    """Sleep for the length of an outage, which is part of the fault and not a wait for a condition."""
    time.sleep(seconds)

"""What is done to the processes of a cluster, to whom, and how it is made good again."""

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
    """What happens."""

    KILL = "kill -9"
    PAUSE = "SIGSTOP"
    STOP = "clean stop"
    CUT_OFF = "cut off"
    CUT_ONE_WAY = "cut one way"


class Whom(Enum):
    """Whom it happens to."""

    LEADER = "leader"
    FOLLOWER = "follower"
    CONTROLLER = "controller"
    ALL = "all"


NETWORK_KINDS: Final = (Kind.CUT_OFF, Kind.CUT_ONE_WAY)


@dataclass(frozen=True, slots=True)
class Cell:
    """One square of the table: a fault and its victim."""

    kind: Kind
    whom: Whom

    def __str__(self) -> str:
        return f"{self.kind.value} {self.whom.value}"


def cells(*, has_wires: bool) -> list[Cell]:
    """Every combination that makes sense here."""
    kinds = [kind for kind in Kind if has_wires or kind not in NETWORK_KINDS]
    return [Cell(kind, whom) for kind in kinds for whom in Whom if not (kind in NETWORK_KINDS and whom is Whom.ALL)]


@dataclass(slots=True)
class Faults:
    """Strikes a cluster and heals it again; counts what fired."""

    cluster: Cluster
    topic: str
    chance: random.Random
    wires: Wires | None = None
    fired: Counter[str] = field(default_factory=Counter)

    def strike(self, cell: Cell) -> tuple[int, ...]:
        """Do it, and say to whom. Returns at once, with the fault in place."""
        nodes = self._find(cell.whom)
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
        """Everything runs and reaches everything; whether it is in sync again is another question."""
        if self.wires is not None:
            self.wires.mend()
        self.cluster.resume()
        self.cluster.start()

    def outage_s(self) -> float:
        return self.chance.choice(OUTAGES_S) * self.chance.uniform(0.5, 1.0)

    def _find(self, whom: Whom) -> tuple[int, ...]:
        cluster = self.cluster
        if whom is Whom.ALL:
            return cluster.nodes
        if whom is Whom.CONTROLLER:
            return (cluster.controller_id,)
        partition = self.chance.choice(sorted(cluster.leaders_of(self.topic)))
        leader = cluster.leader_of(self.topic, partition)
        if whom is Whom.LEADER:
            return (leader,)
        return (self.chance.choice([node for node in cluster.nodes if node != leader]),)

    def _cut_off(self, nodes: tuple[int, ...]) -> None:
        """From the other nodes, and half of the time from the clients too."""
        assert self.wires is not None
        with_clients = (RUNNER,) if self.chance.random() < 0.5 else ()
        self.wires.cut_off(*nodes, *with_clients)

    def _cut_one_way(self, node: int) -> None:
        assert self.wires is not None
        other = self.chance.choice([each for each in self.cluster.nodes if each != node])
        self.wires.cut(*self.chance.choice(((node, other), (other, node))))


def wait(seconds: float) -> None:
    """The length of an outage is part of the fault: it is not a wait for something that could be observed."""
    time.sleep(seconds)

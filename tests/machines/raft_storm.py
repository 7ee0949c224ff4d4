"""Random faults in a quorum, drawn from a seed: crashes, power losses, partitions, voter changes; then it heals."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random

from raft_cluster import Cluster, FaultRates
from raft_ledger import demand
from raft_node import Node

from moldau.machines.raft import events as on
from moldau.machines.raft.settings import QuorumSettings
from moldau.machines.raft.voters import Voter

CHAOS_MS = 40_000.0
HEALED_MS = 60_000.0
PATIENCE_MS = 20_000.0


@dataclass
class Storm:
    """One run of a quorum: faults, then healing, after which everything must work again."""

    seed: int
    chaos_ms: float = CHAOS_MS
    cluster: Cluster = field(init=False)

    def __post_init__(self) -> None:
        self.random = Random(f"storm {self.seed}")
        self.cluster = Cluster(self.seed, self._settings(), self._faults(), is_static=self.random.random() < 0.2)
        self._written = 0
        self._kept = self.random.choice([1, 2, 2])
        actions: list[tuple[float, Callable[[], None]]] = [
            (30, self._write),
            (self._weight(4), self._crash),
            (self._weight(4), self._restart),
            (self._weight(3), self._cut),
            (self._weight(3), self._isolate),
            (self._weight(4), self._mend),
            (self._weight(2), self._pause),
            (self._weight(1), self._resign),
            (self._weight(1), self._cry_wolf),
            (self._weight(2), self._panic),
            (self._weight(3), self._snapshot),
            (self._weight(2), self._add),
            (self._weight(2), self._remove),
            (self._weight(1), self._wipe),
            (self._weight(1), self._move),
            (0.3, self._crash_all),
        ]
        self._weights = [weight for weight, _ in actions]
        self._actions = [action for _, action in actions]

    def _weight(self, most: float) -> float:
        """Swarm testing: leave some faults out of a run, so that others can go far."""
        return self.random.choice([0.0, most / 2, most, most])

    def _settings(self) -> QuorumSettings:
        return QuorumSettings(
            election_timeout_ms=self.random.choice([300, 1000]),
            election_backoff_max_ms=self.random.choice([200, 1000]),
            fetch_timeout_ms=self.random.choice([800, 2000]),
            retry_backoff_ms=self.random.choice([5, 20, 50]),
        )

    def _faults(self) -> FaultRates:
        random = self.random
        return FaultRates(
            latency_ms=random.choice([2.0, 20.0, 100.0]),
            lost=random.choice([0.0, 0.0, 0.05, 0.2]),
            doubled=random.choice([0.0, 0.1]),
            late=random.choice([0.0, 0.05]),
            crash=random.choice([0.0, 0.0, 0.0005, 0.002]),
            power=random.choice([0.0, 0.5, 1.0]),
            reboot=random.choice([0.0, 0.5, 1.0]),
        )

    # Both phases

    def run(self) -> Cluster:
        """Check the rules under faults, and that the quorum recovers after them."""
        cluster = self.cluster
        cluster.found(self.random.choice([1, 2, 3, 3, 3, 4, 5]), self.random.choice([0, 1, 1, 2]))
        end_ms = cluster.now_ms + self.chaos_ms
        while cluster.now_ms < end_ms:
            cluster.run(self.random.expovariate(1 / 120))
            self.random.choices(self._actions, self._weights)[0]()
        cluster.heal()
        self._replace_lost_voters()
        self._must_commit()
        self._must_agree()
        return cluster

    def _replace_lost_voters(self) -> None:
        """Replace voters whose disk is lost for good; the quorum can do without them, but not without one more."""
        cluster = self.cluster
        self._must(lambda: cluster.leader is not None, "a leader")
        for _ in range(8):
            leader = self._settled_leader()
            gone = [voter for voter in leader.machine.voters if not self._is_there(voter)]
            if not gone:
                return
            ticket = cluster.remove_voter(gone[0].key)
            cluster.run(PATIENCE_MS, partial(self._is_complete, ticket))
        demand(False, "voters that are gone cannot be removed")

    def _settled_leader(self) -> Node:
        self._must(self._is_settled, "a leader that has committed in its epoch")
        leader = self.cluster.leader
        assert leader is not None
        return leader

    def _is_settled(self) -> bool:
        leader = self.cluster.leader
        return leader is not None and leader.machine.high_watermark == leader.disk.log.end_offset

    def _is_there(self, voter: Voter) -> bool:
        node = self.cluster.nodes.get(voter.node_id)
        return node is not None and voter.is_replica(node.me.key)

    def _must_commit(self) -> None:
        """Commit a value; a leader may still be replaced while it writes, but not forever."""
        for at in range(5):
            value = f"healed {at}"
            self._must(partial(self.cluster.write, value), "a leader that takes writes")
            if self.cluster.run(PATIENCE_MS, partial(self._is_acknowledged, value)) and at >= 2:
                return
        demand(False, "after healing nothing is committed")

    def _is_complete(self, ticket: int | None) -> bool:
        return ticket in self.cluster.changes

    def _is_acknowledged(self, value: str) -> bool:
        return value in self.cluster.ledger.acknowledged.values()

    def _must_agree(self) -> None:
        cluster = self.cluster
        leader = self._settled_leader()
        everywhere = leader.machine.high_watermark
        self._must(lambda: all(node.machine.high_watermark >= everywhere for node in cluster.alive), "one watermark")
        self._must(self._has_one_leader, "one leader for all")
        values = [each.entry for each in cluster.ledger.committed[:everywhere]]
        for node in cluster.alive:
            demand(node.disk.log.everything_below(len(values)) == values, node.node_id, "has other entries")

    def _has_one_leader(self) -> bool:
        known = [node.machine.leadership for node in self.cluster.alive]
        return len({(each.leader_id, each.epoch) for each in known}) == 1 and known[0].is_known

    def _must(self, condition: Callable[[], bool], what: str) -> None:
        demand(self.cluster.run(HEALED_MS, condition), "after healing there is never", what)

    # Faults

    def _some(self) -> Node:
        return self.random.choice(list(self.cluster.nodes.values()))

    def _write(self) -> None:
        for _ in range(self.random.choice([1, 1, 5])):
            self._written += self.cluster.write(f"v{self._written}")

    def _crash(self) -> None:
        leader = self.cluster.leader
        self.cluster.crash(leader if leader is not None and self.random.random() < 0.5 else self._some())

    def _crash_all(self) -> None:
        for node in self.cluster.alive:
            self.cluster.crash(node)
        for node_id in list(self.cluster.nodes):
            self.cluster.restart(node_id)

    def _restart(self) -> None:
        for node_id in list(self.cluster.nodes):
            if self.random.random() < 0.7:
                self.cluster.restart(node_id)

    def _cut(self) -> None:
        self.cluster.cut(self._some().node_id, self._some().node_id)

    def _isolate(self) -> None:
        leader = self.cluster.leader
        victim = leader if leader is not None and self.random.random() < 0.5 else self._some()
        is_one_way = self.random.random() < 0.3
        for node_id in self.cluster.nodes:
            self.cluster.cut(victim.node_id, node_id)
            if not is_one_way:
                self.cluster.cut(node_id, victim.node_id)

    def _mend(self) -> None:
        self.cluster.mend()

    def _pause(self) -> None:
        self.cluster.pause(self._some().node_id, self.random.uniform(100, 6000))

    def _resign(self) -> None:
        leader = self.cluster.leader
        if leader is not None:
            self.cluster.guard(lambda: leader.step(on.ResignRequested()))

    def _cry_wolf(self) -> None:
        """Report a live leader as dead."""
        node = self._some()
        if node.is_alive:
            self.cluster.guard(lambda: self.cluster.report_vanished(node, node.machine.leadership.leader_id))

    def _panic(self) -> None:
        """Report the leader as dead to all nodes, so that several stand at once."""
        for node in self.cluster.alive:
            self.cluster.guard(partial(self.cluster.report_vanished, node, node.machine.leadership.leader_id))

    def _snapshot(self) -> None:
        node = self._some()
        if node.is_alive:
            self.cluster.take_snapshot(node, self._kept)

    def _add(self) -> None:
        node = self._some()
        if node.is_alive:
            self.cluster.add_voter(node)

    def _remove(self) -> None:
        """While a voter's disk is lost, no other may be removed: a majority of the rest would be too few."""
        leader = self.cluster.leader
        if leader is not None:
            voters = list(leader.machine.voters)
            gone = [voter for voter in voters if not self._is_there(voter)]
            self.cluster.remove_voter(self.random.choice(gone or voters).key)

    def _wipe(self) -> None:
        """Wipe a disk only where the quorum survives it: every other voter of any set still in use has its disk."""
        cluster = self.cluster
        node = self._some()
        sets = [each.machine.voters for each in cluster.nodes.values()]
        others = [voter for voters in sets for voter in voters if voter.node_id != node.node_id]
        is_bearable = all(self._is_there(voter) for voter in others) and min(map(len, filter(None, sets))) >= 3
        if is_bearable and not cluster.is_static:
            cluster.wipe(node)

    def _move(self) -> None:
        """Restart a node under another address. The old one still leads to it: otherwise only a leader that it finds by
        itself could report it to the others."""
        node = self._some()
        if not self.cluster.is_static:
            self.cluster.seen["move"] += 1
            self.cluster.crash(node)
            self.cluster.boot(node.node_id, node.disk, node.port + 1)

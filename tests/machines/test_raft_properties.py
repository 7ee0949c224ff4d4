"""Whole quorums by seed: the safety rules of Raft hold after every event, and the quorum recovers."""

from collections import Counter

import pytest
from raft_cluster import Cluster, FaultRates
from raft_ledger import Violated, demand
from raft_storm import Storm

from moldau.machines.raft import events as on
from moldau.machines.raft.roles import RoleName
from moldau.model.errors import ErrorCode

SEEDS = range(24)

# Storms that detect a bug that others do not, or detect it first:
FOUND = [
    37,  # truncation at the high watermark instead of the epoch boundary
    63,  # records of an older epoch committed by counting
    76,  # a restarted leader continues in its old epoch
    95,  # a live leader was reported dead, and its followers waited for it
    208,  # a write that a new leader overwrote
]


@pytest.fixture(scope="module")
def seen() -> Counter[str]:
    """The events in all of the storms."""
    return Counter()


@pytest.mark.proves("H6")
@pytest.mark.proves("H7")
@pytest.mark.parametrize("seed", sorted({*SEEDS, *FOUND}))
def test_rules_hold_in_every_storm_and_the_quorum_recovers(seed: int, seen: Counter[str]) -> None:
    seen.update(Storm(seed).run().seen)


def test_storms_contain_every_kind_of_event(seen: Counter[str]) -> None:
    """A run in which nothing happened proves nothing."""
    if not seen:
        pytest.skip("looks at the storms that ran before it")
    wanted = "AppendLeaderChange TruncateLog LoadSnapshot AppendVoters SendEndQuorum SendUpdateVoter FailPendingAppends"
    faults = ["cut", "pause", "move", "wipe", "restart", "vanished", "crash", "power loss", "crash between effects"]
    rare = [name for name in [*wanted.split(), *faults, "acknowledged", "snapshot"] if seen[name] < 10]
    assert not rare


def test_seed_replays_exactly() -> None:
    traces = [Storm(seed, chaos_ms=10_000).run().trace for seed in (3, 3, 4)]
    assert traces[0] == traces[1] != traces[2]


# Healthy quorums with a single fault


def settled(voters: int = 3, observers: int = 0, seed: int = 1) -> Cluster:
    cluster = Cluster(seed)
    cluster.found(voters, observers)
    assert cluster.run(2000, lambda: cluster.leader is not None)
    cluster.run(1000)
    return cluster


@pytest.mark.parametrize("voters", [1, 2, 3, 5])
def test_new_quorum_elects_a_leader_soon(voters: int) -> None:
    for seed in range(10):
        cluster = Cluster(seed)
        cluster.found(voters)
        assert cluster.run(500, lambda cluster=cluster: cluster.leader is not None)  # type: ignore[misc]


def test_observers_replicate_committed_records() -> None:
    cluster = settled(3, observers=2)
    assert cluster.write("a")
    cluster.run(100)
    assert len({node.machine.high_watermark for node in cluster.alive}) == 1
    assert [node.machine.role for node in cluster.alive].count(RoleName.OBSERVER) == 2


@pytest.mark.proves("H6")
def test_leader_whose_process_dies_is_replaced_at_once() -> None:
    for seed in range(20):
        cluster = settled(seed=seed)
        cluster.faults = FaultRates(power=0)
        assert cluster.leader is not None
        cluster.crash(cluster.leader)
        began_ms = cluster.now_ms
        assert cluster.run(5000, lambda cluster=cluster: cluster.leader is not None)  # type: ignore[misc]
        assert cluster.now_ms - began_ms < 400


def test_resigned_leader_is_replaced_at_once() -> None:
    for seed in range(20):
        cluster = settled(seed=seed)
        leader = cluster.leader
        assert leader is not None
        leader.step(on.ResignRequested())
        began_ms = cluster.now_ms
        assert cluster.run(5000, lambda cluster=cluster: cluster.leader is not None)  # type: ignore[misc]
        assert cluster.now_ms - began_ms < 200
        assert cluster.leader is not leader


@pytest.mark.proves("H7")
def test_partitioned_leader_commits_nothing_while_majority_continues() -> None:
    cluster = settled(5)
    old = cluster.leader
    assert old is not None
    for node_id in cluster.nodes:
        cluster.cut(old.node_id, node_id)
        cluster.cut(node_id, old.node_id)
    high_watermark = old.machine.high_watermark
    cluster.write("lost")
    assert cluster.run(10_000, lambda: cluster.leader not in (None, old))
    assert cluster.write("kept")
    cluster.run(5000)
    assert "kept" in cluster.ledger.acknowledged.values()
    assert old.machine.high_watermark == high_watermark
    assert not old.machine.is_leader
    cluster.mend()
    cluster.run(5000)
    assert "lost" not in [entry.value for entry in old.disk.log.entries]
    assert old.machine.high_watermark > high_watermark


@pytest.mark.proves("H7")
def test_isolated_follower_does_not_disturb_the_leader_on_return() -> None:
    cluster = settled(3)
    leader = cluster.leader
    assert leader is not None
    follower = next(node for node in cluster.alive if node is not leader)
    for node_id in cluster.nodes:
        cluster.cut(follower.node_id, node_id)
        cluster.cut(node_id, follower.node_id)
    cluster.run(30_000)
    cluster.mend()
    cluster.run(10_000)
    assert cluster.leader is leader
    assert {node.machine.epoch for node in cluster.alive} == {1}
    assert follower.machine.role is RoleName.FOLLOWER


def test_wiped_voter_is_no_voter_until_it_is_added_again() -> None:
    cluster = settled(3)
    leader = cluster.leader
    assert leader is not None
    victim = next(node for node in cluster.alive if node is not leader)
    lost = victim.me.key
    cluster.wipe(victim)
    cluster.run(2000)
    newcomer = cluster.nodes[victim.node_id]
    assert newcomer.machine.role is RoleName.OBSERVER
    for ticket in (cluster.remove_voter(lost), None):
        cluster.run(2000)
        ticket = ticket or cluster.add_voter(newcomer)
        cluster.run(2000)
        assert ticket is not None
        assert cluster.changes[ticket] is ErrorCode.NONE
    assert newcomer.machine.role.value == "follower"


def test_replica_far_behind_recovers_from_a_snapshot() -> None:
    cluster = settled(3)
    leader = cluster.leader
    assert leader is not None
    away = next(node for node in cluster.alive if node is not leader)
    cluster.crash(away)
    for at in range(50):
        cluster.write(f"v{at}")
        cluster.run(50)
    leader.disk.log.take_snapshot(leader.machine.high_watermark, leader.machine.voters, kept=1)
    cluster.restart(away.node_id)
    cluster.run(5000)
    assert cluster.seen["LoadSnapshot"] == 1
    assert cluster.nodes[away.node_id].machine.high_watermark == leader.machine.high_watermark


def test_ledger_detects_violations() -> None:
    """The checks of a storm really check."""
    cluster = settled(3)
    leader = cluster.leader
    assert leader is not None
    entries = leader.disk.log.entries
    other = next(node for node in cluster.alive if node is not leader)
    other.disk.log.entries[0] = entries[-1]
    with pytest.raises(Violated):
        cluster.ledger.compare_logs(leader.disk, [other.disk])
    with pytest.raises(Violated):
        cluster.ledger.acknowledge(0, "never written")
    with pytest.raises(Violated):
        demand(False, "nothing")

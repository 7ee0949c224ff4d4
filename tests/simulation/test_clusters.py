"""Clusters and their clients on virtual time: their guarantees hold under faults."""

import os
import subprocess
import sys

import pytest

from moldau_dev.simulation.cluster.administrator import MOVED_BACK, NEEDED
from moldau_dev.simulation.cluster.cluster_world import FaultProfile, cluster_world
from moldau_dev.simulation.cluster.intruders import DENIED_MIN
from moldau_dev.simulation.cluster.leadership_mover import MOVED
from moldau_dev.simulation.cluster.targeted_faults import LATE_REQUEST_TRIGGERS, REPLICA_TRIGGERS
from moldau_dev.simulation.simulation import Simulation, replay


@pytest.mark.proves("H1", "H2", "H3", part="simulated")
@pytest.mark.parametrize("seed", [4, 7])
def test_process_crashes_lose_no_acknowledged_record(seed: int) -> None:
    outcome = Simulation(seed).run(cluster_world())
    outcome.check()
    assert outcome.tally["elections"] >= 1
    assert outcome.tally["partition elections"] >= 1
    assert outcome.tally["ISR changes"] >= 1


@pytest.mark.proves("H1", "H2", "H3", part="simulated")
@pytest.mark.parametrize("seed", [3])
def test_targeted_leader_faults_lose_no_acknowledged_record(seed: int) -> None:
    outcome = Simulation(seed).run(cluster_world(FaultProfile.TARGETED))
    outcome.check()
    assert all(outcome.faults.get(each.value) for each in REPLICA_TRIGGERS)


@pytest.mark.proves("H1", "H2", "H3", part="simulated")
@pytest.mark.parametrize("seed", [5])
def test_late_requests_break_no_guarantee(seed: int) -> None:
    outcome = Simulation(seed).run(cluster_world(FaultProfile.LATE_REQUESTS))
    outcome.check()
    assert all(outcome.faults.get(each.value) for each in LATE_REQUEST_TRIGGERS)
    assert outcome.tally["ISR join checks"] >= 1


@pytest.mark.proves("H1", "H2", "H3", part="simulated")
@pytest.mark.parametrize("seed", [0])
def test_rapid_leadership_moves_lose_no_acknowledged_record(seed: int) -> None:
    outcome = Simulation(seed).run(cluster_world(FaultProfile.LEADER_MOVES))
    outcome.check()
    assert outcome.faults[MOVED] >= 1
    assert outcome.tally["truncations"] >= 1


@pytest.mark.proves("H1", "H2", "H3", part="simulated")
@pytest.mark.parametrize("seed", [950026])  # unregisters all brokers but one at the same time
def test_administration_under_faults_loses_no_acknowledged_record(seed: int) -> None:
    outcome = Simulation(seed).run(cluster_world(FaultProfile.ADMIN))
    outcome.check()
    assert all(outcome.faults.get(each) for each in (*NEEDED, MOVED_BACK))
    assert outcome.tally["recreated topic writes"] >= 1


@pytest.mark.parametrize("seed", [3])
def test_intruders_change_nothing_and_revocations_hold_under_faults(seed: int) -> None:
    outcome = Simulation(seed).run(cluster_world(FaultProfile.SECURED))
    outcome.check()
    assert outcome.tally["intrusions"] >= 100
    assert outcome.tally["denied writes"] >= DENIED_MIN
    assert outcome.tally["granted writes"] >= 1


@pytest.mark.proves("H5", part="simulated")
@pytest.mark.parametrize("seed", [7])
def test_power_losses_below_min_isr_lose_no_acknowledged_record(seed: int) -> None:
    outcome = Simulation(seed).run(cluster_world(FaultProfile.POWER))
    outcome.check()
    assert outcome.faults["power loss"] >= 1


@pytest.mark.proves("S6", part="synced clusters")
@pytest.mark.parametrize("seed", [7])
def test_power_loss_of_all_machines_loses_nothing_in_synced_topics(seed: int) -> None:
    outcome = replay(cluster_world(FaultProfile.POWER_ALL), seed)
    outcome.check()
    assert outcome.faults["power loss of all"] >= 1
    assert outcome.tally["power loss checks"] >= 1


def test_cluster_seed_gives_the_same_run_with_another_hash_seed() -> None:
    command = [sys.executable, "-m", "moldau_dev.simulation.sweep", "--seeds", "7", "--world", "cluster"]
    runs = [
        subprocess.Popen(
            command,
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for seed in ("1", "2")
    ]
    outputs = [run.communicate(timeout=100)[0] for run in runs]
    lines = [[line for line in each.splitlines() if line.startswith("seed 7")] for each in outputs]
    assert lines[0], outputs[0]
    assert lines[0] == lines[1]

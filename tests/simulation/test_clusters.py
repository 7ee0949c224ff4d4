"""Whole clusters and their clients on virtual time: whatever befalls them, what they promised holds."""

import os
import subprocess
import sys

import pytest

from moldau_dev.simulation.cluster.administrator import MOVED_BACK, NEEDED
from moldau_dev.simulation.cluster.ambush import OF_REPLICAS, OVERTAKEN
from moldau_dev.simulation.cluster.cluster_world import Trouble, cluster_world
from moldau_dev.simulation.cluster.mover import MOVED
from moldau_dev.simulation.simulation import Simulation, replay


@pytest.mark.proves("H1", "H2", "H3", part="simulated")
@pytest.mark.parametrize("seed", [4, 7])
def test_processes_that_die_all_at_once_too_lose_nothing_acknowledged(seed: int) -> None:
    outcome = Simulation(seed).run(cluster_world())
    outcome.check()
    assert outcome.tally["elections"] >= 1
    assert outcome.tally["partition elections"] >= 1
    assert outcome.tally["ISR changes"] >= 1


@pytest.mark.proves("H1", "H2", "H3", part="simulated")
@pytest.mark.parametrize("seed", [3])
def test_leaders_that_are_struck_when_their_followers_are_apart_or_about_to_join_lose_nothing(seed: int) -> None:
    outcome = Simulation(seed).run(cluster_world(Trouble.AMBUSH))
    outcome.check()
    assert all(outcome.faults.get(each.value) for each in OF_REPLICAS)


@pytest.mark.proves("H1", "H2", "H3", part="simulated")
@pytest.mark.parametrize("seed", [5])
def test_what_arrives_when_those_it_names_live_another_life_or_others_are_to_be_asked_does_no_harm(seed: int) -> None:
    outcome = Simulation(seed).run(cluster_world(Trouble.OVERTAKEN))
    outcome.check()
    assert all(outcome.faults.get(each.value) for each in OVERTAKEN)
    assert outcome.tally["looks at who joined"] >= 1


@pytest.mark.proves("H1", "H2", "H3", part="simulated")
@pytest.mark.parametrize("seed", [5])
def test_leaderships_that_move_to_and_fro_faster_than_followers_hear_of_it_lose_nothing(seed: int) -> None:
    outcome = Simulation(seed).run(cluster_world(Trouble.MOVED))
    outcome.check()
    assert outcome.faults[MOVED] >= 1
    assert outcome.tally["truncations"] >= 1


@pytest.mark.proves("H1", "H2", "H3", part="simulated")
@pytest.mark.parametrize("seed", [950026])  # in which all but one broker are unregistered at a time
def test_topics_that_come_again_replicas_that_move_and_brokers_that_are_unregistered_lose_nothing(seed: int) -> None:
    outcome = Simulation(seed).run(cluster_world(Trouble.ADMINISTERED))
    outcome.check()
    assert all(outcome.faults.get(each) for each in (*NEEDED, MOVED_BACK))
    assert outcome.tally["errands acknowledged"] >= 1


@pytest.mark.proves("H5", part="simulated")
@pytest.mark.parametrize("seed", [7])
def test_machines_without_power_fewer_than_min_isr_at_a_time_lose_nothing_acknowledged(seed: int) -> None:
    outcome = Simulation(seed).run(cluster_world(Trouble.POWER))
    outcome.check()
    assert outcome.faults["power loss"] >= 1


@pytest.mark.proves("S6", part="synced clusters")
@pytest.mark.parametrize("seed", [7])
def test_all_machines_without_power_at_once_lose_nothing_of_topics_that_are_synced(seed: int) -> None:
    outcome = replay(cluster_world(Trouble.SYNCED), seed)
    outcome.check()
    assert outcome.faults["power loss of all"] >= 1
    assert outcome.tally["looks at who lost power"] >= 1


def test_a_seed_of_a_cluster_is_the_same_run_in_another_process_with_another_order_of_hashes() -> None:
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
    said = [run.communicate(timeout=100)[0] for run in runs]
    lines = [[line for line in each.splitlines() if line.startswith("seed 7")] for each in said]
    assert lines[0], said[0]
    assert lines[0] == lines[1]

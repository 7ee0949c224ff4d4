"""One broker and two clients on virtual time, under faults: each seed runs twice with the same trace."""

import os
import subprocess
import sys

import pytest

from moldau_dev.simulation.one_broker import FaultProfile, one_broker
from moldau_dev.simulation.simulation import replay


@pytest.mark.proves("S8", "P2")
@pytest.mark.parametrize("seed", range(3))
def test_crashing_process_loses_repeats_and_reorders_nothing(seed: int) -> None:
    outcome = replay(one_broker(), seed)
    outcome.check()
    assert outcome.faults["crash"] >= 1


@pytest.mark.proves("S6", part="flush.messages")
@pytest.mark.parametrize("seed", range(3))
def test_power_loss_loses_nothing_in_a_synced_topic(seed: int) -> None:
    outcome = replay(one_broker(FaultProfile.POWER), seed)
    outcome.check()
    assert outcome.faults["power loss"] >= 1


@pytest.mark.parametrize("seed", range(3))
def test_failed_disk_stops_the_broker_and_loses_nothing_in_a_synced_topic(seed: int) -> None:
    outcome = replay(one_broker(FaultProfile.DISK), seed)
    outcome.check()
    assert outcome.faults["failed fsync"] >= 1


@pytest.mark.proves("S6", part="group-commit fsync")
@pytest.mark.parametrize("seed", [0, 12])
def test_cached_data_after_a_failed_fsync_is_not_taken_for_durable(seed: int) -> None:
    outcome = replay(one_broker(FaultProfile.STALE_CACHE), seed)
    outcome.check()
    assert outcome.faults["failed fsync"] >= 1
    assert outcome.faults["power loss"] >= 1


def test_seed_gives_the_same_run_with_another_hash_seed() -> None:
    runs = [
        subprocess.run(
            [sys.executable, "-m", "moldau_dev.simulation.sweep", "--seeds", "0"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            timeout=100,
        )
        for hash_seed in ("1", "2")
    ]
    lines = [[line for line in run.stdout.splitlines() if line.startswith("seed 0")] for run in runs]
    assert lines[0], runs[0].stdout + runs[0].stderr
    assert lines[0] == lines[1]

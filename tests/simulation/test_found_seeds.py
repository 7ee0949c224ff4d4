"""Replay the seeds that once failed; with the same faults they pass now."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from moldau_dev.simulation.simulation import Simulation
from moldau_dev.simulation.sweep import script_of

FOUND = tomllib.loads((Path(__file__).parent / "found_seeds.toml").read_text())["found"]


@pytest.mark.timeout(400)  # the longest takes 30 s of CPU time, at low priority beside the other lanes
@pytest.mark.parametrize("found", FOUND, ids=lambda found: f"{found['world']}-{found['faults']}-{found['seed']}")
def test_seed_that_once_failed_passes(found: dict[str, Any]) -> None:
    Simulation(found["seed"]).run(script_of(found["world"], found["faults"]))

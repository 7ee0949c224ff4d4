"""Seeds that found something once: with the same mix of faults, they find nothing now."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from moldau_dev.simulation.simulation import Simulation
from moldau_dev.simulation.sweep import script_of

FOUND = tomllib.loads((Path(__file__).parent / "found_seeds.toml").read_text())["found"]


@pytest.mark.timeout(400)  # the longest takes 30 s of CPU, at low priority beside the other lanes
@pytest.mark.parametrize("found", FOUND, ids=lambda found: f"{found['world']}-{found['trouble']}-{found['seed']}")
def test_a_seed_that_once_found_something_finds_nothing_now(found: dict[str, Any]) -> None:
    Simulation(found["seed"]).run(script_of(found["world"], found["trouble"]))

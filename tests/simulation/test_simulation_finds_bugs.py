"""Planted bugs, which the simulation must find."""

import pytest

from moldau.storage.producer_state import Producers
from moldau.testing.mounted_disk import SimulatedFile
from moldau_dev.simulation import one_broker as one_broker_module
from moldau_dev.simulation.one_broker import FaultProfile, one_broker
from moldau_dev.simulation.simulation import Simulation
from moldau_dev.simulation.workload import Violation

SEEDS = range(5)


def finding(profile: FaultProfile) -> Exception | None:
    """Return the failure of the first failing seed."""
    for seed in SEEDS:
        try:
            Simulation(seed).run(one_broker(profile))
        except Exception as error:
            return error
    return None


def test_responses_before_the_sync_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = one_broker_module._topic_settings
    monkeypatch.setattr(one_broker_module, "_topic_settings", lambda rng, syncs: settings(rng, syncs=False))  # noqa: ARG005
    assert isinstance(finding(FaultProfile.POWER), Violation)


def test_fsync_without_effect_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedFile, "fsync", lambda _: None)
    assert finding(FaultProfile.POWER) is not None


def test_retry_appended_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Producers, "check", lambda *_: None)
    assert isinstance(finding(FaultProfile.PROCESS), Violation)

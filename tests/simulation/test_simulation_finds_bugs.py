"""Bugs put in on purpose: a simulation that does not find them proves nothing."""

import pytest

from moldau.storage.producer_state import Producers
from moldau.testing.mounted_disk import SimulatedFile
from moldau_dev.simulation import one_broker as one_broker_module
from moldau_dev.simulation.one_broker import Trouble, one_broker
from moldau_dev.simulation.simulation import Simulation
from moldau_dev.simulation.workload import Violation

SEEDS = range(5)


def finding(trouble: Trouble) -> Exception | None:
    """What the first seed that fails fails with."""
    for seed in SEEDS:
        try:
            Simulation(seed).run(one_broker(trouble))
        except Exception as error:
            return error
    return None


def test_answers_that_do_not_wait_for_the_disk_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = one_broker_module._topic_settings
    monkeypatch.setattr(one_broker_module, "_topic_settings", lambda chance, syncs: settings(chance, syncs=False))  # noqa: ARG005
    assert isinstance(finding(Trouble.POWER), Violation)


def test_a_sync_that_does_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedFile, "fsync", lambda _: None)
    assert finding(Trouble.POWER) is not None


def test_a_retry_that_is_appended_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Producers, "check", lambda *_: None)
    assert isinstance(finding(Trouble.PROCESS), Violation)

"""Test support for applications: a real broker or cluster in a fixture, and fakes for clock, network and disk.

The simulator that runs whole clusters on these fakes is `moldau_dev.simulation` in the repository (`make sim`).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moldau.testing.broker import Broker as Broker
    from moldau.testing.broker import BrokerFailed as BrokerFailed
    from moldau.testing.cluster import Cluster as Cluster

__all__ = ["Broker", "BrokerFailed", "Cluster"]

_MODULES = {"Broker": "broker", "BrokerFailed": "broker", "Cluster": "cluster"}


def __getattr__(name: str) -> Any:  # lazy: pytest imports this package in every project that has it installed
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"moldau.testing.{_MODULES[name]}"), name)

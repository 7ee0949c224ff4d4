"""For tests, ours and yours: a real broker in a fixture, and the simulated ports.

`from moldau.testing import Broker` is for everybody; `moldau.testing.simulation` and its neighbours simulate.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moldau.testing.broker import Broker as Broker
    from moldau.testing.broker import BrokerFailed as BrokerFailed

__all__ = ["Broker", "BrokerFailed"]


def __getattr__(name: str) -> Any:  # pytest loads this package on every run of every project that has it installed
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from moldau.testing import broker

    return getattr(broker, name)

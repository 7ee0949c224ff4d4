"""Ranking of brokers for requests that any of them can handle: stale or unreachable ones come last."""

from dataclasses import dataclass, field
from typing import Final

from moldau.model.ids import Address
from moldau.model.units import SECOND_MS

AVOIDED_MS: Final = 5 * SECOND_MS  # an unreachable broker may be back after this
ADDRESSES_MAX: Final = 1_000  # the oldest entries are dropped beyond it


@dataclass(slots=True)
class BrokerRanking:
    """Remembers stale and unreachable brokers by address."""

    _stale: dict[Address, None] = field(default_factory=dict)  # in the order of their last stale response
    _unreachable_ms: dict[Address, float] = field(default_factory=dict)

    def mark_stale(self, address: Address) -> None:
        """The broker returned stale metadata: rank it last, so that the next request goes to another."""
        self._stale.pop(address, None)
        self._stale[address] = None
        if len(self._stale) > ADDRESSES_MAX:
            del self._stale[next(iter(self._stale))]

    def mark_unreachable(self, address: Address, now_ms: float) -> None:
        """The broker did not respond or could not be connected to."""
        self._unreachable_ms.pop(address, None)
        self._unreachable_ms[address] = now_ms
        if len(self._unreachable_ms) > ADDRESSES_MAX:
            del self._unreachable_ms[next(iter(self._unreachable_ms))]

    def mark_reachable(self, address: Address) -> None:
        self._unreachable_ms.pop(address, None)

    def rank(self, address: Address, now_ms: float) -> tuple[bool, int]:
        """Return the rank of a broker; the lowest is preferred."""
        is_avoided = now_ms - self._unreachable_ms.get(address, now_ms - AVOIDED_MS) < AVOIDED_MS
        stale = list(self._stale)
        return is_avoided, stale.index(address) + 1 if address in self._stale else 0

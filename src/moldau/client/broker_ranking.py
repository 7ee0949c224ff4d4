"""Whom to ask when any broker would do: not one whose word was old, nor one that was just lost."""

from dataclasses import dataclass, field
from typing import Final

from moldau.model.ids import Address
from moldau.model.units import SECOND_MS

AVOIDED_MS: Final = 5 * SECOND_MS  # after this, one that was lost may be back
ADDRESSES_MAX: Final = 1_000  # what is known of the one longest ago is dropped beyond it


@dataclass(slots=True)
class Preferences:
    """What we have against brokers, by address."""

    _distrusted: dict[Address, None] = field(default_factory=dict)  # last the one whose word was old last
    _lost_ms: dict[Address, float] = field(default_factory=dict)

    def distrust(self, address: Address) -> None:
        """What it told was old. It is asked again when all others have been: so one goes round."""
        self._distrusted.pop(address, None)
        self._distrusted[address] = None
        if len(self._distrusted) > ADDRESSES_MAX:
            del self._distrusted[next(iter(self._distrusted))]

    def lost(self, address: Address, now_ms: float) -> None:
        """It did not answer, or was not there."""
        self._lost_ms.pop(address, None)
        self._lost_ms[address] = now_ms
        if len(self._lost_ms) > ADDRESSES_MAX:
            del self._lost_ms[next(iter(self._lost_ms))]

    def found(self, address: Address) -> None:
        self._lost_ms.pop(address, None)

    def rank(self, address: Address, now_ms: float) -> tuple[bool, int]:
        """The lower, the better."""
        is_avoided = now_ms - self._lost_ms.get(address, now_ms - AVOIDED_MS) < AVOIDED_MS
        distrusted = list(self._distrusted)
        return is_avoided, distrusted.index(address) + 1 if address in self._distrusted else 0

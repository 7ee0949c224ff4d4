"""Rates of new connections: of the broker, and of single IP addresses (KIP-612)."""

from collections.abc import Callable
from typing import Final, NamedTuple

from moldau.broker.configs.quota_settings import QuotaSettings
from moldau.broker.quotas.client_quotas import ClientQuotas, whole_ms
from moldau.machines.quotas.rates import WindowedRate
from moldau.model.ports import Clock
from moldau.model.settings import INT_MAX
from moldau.model.units import MINUTE_MS, SECOND_MS

ADDRESSES_MAX: Final = 20_000  # with a rate; the oldest ones are dropped beyond that
DELAY_MS_MAX: Final = 1.0 * MINUTE_MS


class ConnectionAdmission(NamedTuple):
    """Whether a new connection is served, and after which delay it is read or closed."""

    is_accepted: bool = True
    delay_ms: int = 0


ACCEPTED: Final = ConnectionAdmission()


class ConnectionRates:
    """Decides about each new connection of a client.

    Above the broker's rate, connections are read later, in the order of their arrival, as if they had stayed in the
    backlog. Above the rate of its address, a connection is closed, after a delay: a client that reconnects at once
    would otherwise cost more than it did before.
    """

    def __init__(self, clock: Clock, quotas: ClientQuotas, settings: Callable[[], QuotaSettings]) -> None:
        self._clock = clock
        self._quotas = quotas
        self._settings = settings
        self._all = self._new_rate()
        self._by_host: dict[str, WindowedRate] = {}
        self.accepted = 0
        self.throttled = 0
        self.rejected = 0

    def _new_rate(self) -> WindowedRate:
        settings = self._settings()
        return WindowedRate(settings.quota_window_num, settings.quota_window_size_seconds * SECOND_MS)

    def admit(self, host: str, *, is_protected: bool = False) -> ConnectionAdmission:
        """Decide about a connection. A protected one is between brokers: only the rate of its address applies."""
        now_ms = self._clock.monotonic_ms()
        limit = self._quotas.index.connection_rate_of(host) if self._quotas.index.limits_connections else None
        if limit is not None:
            rate = self._rate_of(host)
            if rate.room(limit, now_ms) < 1:
                self.rejected += 1
                window_ms = self._settings().quota_window_size_seconds * SECOND_MS
                pause_ms = (1 - rate.room(limit, now_ms)) / limit * SECOND_MS
                return ConnectionAdmission(False, min(whole_ms(pause_ms), window_ms))
            rate.record(1, now_ms)
        self.accepted += 1
        limit = self._settings().max_connection_creation_rate
        if limit >= INT_MAX or is_protected:
            return ACCEPTED
        self._all.record(1, now_ms)
        delay_ms = self._all.pause_ms(limit, now_ms) if limit else DELAY_MS_MAX
        if not delay_ms:
            return ACCEPTED
        self.throttled += 1
        return ConnectionAdmission(True, whole_ms(min(delay_ms, DELAY_MS_MAX)))

    def _rate_of(self, host: str) -> WindowedRate:
        rate = self._by_host.pop(host, None) or self._new_rate()
        if len(self._by_host) >= ADDRESSES_MAX:
            del self._by_host[next(iter(self._by_host))]
        self._by_host[host] = rate  # the most recent one is last
        return rate

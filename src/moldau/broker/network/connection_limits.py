"""Limits on connections: how many in all and per address, and how long one may be idle."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final

from moldau.broker.configs.broker_settings import NetworkSettings
from moldau.broker.network.connection import ServedConnection
from moldau.broker.network.muted_connections import MutedConnections
from moldau.broker.quotas.client_quotas import ClientQuotas
from moldau.broker.quotas.connection_quota import ConnectionQuota
from moldau.broker.quotas.connection_rates import ConnectionRates
from moldau.model.ports import Clock

SWEEPS_PER_IDLE_TIME: Final = 4
SWEEP_SECONDS_MIN: Final = 0.1
SWEEP_SECONDS_MAX: Final = 5.0


class ConnectionLimits:
    """Counts the connections of a node, and closes those that are idle or slow for too long."""

    def __init__(
        self, clock: Clock, settings: Callable[[], NetworkSettings], quotas: ClientQuotas | None = None
    ) -> None:
        """`settings` is called each time, because settings may change. Without `quotas`, none are enforced."""
        self._clock = clock
        self._quotas = quotas
        self.rates = None if quotas is None else ConnectionRates(clock, quotas, quotas.settings)
        self.muted = MutedConnections()
        self.protected_listener: str | None = None  # of brokers: the rate of new connections does not apply to it
        if quotas is not None:
            quotas.on_toggled.append(self._quotas_toggled)
        self._settings = settings
        self._connections: dict[ServedConnection, None] = {}
        self._per_address: Counter[str] = Counter()
        self._unauthenticated: dict[ServedConnection, None] = {}  # the oldest first
        self._timer: asyncio.TimerHandle | None = None
        self._is_open = False
        self.rejected = 0

    def __len__(self) -> int:
        return len(self._connections)

    def admit(self, connection: ServedConnection) -> str | None:
        """The reason to reject the connection, or None."""
        self._connections[connection] = None
        self._per_address[connection.peer] += 1
        settings = self._settings()
        if len(self._connections) > settings.max_connections:
            self.rejected += 1
            return f"there are {settings.max_connections} connections already (max.connections)"
        if self._per_address[connection.peer] > settings.connections_max_of(connection.peer):
            self.rejected += 1
            return "this address has reached its limit (max.connections.per.ip)"
        if not self._is_open:
            connection.pause()
        if connection.gate is not None:
            self._unauthenticated[connection] = None
            self._limit_unauthenticated(settings.unauthenticated_connections_max)
        if self._quotas is not None and self._quotas.is_active:
            connection.quota = ConnectionQuota(self._quotas)
        if self.rates is not None:
            self._apply_rates(self.rates, connection)
        return None

    def _limit_unauthenticated(self, count_max: int) -> None:
        """Close the oldest connection in excess: clients authenticate at once, so the oldest is the least useful."""
        if len(self._unauthenticated) > count_max:
            oldest = next(iter(self._unauthenticated))
            del self._unauthenticated[oldest]
            self.rejected += 1
            oldest.close_with_error(
                "unauthenticated",
                f"there are {count_max} newer connections without authentication "
                "(moldau.max.unauthenticated.connections)",
            )

    def authenticated(self, connection: ServedConnection) -> None:
        """The connection no longer counts as unauthenticated."""
        self._unauthenticated.pop(connection, None)

    def _apply_rates(self, rates: ConnectionRates, connection: ServedConnection) -> None:
        """Read the connection later, or close it unread, if there are too many new ones."""
        admission = rates.admit(connection.peer, is_protected=connection.listener == self.protected_listener)
        if admission.delay_ms:
            self.muted.mute(connection.responses, admission.delay_ms)
        if not admission.is_accepted:
            connection.close_later(admission.delay_ms)

    def _quotas_toggled(self) -> None:
        """The first quota was set, or the last one removed."""
        quotas = self._quotas
        assert quotas is not None
        for connection in self._connections:
            connection.quota = ConnectionQuota(quotas) if quotas.is_active else None

    def remove(self, connection: ServedConnection) -> None:
        self._unauthenticated.pop(connection, None)
        if connection in self._connections:
            del self._connections[connection]
            self._per_address[connection.peer] -= 1
            if not self._per_address[connection.peer]:
                del self._per_address[connection.peer]

    def open(self) -> None:
        """Serve connections from now on, including those that were accepted before the broker was ready."""
        self._is_open = True
        for connection in self._connections:
            connection.resume()
            if connection.gate is not None:
                connection.gate.restart_clock()
        self._schedule()

    def close(self) -> None:
        """End the sweeps and close every connection; queued responses are still sent."""
        if self._timer:
            self._timer.cancel()
        self.muted.close()
        for connection in list(self._connections):
            connection.close()

    def _schedule(self) -> None:
        idle_ms = self._settings().connections_max_idle_ms
        delay = SWEEP_SECONDS_MAX
        if idle_ms >= 0:
            delay = min(max(idle_ms / 1000 / SWEEPS_PER_IDLE_TIME, SWEEP_SECONDS_MIN), SWEEP_SECONDS_MAX)
        self._timer = asyncio.get_running_loop().call_later(delay, self._sweep)

    def _sweep(self) -> None:
        now_ms, idle_ms = self._clock.monotonic_ms(), self._settings().connections_max_idle_ms
        for connection in list(self._connections):
            connection.check_deadlines(now_ms, idle_ms)
        self._schedule()

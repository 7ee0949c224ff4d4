"""Who may come in: bounds on connections in all and per address, and an end to idle ones."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final

from moldau.broker.configs.broker_settings import NetworkSettings
from moldau.broker.network.connection import ServedConnection
from moldau.model.ports import Clock

SWEEPS_PER_IDLE_TIME: Final = 4
SWEEP_SECONDS_MIN: Final = 0.1
SWEEP_SECONDS_MAX: Final = 5.0


class Gate:
    """Counts the connections of a node and ends those that are silent or slow for too long."""

    def __init__(self, clock: Clock, settings: Callable[[], NetworkSettings]) -> None:
        """`settings` are asked for each time, because they may change while the node runs."""
        self._clock = clock
        self._settings = settings
        self._connections: dict[ServedConnection, None] = {}
        self._per_address: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None
        self._is_open = False
        self.refused = 0

    def __len__(self) -> int:
        return len(self._connections)

    def admit(self, connection: ServedConnection) -> str | None:
        """A complaint, or None when the connection may stay."""
        self._connections[connection] = None
        self._per_address[connection.peer] += 1
        settings = self._settings()
        if len(self._connections) > settings.max_connections:
            self.refused += 1
            return f"there are {settings.max_connections} connections already (max.connections)"
        if self._per_address[connection.peer] > settings.connections_max_of(connection.peer):
            self.refused += 1
            return "this address has as many connections as it may have (max.connections.per.ip)"
        if not self._is_open:
            connection.hold()
        return None

    def leave(self, connection: ServedConnection) -> None:
        if connection in self._connections:
            del self._connections[connection]
            self._per_address[connection.peer] -= 1
            if not self._per_address[connection.peer]:
                del self._per_address[connection.peer]

    def open(self) -> None:
        """Let in those who came while the broker was not ready, and everybody from now on."""
        self._is_open = True
        for connection in self._connections:
            connection.let_go_on()
        self._schedule()

    def close(self) -> None:
        """Ends the sweeps and every connection; what is queued for them still leaves."""
        if self._timer:
            self._timer.cancel()
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
            connection.look_after(now_ms, idle_ms)
        self._schedule()

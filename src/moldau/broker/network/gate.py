"""Who may come in: bounds on connections in all and per address, and an end to idle ones."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final

from moldau.broker.network.connection import ServedConnection
from moldau.model.ports import Clock

SWEEPS_PER_IDLE_TIME: Final = 4
SWEEP_SECONDS_MAX: Final = 30.0


class Gate:
    """Counts the connections of a node and closes those that have been silent for too long."""

    def __init__(
        self, clock: Clock, *, connections_max: int, per_address_max: Callable[[str], int], idle_ms: int
    ) -> None:
        self._clock = clock
        self._connections_max = connections_max
        self._per_address_max = per_address_max
        self._idle_ms = idle_ms
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
        if len(self._connections) > self._connections_max:
            self.refused += 1
            return f"there are {self._connections_max} connections already (max.connections)"
        if self._per_address[connection.peer] > self._per_address_max(connection.peer):
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
        if self._idle_ms > 0:
            self._schedule()

    def close(self) -> None:
        """Ends the sweeps and every connection; what is queued for them still leaves."""
        if self._timer:
            self._timer.cancel()
        for connection in list(self._connections):
            connection.close()

    def _schedule(self) -> None:
        delay = min(self._idle_ms / 1000 / SWEEPS_PER_IDLE_TIME, SWEEP_SECONDS_MAX)
        self._timer = asyncio.get_running_loop().call_later(delay, self._sweep)

    def _sweep(self) -> None:
        silent_since_ms = self._clock.monotonic_ms() - self._idle_ms
        for connection in list(self._connections):
            if connection.last_active_ms < silent_since_ms and not connection.is_waiting:
                connection.close()
        self._schedule()

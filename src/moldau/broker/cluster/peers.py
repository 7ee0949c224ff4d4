"""Connections to other nodes: opened on demand, kept, and reopened after a loss."""

import asyncio
from collections.abc import Callable
from typing import Final

from moldau.client.errors import ConnectionLost, ResponseTimeout, cannot_reach
from moldau.client.link import Link
from moldau.client.security import PLAINTEXT, ClientSecurity
from moldau.client.settings import ClientSettings
from moldau.model.ids import Address
from moldau.model.ports import Clock, Connection, Network
from moldau.model.units import SECOND_MS
from moldau.wire.messages import Request, Response

LostListener = Callable[[Address, str], None]

LINKS_MAX: Final = 1024  # far more than nodes times purposes; beyond it the least recently used one is closed
BACKOFF_FIRST_MS: Final = 20.0
BACKOFF_LONGEST_MS: Final = 500.0
CONNECT_MS: Final = 2 * SECOND_MS
PROBE_MS: Final = 500.0
REQUESTS_WAITING_MAX: Final = 1000


class _Route:
    """The route to one address for one purpose: its connection, if any, and when to reconnect."""

    __slots__ = ("failures", "link", "opening", "try_at_ms")

    def __init__(self) -> None:
        self.link: Link | None = None
        self.opening: asyncio.Task[Link] | None = None
        self.failures = 0
        self.try_at_ms = 0.0


class Peers:
    """Sends requests to other nodes. Every failure is an `OSError`: lost, refused or timed out."""

    def __init__(
        self,
        network: Network,
        clock: Clock,
        client_id: str,
        *,
        security: ClientSecurity = PLAINTEXT,
    ) -> None:
        self._network = network
        self._clock = clock
        self._settings = ClientSettings(
            client_id=client_id,
            connect_timeout_ms=CONNECT_MS,
            requests_waiting_max=REQUESTS_WAITING_MAX,
            security=security,
        )
        self._routes: dict[tuple[Address, str], _Route] = {}
        self.on_lost: list[LostListener] = []  # called for each connection that ends, unless closed by us
        self._is_closed = False

    async def ask(
        self,
        address: Address,
        request: Request[Response],
        *,
        timeout_ms: float,
        purpose: str = "",
        version_at_most: int | None = None,
    ) -> Response:
        """Return the response of the node at `address`, within `timeout_ms`, connecting included.

        Requests of one purpose share a connection, and its responses are in order: a delayed response delays those
        behind it, and a timeout closes the connection.
        """
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        link = self.link_to(address, purpose) or await self.connect(address, purpose, timeout_ms)
        left_ms = max(0.0, deadline_ms - self._clock.monotonic_ms())
        return await link.send(request, timeout_ms=left_ms, version_at_most=version_at_most)

    async def is_refused(self, address: Address) -> bool:
        """Probe the address: whether the connection is refused. A timeout does not count."""
        try:
            async with asyncio.timeout(PROBE_MS / 1000):
                await self._network.connect(address, _Knock(), self._settings.frame_bytes_max)
        except ConnectionRefusedError:
            return True
        except OSError:  # includes timeouts
            return False
        return False

    def is_connected(self, address: Address, purpose: str = "") -> bool:
        route = self._routes.get((address, purpose))
        return route is not None and route.link is not None and not route.link.is_closed

    async def close(self) -> None:
        """Close every connection for good; pending requests fail."""
        self._is_closed = True
        routes = list(self._routes.values())
        self._routes.clear()
        opening = [each.opening for each in routes if each.opening is not None]
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        await asyncio.gather(*(each.link.close() for each in routes if each.link is not None))

    # Connections

    def link_to(self, address: Address, purpose: str) -> Link | None:
        """The connection for this purpose, if it is open."""
        link = self._route(address, purpose).link
        return None if link is None or link.is_closed or self._is_closed else link

    async def connect(self, address: Address, purpose: str, timeout_ms: float) -> Link:
        """The connection for this purpose, opened if necessary."""
        if self._is_closed:
            raise ConnectionLost("this node is shutting down", was_sent=False)
        route = self._route(address, purpose)
        if route.link is not None and not route.link.is_closed:
            return route.link
        if route.opening is None:
            route.opening = asyncio.get_running_loop().create_task(self._open(address, route))
            route.opening.add_done_callback(lambda done: _opened(route, done))
        # Others may wait for the same connection: a cancelled waiter must not cancel it.
        done, _ = await asyncio.wait([route.opening], timeout=max(0.0, timeout_ms) / 1000)
        if not done:
            raise ResponseTimeout(f"no connection to {address} in time", was_sent=False)
        return done.pop().result()

    def _route(self, address: Address, purpose: str) -> _Route:
        """The route, marked as the most recently used."""
        route = self._routes.pop((address, purpose), None) or _Route()
        self._routes[address, purpose] = route
        if len(self._routes) > LINKS_MAX:
            self._forget(next(iter(self._routes)))
        return route

    def _forget(self, key: tuple[Address, str]) -> None:
        route = self._routes.pop(key)
        if route.opening is not None:
            route.opening.cancel()
        if route.link is not None:
            route.link.abort()

    async def _open(self, address: Address, route: _Route) -> Link:
        """Wait for the backoff after the last failure: do not reconnect to a lost peer all the time."""
        link = Link(address, self._clock, self._settings, on_lost=lambda reason: self._lost(address, reason))
        try:
            await asyncio.sleep(max(0.0, route.try_at_ms - self._clock.monotonic_ms()) / 1000)
            await link.open(self._network, until_authenticated=True)
        except OSError as error:
            self._hold_off(route)
            raise cannot_reach([(address, error)]) from error
        except asyncio.CancelledError:  # by `close`: tasks that wait for the connection are not cancelled themselves
            raise ConnectionLost(f"connecting to {address} was cancelled", was_sent=False) from None
        route.failures = 0
        route.link = link
        return link

    def _hold_off(self, route: _Route) -> None:
        wait_ms = min(BACKOFF_FIRST_MS * 2 ** min(route.failures, 10), BACKOFF_LONGEST_MS)
        route.failures += 1
        route.try_at_ms = self._clock.monotonic_ms() + wait_ms

    def _lost(self, address: Address, reason: str) -> None:
        if not self._is_closed:
            for listener in list(self.on_lost):
                listener(address, reason)


def _opened(route: _Route, task: asyncio.Task[Link]) -> None:
    route.opening = None
    if not task.cancelled():
        task.exception()  # mark it as retrieved: waiters got it, if there are any


class _Knock:
    """Disconnects as soon as it is connected."""

    def connected(self, connection: Connection) -> None:
        connection.close()

    def frame_received(self, frame: memoryview) -> None:
        """There are no responses."""

    def drained(self) -> None:
        """There are no requests."""

    def disconnected(self, reason: str) -> None:
        """Expected."""

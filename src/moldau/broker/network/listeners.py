"""The listeners of a broker: its open ports, and the connections that they accept."""

from collections.abc import Mapping

from moldau.broker.configs.tls_settings import ListenerTls
from moldau.broker.network.authentication import GateHost
from moldau.broker.network.connection import ServedConnection
from moldau.broker.network.connection_limits import ConnectionLimits
from moldau.broker.network.host import NetworkHost
from moldau.broker.requests.router import Routers
from moldau.model.listeners import Listener as NamedListener
from moldau.model.ports import Listener, Network


class Listeners:
    """Binds the listeners; accepted connections are read once the node is ready to serve them.

    Controller listeners have limits of their own: they open earlier, and clients cannot exhaust them.
    """

    def __init__(
        self,
        broker: NetworkHost,
        routers: Routers,
        network: Network,
        sasl: Mapping[str, GateHost] | None = None,
        tls: Mapping[str, ListenerTls] | None = None,
    ) -> None:
        """`sasl` has the listeners that require authentication, and `tls` those that encrypt, by name."""
        self._broker = broker
        self._routers = routers
        self._network = network
        self._sasl = sasl or {}
        self._tls = tls or {}
        self._open: dict[str, Listener] = {}
        self.limits = ConnectionLimits(broker.clock, lambda: broker.settings, broker.client_quotas)
        self._controller_limits = ConnectionLimits(broker.clock, lambda: broker.settings)

    async def bind(self, listeners: tuple[NamedListener, ...]) -> Mapping[str, int]:
        """Bind the ports; returns the port of each listener."""
        for listener in listeners:
            tls = self._tls.get(listener.name)
            self._open[listener.name] = await self._network.listen(
                listener.address,
                lambda name=listener.name: self._serve(name),  # type: ignore[misc]
                self._broker.settings.socket_request_max_bytes,
                None if tls is None else tls.settings,
            )
        clients = [each.name for each in listeners if each.name not in self._broker.controller_listeners]
        if len(clients) > 1:
            self.limits.protected_listener = self._broker.inter_broker_listener
        return {name: listener.address.port for name, listener in self._open.items()}

    def _serve(self, listener: str) -> ServedConnection:
        limits = self._controller_limits if listener in self._broker.controller_listeners else self.limits
        tls = self._tls.get(listener)
        return ServedConnection(
            self._broker,
            self._routers.for_listener(listener),
            listener,
            limits,
            self._sasl.get(listener),
            None if tls is None or not tls.identifies_clients else tls.principal,
        )

    def open_for_controllers(self) -> None:
        """The metadata log is open: its quorum may form, and brokers may register with this controller."""
        if any(name in self._broker.controller_listeners for name in self._open):
            self._controller_limits.open()

    def open(self) -> None:
        """The broker is ready: serve clients."""
        self.limits.open()

    async def close_for_clients(self) -> None:
        """The broker stops; a controller in the same node still serves."""
        await self._close([name for name in self._open if name not in self._broker.controller_listeners])
        self.limits.close()

    async def close(self) -> None:
        await self._close(list(self._open))
        self.limits.close()
        self._controller_limits.close()

    async def _close(self, names: list[str]) -> None:
        for name in names:
            await self._open.pop(name).close()

"""The front of a broker: its open ports, and the connections behind them."""

from collections.abc import Mapping

from moldau.broker.broker import Broker
from moldau.broker.network.connection import ServedConnection
from moldau.broker.network.gate import Gate
from moldau.broker.requests.router import Routers
from moldau.model.listeners import Listener as NamedListener
from moldau.model.ports import Listener, Network


class Front:
    """Binds the listeners; connections are held at their gate until the node is ready for them.

    Controllers have a gate of their own: it opens earlier, and clients cannot crowd it.
    """

    def __init__(self, broker: Broker, routers: Routers, network: Network) -> None:
        self._broker = broker
        self._routers = routers
        self._network = network
        self._open: dict[str, Listener] = {}
        self.gate = Gate(broker.clock, lambda: broker.settings)
        self._controller_gate = Gate(broker.clock, lambda: broker.settings)

    async def bind(self, listeners: tuple[NamedListener, ...]) -> Mapping[str, int]:
        """Take the ports; the answer says which one each listener got."""
        for listener in listeners:
            self._open[listener.name] = await self._network.listen(
                listener.address,
                lambda name=listener.name: self._serve(name),  # type: ignore[misc]
                self._broker.settings.socket_request_max_bytes,
            )
        return {name: listener.address.port for name, listener in self._open.items()}

    def _serve(self, listener: str) -> ServedConnection:
        gate = self._controller_gate if listener in self._broker.controller_listeners else self.gate
        return ServedConnection(self._broker, self._routers.for_listener(listener), listener, gate)

    def open_for_controllers(self) -> None:
        """The metadata log is there: its quorum may form, and brokers may ask this controller."""
        if any(name in self._broker.controller_listeners for name in self._open):
            self._controller_gate.open()

    def open(self) -> None:
        """The broker is ready: serve those who wait, and those who come."""
        self.gate.open()

    async def close_for_clients(self) -> None:
        """The broker stops, while the controller in it may go on."""
        await self._close([name for name in self._open if name not in self._broker.controller_listeners])
        self.gate.close()

    async def close(self) -> None:
        await self._close(list(self._open))
        self.gate.close()
        self._controller_gate.close()

    async def _close(self, names: list[str]) -> None:
        for name in names:
            await self._open.pop(name).close()

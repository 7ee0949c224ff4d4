"""The front of a broker: its open ports, and the connections behind them."""

from collections.abc import Mapping

from moldau.broker.broker import Broker
from moldau.broker.network.connection import ServedConnection
from moldau.broker.network.gate import Gate
from moldau.model.listeners import Listener as NamedListener
from moldau.model.ports import Listener, Network


class Front:
    """Binds the listeners; connections are held at the gate until the broker is ready for them."""

    def __init__(self, broker: Broker, network: Network) -> None:
        self._broker = broker
        self._network = network
        self._open: dict[str, Listener] = {}
        self.gate = Gate(broker.clock, lambda: broker.settings)

    async def bind(self, listeners: tuple[NamedListener, ...]) -> Mapping[str, int]:
        """Take the ports; the answer says which one each listener got."""
        for listener in listeners:
            self._open[listener.name] = await self._network.listen(
                listener.address,
                lambda name=listener.name: ServedConnection(self._broker, name, self.gate),  # type: ignore[misc]
                self._broker.settings.socket_request_max_bytes,
            )
        return {name: listener.address.port for name, listener in self._open.items()}

    def open(self) -> None:
        """The broker is ready: serve those who wait, and those who come."""
        self.gate.open()

    async def close(self) -> None:
        for listener in self._open.values():
            await listener.close()
        self.gate.close()

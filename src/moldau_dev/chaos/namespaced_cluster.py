"""A cluster whose nodes run in network namespaces, so that links can be cut."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from moldau.cli.local.layout import LocalNode
from moldau.testing.broker import Broker
from moldau.testing.cluster import Cluster
from moldau_dev.chaos.namespaces import Wires

if TYPE_CHECKING:
    from moldau.client.blocking_client import BlockingClient


class NamespacedCluster(Cluster):
    """Like `Cluster`, but node 1 runs at end 1 of the wires, and so on."""

    def __init__(self, wires: Wires, brokers: int = 3, *, settings: Mapping[str, object] | None = None) -> None:
        self._wires = wires
        super().__init__(brokers, settings=settings)

    def host_of(self, node: int) -> str:
        return self._wires.address(node)

    def client(self) -> "BlockingClient":
        from moldau.client.settings import ClientSettings
        from moldau.testing.client import SocketClient

        settings = ClientSettings(request_timeout_ms=3_000, connect_timeout_ms=1_000, total_timeout_ms=10_000)
        return SocketClient(self.bootstrap_servers, settings)

    def _broker(self, node: LocalNode) -> Broker:
        broker = super()._broker(node)
        broker.command = (*self._wires.command(node.node_id), *broker.command)  # type: ignore[misc]
        return broker

"""A cluster whose links can be cut and whose disks can fail."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from moldau.cli.local.layout import LocalNode
from moldau.testing.broker import Broker
from moldau.testing.cluster import Cluster
from moldau_dev.chaos.faulty_disks import FaultyDisks
from moldau_dev.chaos.namespaces import Wires

if TYPE_CHECKING:
    from moldau.client.blocking_client import BlockingClient


class FaultyCluster(Cluster):
    """Like `Cluster`; with `wires`, node 1 runs at end 1 of them, and so on."""

    def __init__(
        self,
        brokers: int = 3,
        *,
        settings: Mapping[str, object] | None = None,
        wires: Wires | None = None,
        disks: FaultyDisks | None = None,
    ) -> None:
        self.wires, self.disks = wires, disks
        super().__init__(brokers, settings=settings)

    def host_of(self, node: int) -> str:
        return super().host_of(node) if self.wires is None else self.wires.address(node)

    def client(self) -> "BlockingClient":
        from moldau.client.settings import ClientSettings
        from moldau.testing.client import SocketClient

        settings = ClientSettings(request_timeout_ms=3_000, connect_timeout_ms=1_000, total_timeout_ms=10_000)
        return SocketClient(self.bootstrap_servers, settings)

    def mend(self) -> None:
        """Undo all cuts and faults."""
        if self.wires is not None:
            self.wires.mend()
        if self.disks is not None:
            self.disks.mend()

    def _broker(self, node: LocalNode) -> Broker:
        broker = super()._broker(node)
        wires = () if self.wires is None else self.wires.command(node.node_id)
        disk = () if self.disks is None else self.disks.command(node.node_id, broker.data)
        broker.command = (*wires, *disk, *broker.command)  # type: ignore[misc]
        return broker


@contextmanager
def faulty_cluster(
    brokers: int = 3, *, settings: Mapping[str, object] | None = None, has_wires: bool, has_disks: bool
) -> Iterator[FaultyCluster]:
    """Start a cluster with the equipment for faults of its network and disks."""
    with ExitStack() as stack:
        wires = stack.enter_context(Wires(brokers)) if has_wires else None
        disks = stack.enter_context(FaultyDisks(brokers)) if has_disks else None
        yield stack.enter_context(FaultyCluster(brokers, settings=settings, wires=wires, disks=disks))

"""Whole nodes on simulated ports that form a cluster, and somebody who talks to any of them."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from broker_scene import FRAME_BYTES_MAX, Talker

from moldau.machines.metadata.delta import MetadataDelta, delta_between
from moldau.machines.metadata.image import BrokerImage, MetadataImage
from moldau.model.errors import NotController
from moldau.model.ids import Address, DirectoryId, NodeId
from moldau.model.ports import Ports
from moldau.node.configuration import load_configuration
from moldau.node.node import Node
from moldau.storage.folder import DataFolder, FolderIdentity
from moldau.testing.simulation import Host, Simulation
from moldau.wire.messages import CreateTopicsRequest

CLUSTER_ID = "AAECAwQFBgcICQoLDA0ODw"
CLIENTS, CONTROLLERS = 9092, 9093


class Observing:
    """Stands in for the metadata driver of a node that only follows: it sees what node 1 commits."""

    is_active = False
    leader_id = 1
    controller_address = Address("n1", CONTROLLERS)

    def __init__(self, scene: "Cluster") -> None:
        self._scene = scene
        self.image = MetadataImage()
        self.on_leader_changed: list[Any] = []
        self._subscribers: list[Any] = []

    def subscribe(self, subscriber: Any) -> None:
        self._subscribers.append(subscriber)

    async def start(self, endpoints: object = None) -> None:  # noqa: ARG002
        self._scene.nodes[1].broker.metadata.subscribe(self._committed)

    def _committed(self, image: MetadataImage, delta: MetadataDelta) -> None:  # noqa: ARG002
        asyncio.get_running_loop().call_later(0.001, self._see, image)

    def _see(self, image: MetadataImage) -> None:
        delta = delta_between(self.image, image)
        self.image = image
        for subscriber in self._subscribers:
            subscriber(image, delta)

    async def write(self, decide: Any) -> Any:  # noqa: ARG002
        raise NotController

    async def close(self) -> None: ...


class FollowingNode(Node):
    scene: "Cluster"

    def _make_metadata(self) -> Any:
        return super()._make_metadata() if self._configuration.is_controller else Observing(self.scene)


class Cluster:
    """Nodes 1 to n, each on its host; those that run are in `nodes`."""

    def __init__(self, simulation: Simulation, size: int, settings: Sequence[str]) -> None:
        self.simulation = simulation
        self.size = size
        self.nodes: dict[int, Node] = {}
        self._settings = settings

    def host(self, node_id: int) -> Host:
        return self.simulation.host(f"n{node_id}")

    async def start(self, node_id: int) -> Node:
        """Format the folder if need be, and run the node until it serves."""
        return await self.host(node_id).start(lambda ports: self._run(node_id, ports))  # type: ignore[no-any-return]

    async def start_all(self) -> None:
        await self.start(1)
        await asyncio.gather(*(self.start(node_id) for node_id in range(2, self.size + 1)))

    async def _run(self, node_id: int, ports: Ports) -> Node:
        folder = DataFolder.open(ports.disk, "/data")
        if folder.identity() is None:
            folder.format(FolderIdentity(CLUSTER_ID, NodeId(node_id), DirectoryId(bytes([node_id]) * 16)))
        folder.close()
        node = FollowingNode(load_configuration(overrides=self._overrides(node_id)), ports, on_failure=self._fail)
        node.scene = self
        await node.start()
        self.nodes[node_id] = node
        return node

    def _fail(self, what: str, error: BaseException) -> None:
        self.simulation.fail(what, error)

    def _overrides(self, node_id: int) -> list[str]:
        is_controller = node_id == 1
        controller = f",CONTROLLER://n{node_id}:{CONTROLLERS}" if is_controller else ""
        return [
            f"node.id={node_id}",
            f"process.roles={'broker,controller' if is_controller else 'broker'}",
            f"listeners=PLAINTEXT://n{node_id}:{CLIENTS}{controller}",
            "controller.listener.names=CONTROLLER",
            f"controller.quorum.voters=1@n1:{CONTROLLERS}",
            "moldau.metrics.listener=",
            "log.dirs=/data",
            *self._settings,
        ]

    async def stop(self, node_id: int) -> None:
        await self.host(node_id).stop()
        del self.nodes[node_id]

    def kill(self, node_id: int) -> None:
        self.host(node_id).crash()
        del self.nodes[node_id]

    def cut_power(self, node_id: int) -> None:
        self.host(node_id).power_loss()
        del self.nodes[node_id]

    async def connect(self, node_id: int, port: int = CLIENTS) -> Talker:
        talker = Talker()
        network = self.simulation.network.host("client")
        await network.connect(Address(f"n{node_id}", port), talker, FRAME_BYTES_MAX)
        return talker

    def broker(self, node_id: int, seen_by: int = 1) -> BrokerImage:
        return self.nodes[seen_by].broker.image.brokers[node_id]

    def leaders(self, topic: str, seen_by: int = 1) -> list[int]:
        return [each.leader for each in self.nodes[seen_by].broker.image.topics[topic].partitions]

    async def create(self, topic: str, partitions: int = 1, replicas: int = 3, *, through: int = 1) -> None:
        talker = await self.connect(through)
        asked = CreateTopicsRequest.CreatableTopic(name=topic, num_partitions=partitions, replication_factor=replicas)
        answer = await talker.ask(7, CreateTopicsRequest(topics=[asked]))
        assert answer.topics[0].error_code == 0, answer
        talker.connection.close()
        await self.until(lambda: all(topic in node.broker.image.topics for node in self.nodes.values()), 1.0)

    async def until(self, is_so: Callable[[], bool], virtual_s_max: float) -> float:
        """Wait for something to become true; how long it took."""
        began_s = self.simulation.now_s
        while not is_so():
            assert self.simulation.now_s - began_s < virtual_s_max, "it does not become true"
            await asyncio.sleep(0.002)
        return self.simulation.now_s - began_s


def on_cluster(
    script: Callable[[Cluster], Coroutine[Any, Any, None]],
    *,
    size: int = 3,
    settings: Sequence[str] = (),
    seed: int = 1,
) -> None:
    """Run a script against a cluster of its own, on virtual time; what still runs afterwards is stopped."""

    async def play(simulation: Simulation) -> None:
        cluster = Cluster(simulation, size, settings)
        await cluster.start_all()
        await script(cluster)
        for node_id in sorted(cluster.nodes, reverse=True):
            await cluster.stop(node_id)

    Simulation(seed=seed).run(play)

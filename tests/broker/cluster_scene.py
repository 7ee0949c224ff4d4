"""A cluster of whole nodes on simulated ports."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from broker_scene import FRAME_BYTES_MAX, Talker

from moldau.machines.metadata.image import BrokerImage
from moldau.model.ids import Address, DirectoryId, NodeId
from moldau.model.ports import Ports
from moldau.node.configuration import load_configuration
from moldau.node.node import Node
from moldau.storage.log_dir import LogDir, MetaProperties
from moldau.wire.messages import CreateTopicsRequest
from moldau_dev.simulation.simulation import Host, Simulation

CLUSTER_ID = "AAECAwQFBgcICQoLDA0ODw"
CLIENTS, CONTROLLERS = 9092, 9093


BOTH, BROKER, CONTROLLER = "broker,controller", "broker", "controller"
ONE_CONTROLLER = (BOTH, BROKER, BROKER)
ALL_CONTROL = (BOTH, BOTH, BOTH)


class Cluster:
    """Nodes 1 to n, each on its own host; the running ones are in `nodes`."""

    def __init__(self, simulation: Simulation, roles: Sequence[str], settings: Sequence[str]) -> None:
        self.simulation = simulation
        self.roles = dict(enumerate(roles, 1))
        self.nodes: dict[int, Node] = {}
        self._settings = settings

    def host(self, node_id: int) -> Host:
        return self.simulation.host(f"n{node_id}")

    async def start(self, node_id: int) -> Node:
        """Format the folder unless it is formatted, and run the node until it serves."""
        return await self.host(node_id).start(lambda ports: self._run(node_id, ports))  # type: ignore[no-any-return]

    async def start_all(self) -> None:
        await asyncio.gather(*(self.start(node_id) for node_id in self.roles))

    async def _run(self, node_id: int, ports: Ports) -> Node:
        folder = LogDir.open(ports.disk, "/data")
        if folder.identity() is None:
            folder.format(MetaProperties(CLUSTER_ID, NodeId(node_id), DirectoryId(bytes([node_id]) * 16)))
        folder.close()
        node = Node(load_configuration(overrides=self.overrides(node_id)), ports, on_failure=self._fail)
        await node.start()
        self.nodes[node_id] = node
        return node

    def _fail(self, what: str, error: BaseException) -> None:
        self.simulation.fail(what, error)

    def overrides(self, node_id: int) -> list[str]:
        """Return the settings of a node."""
        roles = self.roles[node_id]
        listeners = [f"PLAINTEXT://n{node_id}:{CLIENTS}"] if "broker" in roles else []
        listeners += [f"CONTROLLER://n{node_id}:{CONTROLLERS}"] if "controller" in roles else []
        voters = [f"{each}@n{each}:{CONTROLLERS}" for each, roles in self.roles.items() if "controller" in roles]
        return [
            f"node.id={node_id}",
            f"process.roles={roles}",
            f"listeners={','.join(listeners)}",
            "controller.listener.names=CONTROLLER",
            f"controller.quorum.voters={','.join(voters)}",
            "moldau.metrics.listener=",
            "log.dirs=/data",
            *(each.replace("{id}", str(node_id)) for each in self._settings),
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

    @property
    def active(self) -> int:
        """Return the node id of the active controller."""
        (active,) = [node_id for node_id, node in self.nodes.items() if node.broker.metadata.is_active]
        return active

    async def until_active(self, virtual_s_max: float = 5.0) -> float:
        """Wait until exactly one node is the active controller; return how long it took."""
        return await self.until(
            lambda: sum(node.broker.metadata.is_active for node in self.nodes.values()) == 1, virtual_s_max
        )

    def _witness(self, seen_by: int | None) -> Node:
        return self.nodes[min(self.nodes) if seen_by is None else seen_by]

    def broker(self, node_id: int, seen_by: int | None = None) -> BrokerImage:
        return self._witness(seen_by).broker.image.brokers[node_id]

    def leaders(self, topic: str, seen_by: int | None = None) -> list[int]:
        return [each.leader for each in self._witness(seen_by).broker.image.topics[topic].partitions]

    async def create(
        self,
        topic: str,
        partitions: int = 1,
        replicas: int = 3,
        *,
        through: int | None = None,
        talker: Talker | None = None,
    ) -> None:
        talker = talker or await self.connect(min(self.nodes) if through is None else through)
        wanted = CreateTopicsRequest.CreatableTopic(name=topic, num_partitions=partitions, replication_factor=replicas)
        response = await talker.ask(7, CreateTopicsRequest(topics=[wanted]))
        assert response.topics[0].error_code == 0, response
        talker.connection.close()
        await self.until(lambda: all(topic in node.broker.image.topics for node in self.nodes.values()), 1.0)

    async def until(self, is_so: Callable[[], bool], virtual_s_max: float) -> float:
        """Wait until a condition holds; return how long it took."""
        began_s = self.simulation.now_s
        while not is_so():
            assert self.simulation.now_s - began_s < virtual_s_max, "it does not become true"
            await asyncio.sleep(0.002)
        return self.simulation.now_s - began_s


def on_cluster(
    script: Callable[[Cluster], Coroutine[Any, Any, None]],
    *,
    roles: Sequence[str] = ONE_CONTROLLER,
    settings: Sequence[str] = (),
    seed: int = 1,
    kind: type[Cluster] = Cluster,
) -> None:
    """Run a script against a new cluster, on virtual time, and stop all nodes afterwards."""

    async def play(simulation: Simulation) -> None:
        cluster = kind(simulation, roles, settings)
        await cluster.start_all()
        await script(cluster)
        for node_id in sorted(cluster.nodes, reverse=True):
            await cluster.stop(node_id)

    Simulation(seed=seed).run(play)

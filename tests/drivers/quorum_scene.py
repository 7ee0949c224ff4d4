"""Controllers on simulated ports: whole nodes with the controller role, and a writer of metadata."""

import asyncio
import struct
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context
from typing import Any

from moldau.broker.drivers.metadata import MetadataDriver
from moldau.broker.drivers.metadata_log import FOLDER
from moldau.client.link import Link
from moldau.client.settings import ClientSettings
from moldau.machines.metadata.configs import Alteration, ConfigChange, Operation
from moldau.machines.metadata.image import MetadataImage, Resource, ResourceType
from moldau.machines.raft import Voter, VoterSet
from moldau.model.errors import NotController, StorageFailed
from moldau.model.ids import Address, DirectoryId, NodeId
from moldau.model.ports import Ports
from moldau.node.configuration import load_configuration
from moldau.node.node import Node
from moldau.node.storage_format import write_initial_voters, write_no_voters
from moldau.storage.log_dir import LogDir, MetaProperties
from moldau_dev.simulation.simulation import Host, Simulation

CLUSTER_ID = "AAECAwQFBgcICQoLDA0ODw"
PORT = 9093
DATA = "/data"
LOG = f"{DATA}/{FOLDER}"
RESOURCE = Resource(ResourceType.BROKER, "")


def directory(node_id: int, life: int = 0) -> DirectoryId:
    return DirectoryId(bytes([node_id, life + 1]) * 8)


def voter(node_id: int, life: int = 0) -> Voter:
    return Voter(NodeId(node_id), directory(node_id, life), (("CONTROLLER", Address(f"n{node_id}", PORT)),))


class Quorum:
    """Controllers 1 to n, each on its own host; the running ones are in `nodes`."""

    def __init__(self, simulation: Simulation, size: int, settings: Sequence[str], *, is_static: bool) -> None:
        self.simulation = simulation
        self.size = size
        self.nodes: dict[int, Node] = {}
        self.cluster_ids: dict[int, str] = {}
        self.ports: dict[int, int] = {}  # of nodes that do not listen at PORT
        self.gives_up = 0  # a node that is expected to stop itself
        self.images: dict[int, list[MetadataImage]] = {}
        self.failures: list[BaseException] = []
        self.settings = list(settings)
        self._is_static = is_static

    # Lifecycle

    def host(self, node_id: int) -> Host:
        return self.simulation.host(f"n{node_id}")

    def format(self, node_id: int, *, voters: Sequence[int] | None = None, life: int = 0) -> None:
        """Format as `moldau storage format` does: with the initial voters, or without for a later joiner."""
        host = self.host(node_id)
        host.disk.prepare_folder(DATA)
        disk = host.disk.mount()
        folder = LogDir.open(disk, DATA)
        cluster_id = self.cluster_ids.get(node_id, CLUSTER_ID)
        folder.format(MetaProperties(cluster_id, NodeId(node_id), directory(node_id, life)))
        if not self._is_static and voters:
            write_initial_voters(disk, folder, VoterSet.of(voter(each) for each in voters), 1)
        elif not self._is_static:
            write_no_voters(disk, folder)
        folder.close()
        host.disk.prepare_folder(DATA)

    async def start(self, node_id: int) -> Node:
        return await self.host(node_id).start(lambda ports: self._run(node_id, ports))  # type: ignore[no-any-return]

    async def start_all(self) -> None:
        node_ids = range(1, self.size + 1)
        for node_id in node_ids:
            self.format(node_id, voters=list(node_ids))
        await asyncio.gather(*(self.start(node_id) for node_id in node_ids))

    async def _run(self, node_id: int, ports: Ports) -> Node:
        def fail(what: str, error: BaseException) -> None:
            if node_id == self.gives_up:
                self.simulation.loop.call_soon(self._end, node_id, context=Context())
                return
            self.failures.append(error)
            self.simulation.fail(what, error)

        node = Node(load_configuration(overrides=self._overrides(node_id)), ports, on_failure=fail)
        await node.start()
        self.nodes[node_id] = node
        seen = self.images[node_id] = []
        node.broker.metadata.subscribe(lambda image, _: seen.append(image))
        return node

    def _overrides(self, node_id: int) -> list[str]:
        node_ids = range(1, self.size + 1)
        if self._is_static:
            known = "controller.quorum.voters=" + ",".join(f"{each}@n{each}:{PORT}" for each in node_ids)
        else:
            known = "controller.quorum.bootstrap.servers=" + ",".join(f"n{each}:{PORT}" for each in node_ids)
        return [
            f"node.id={node_id}",
            "process.roles=controller",
            f"listeners=CONTROLLER://n{node_id}:{self.ports.get(node_id, PORT)}",
            "controller.listener.names=CONTROLLER",
            known,
            "moldau.metrics.listener=",
            f"log.dirs={DATA}",
            *self.settings,
        ]

    def _end(self, node_id: int) -> None:
        self.host(node_id).exit()
        self.nodes.pop(node_id, None)

    def kill(self, *node_ids: int) -> None:
        for node_id in node_ids:
            self.host(node_id).crash()
            del self.nodes[node_id]

    def cut_power(self, node_id: int) -> None:
        self.host(node_id).power_loss()
        del self.nodes[node_id]

    async def stop(self, node_id: int) -> None:
        await self.host(node_id).stop()
        del self.nodes[node_id]

    # State of the nodes

    def metadata(self, node_id: int) -> MetadataDriver:
        return self.nodes[node_id].broker.metadata

    @property
    def leaders(self) -> list[int]:
        """Return the nodes that lead the newest known epoch and have loaded their machine."""
        epochs = {node_id: self.metadata(node_id).epoch for node_id in self.nodes}
        newest = max(epochs.values(), default=-1)
        return [each for each in self.nodes if epochs[each] == newest and self.metadata(each).is_active]

    async def leader(self, virtual_s_max: float = 10.0, *, unlike: int = 0) -> int:
        """Wait until a node other than `unlike` leads; return it."""
        await self.until(lambda: len(self.leaders) == 1 and unlike not in self.leaders, virtual_s_max)
        return self.leaders[0]

    async def until(self, is_so: Callable[[], bool], virtual_s_max: float = 10.0) -> float:
        """Wait until a condition holds; return how long it took."""
        began_s = self.simulation.now_s
        while not is_so():
            assert self.simulation.now_s - began_s < virtual_s_max, "it does not become true"
            await asyncio.sleep(0.002)
        return self.simulation.now_s - began_s

    def value(self, node_id: int) -> str | None:
        """Return the newest committed value that a node sees."""
        return self.metadata(node_id).image.configs.get(RESOURCE, {}).get("log.cleaner.threads")

    async def write(self, value: int, virtual_s_max: float = 20.0) -> int:
        """Write a value through the current leader, with retries; return the leader that acknowledged it."""
        began_s = self.simulation.now_s
        while True:
            assert self.simulation.now_s - began_s < virtual_s_max, "the value is not committed"
            for node_id in [each for each in self.nodes if self.host(each).is_up]:
                if await self.host(node_id).run(is_written(self.metadata(node_id), value)):
                    return node_id
            await asyncio.sleep(0.02)

    async def seen_by_all(self, value: int, virtual_s_max: float = 10.0) -> float:
        return await self.until(lambda: all(self.value(each) == str(value) for each in self.nodes), virtual_s_max)

    async def ask(self, node_id: int, request: Any, version: int | None = None) -> Any:
        """Send a request to a node's controller listener."""
        network = self.simulation.network.host("client")
        link = Link(Address(f"n{node_id}", self.ports.get(node_id, PORT)), self.host(node_id).clock, ClientSettings())
        await link.open(network)
        try:
            return await link.send(request, timeout_ms=30_000.0, version_at_most=version)
        finally:
            await link.close()

    def log_bytes(self, node_id: int) -> bytes:
        """Return the bytes of the log's segments, without those replaced by a snapshot."""
        disk = self.host(node_id).disk.mount()
        return b"".join(disk.read(f"{LOG}/{name}") for name in disk.list(LOG) if name.endswith(".log"))

    def names(self, node_id: int, suffix: str) -> list[str]:
        return [name for name in self.host(node_id).disk.mount().list(LOG) if name.endswith(suffix)]


async def write_to(metadata: MetadataDriver, value: int) -> None:
    alteration = Alteration(RESOURCE, [ConfigChange("log.cleaner.threads", Operation.SET, str(value))])
    await metadata.write(lambda machine: machine.decide_incremental_alter_configs([alteration]))


async def is_written(metadata: MetadataDriver, value: int, timeout_s: float = 3.0) -> bool:
    """Return whether the node acknowledged the value as committed."""
    try:
        async with asyncio.timeout(timeout_s):
            await write_to(metadata, value)
    except (NotController, StorageFailed, TimeoutError):
        return False
    return True


def offsets_in(data: bytes) -> list[int]:
    """Return the base offsets of the batches in a log."""
    found, at = [], 0
    while at + 12 <= len(data):
        base, length = struct.unpack_from(">qi", data, at)
        if not length:
            break
        found.append(base)
        at += 12 + length
    return found


def on_quorum(
    script: Callable[[Quorum], Coroutine[Any, Any, None]],
    *,
    size: int = 3,
    settings: Sequence[str] = (),
    seed: int = 1,
    is_static: bool = False,
) -> None:
    """Run a script against new controllers, on virtual time, and stop all nodes afterwards."""

    Simulation(seed=seed).run(
        lambda simulation: play_on_quorum(simulation, script, size=size, settings=settings, is_static=is_static)
    )


async def play_on_quorum(
    simulation: Simulation,
    script: Callable[[Quorum], Coroutine[Any, Any, None]],
    *,
    size: int = 3,
    settings: Sequence[str] = (),
    is_static: bool = False,
) -> None:
    quorum = Quorum(simulation, size, settings, is_static=is_static)
    await quorum.start_all()
    await script(quorum)
    for node_id in sorted(quorum.nodes):
        await quorum.stop(node_id)

"""The nodes and settings of a simulated cluster, drawn from the seed."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from moldau.model.ids import Address, DirectoryId, NodeId
from moldau.model.units import DAY_MS
from moldau.storage.log_dir import LogDir, MetaProperties
from moldau_dev.simulation.simulation import Host

FOLDER: Final = "/data"
CLUSTER_ID: Final = "c2ltdWxhdGVkIGNsdXN0ZQ"
BROKER_PORT: Final = 9092
CONTROLLER_PORT: Final = 9093
REPLICAS: Final = 3
BOTH, BROKER, CONTROLLER = "broker,controller", "broker", "controller"

# At least three brokers, and no quorum of two, which tolerates no failure.
SHAPES: Final = (
    (BOTH, BOTH, BOTH),
    (BOTH, BOTH, BOTH),
    (BOTH, BOTH, BOTH, BROKER),
    (CONTROLLER, BROKER, BROKER, BROKER),
    (BOTH, BOTH, BOTH, BROKER, BROKER),
    (BOTH, BOTH, BOTH, BOTH, BOTH),
    (BOTH, BOTH, CONTROLLER, BROKER),
    (BOTH, CONTROLLER, CONTROLLER, BROKER, BROKER),
)


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """The id and roles of one node."""

    node_id: int
    roles: str

    @property
    def host(self) -> str:
        return f"node-{self.node_id}"

    @property
    def is_broker(self) -> bool:
        return BROKER in self.roles

    @property
    def is_controller(self) -> bool:
        return CONTROLLER in self.roles

    @property
    def listeners(self) -> str:
        names = [f"PLAINTEXT://{self.host}:{BROKER_PORT}"] if self.is_broker else []
        names += [f"CONTROLLER://{self.host}:{CONTROLLER_PORT}"] if self.is_controller else []
        return ",".join(names)


@dataclass(frozen=True, slots=True)
class Topology:
    """All nodes, their common settings and the topic settings."""

    specs: tuple[NodeSpec, ...]
    settings: Mapping[str, str]
    topic_settings: Mapping[str, str]
    partitions: int
    min_isr: int
    members: int  # consumer group members
    replicas: int = REPLICAS
    in_flight: int = 1  # batches per producer
    syncs: bool = field(default=False)  # topics are synced before each response

    @classmethod
    def draw(cls, rng: random.Random, *, syncs: bool, min_isr_min: int = 1, votes: bool = False) -> "Topology":
        """Draw a topology; with `votes` it has several controllers."""
        shapes = [shape for shape in SHAPES if not votes or sum(CONTROLLER in roles for roles in shape) > 1]
        shape = rng.choice(shapes)
        specs = tuple(NodeSpec(number, roles) for number, roles in enumerate(shape, 1))
        min_isr = max(rng.choice((1, 2, 2, 2)), min_isr_min)
        return cls(
            specs,
            _node_settings(rng, min_isr) | ({"log.flush.interval.messages": "1"} if syncs else {}),
            _topic_settings(rng, min_isr),
            partitions=rng.randint(1, 3),
            min_isr=min_isr,
            members=rng.randint(1, 3),
            in_flight=rng.choice((1, 5, 5)),
            syncs=syncs,
        )

    @property
    def bootstrap(self) -> list[Address]:
        return [Address(spec.host, BROKER_PORT) for spec in self.specs if spec.is_broker]

    @property
    def voters(self) -> str:
        return ",".join(f"{spec.node_id}@{spec.host}:{CONTROLLER_PORT}" for spec in self.specs if spec.is_controller)

    def host_of(self, node_id: int) -> str:
        return next(spec.host for spec in self.specs if spec.node_id == node_id)

    def settings_of(self, spec: NodeSpec) -> dict[str, str]:
        return {
            "node.id": str(spec.node_id),
            "process.roles": spec.roles,
            "listeners": spec.listeners,
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "controller.quorum.voters": self.voters,
            "log.dirs": FOLDER,
            "moldau.metrics.listener": "",
            **self.settings,
        }

    def describe(self) -> str:
        shape = " ".join(f"{spec.node_id}:{spec.roles}" for spec in self.specs)
        clients = f"{self.partitions} partitions, {self.in_flight} in flight"
        return f"{shape}; min ISR {self.min_isr}; {clients}; {dict(self.settings)}"


def format_folder(host: Host, spec: NodeSpec) -> None:
    """Format the data directory like `moldau storage format`, durably."""
    host.disk.prepare_folder(FOLDER)
    directory = DirectoryId(f"directory-{spec.node_id:06d}".encode())
    folder = LogDir.open(host.disk.mount(), FOLDER)
    folder.format(MetaProperties(CLUSTER_ID, NodeId(spec.node_id), directory))
    folder.close()
    host.disk.prepare_folder(FOLDER)


def _node_settings(rng: random.Random, min_isr: int) -> dict[str, str]:
    session_ms = rng.choice((2_000, 5_000, 9_000))
    fetch_ms = rng.choice((500, 1_000, 2_000))
    return {
        "controller.quorum.election.timeout.ms": str(rng.choice((300, 1_000))),
        "controller.quorum.fetch.timeout.ms": str(fetch_ms),
        "controller.quorum.election.backoff.max.ms": str(rng.choice((300, 1_000))),
        "broker.session.timeout.ms": str(session_ms),
        "broker.heartbeat.interval.ms": str(session_ms // rng.choice((3, 5))),
        "initial.broker.registration.timeout.ms": str(DAY_MS),  # a node that exits is not restarted
        "replica.lag.time.max.ms": str(rng.choice((1_000, 3_000, 10_000))),
        "replica.fetch.wait.max.ms": str(rng.choice((200, 500))),
        "replica.fetch.max.bytes": str(rng.choice((1_000, 10_000, 1_048_576))),
        "metadata.log.max.record.bytes.between.snapshots": str(rng.choice((2_000, 20_000, 20_971_520))),
        "metadata.log.segment.bytes": str(rng.choice((8_388_608, 1_073_741_824))),
        "min.insync.replicas": str(min_isr),
        "offsets.topic.replication.factor": str(REPLICAS),
        "offsets.topic.num.partitions": "1",
        "offsets.topic.segment.bytes": str(rng.choice((65_536, 104_857_600))),
        "group.initial.rebalance.delay.ms": "100",
        "auto.create.topics.enable": "false",
        "auto.leader.rebalance.enable": rng.choice(("true", "false")),
        "leader.imbalance.check.interval.seconds": str(rng.choice((5, 300))),
    }


def _topic_settings(rng: random.Random, min_isr: int) -> dict[str, str]:
    return {
        "segment.bytes": str(rng.choice((16_384, 65_536, 1 << 30))),
        "index.interval.bytes": str(rng.choice((512, 4096))),
        "preallocate": rng.choice(("true", "false")),
        "min.insync.replicas": str(min_isr),
    }

"""The nodes of a local cluster: their data directories, ports and settings, kept in the cluster's directory.

<directory>/cluster.json        values that must stay the same across restarts
<directory>/node-1/             the data of node 1
<directory>/node-1.properties   its settings, for `moldau start --config`

All ports follow from the port P of the first broker; node N is the N-th from there:

P + 0 …         clients and brokers
P + 312 …       metrics: 9404 if P is 9092; below P if there is no room above
P + 10 000 …    controllers; P - 10 000 … if these would reach 32 768, the kernel's first ephemeral port
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, Self

from moldau.broker.configs.declarations import broker_setting
from moldau.broker.drivers.bootstrap_file import Credentials
from moldau.cli.errors import CommandError, usage_error
from moldau.cli.files import read_identity, write_private
from moldau.machines.access.acls import AclBinding
from moldau.machines.raft import Voter, VoterSet
from moldau.model.ids import Address, NodeId
from moldau.model.listeners import SecurityProtocol
from moldau.node.identity import random_id
from moldau.node.ports.capabilities import Capabilities
from moldau.node.ports.clock import SystemClock
from moldau.node.ports.files import SystemDisk
from moldau.node.ports.randomness import system_random
from moldau.node.properties import format_properties
from moldau.node.storage_format import InitialVoters, format_log_dir
from moldau.storage.log_dir import LogDir, MetaProperties, decode_id, encode_id

STATE_FILE: Final = "cluster.json"
BROKERS_DEFAULT: Final = 3
BROKERS_MAX: Final = 100
CONTROLLERS: Final = 3  # two of three are a majority; more voters make each write wait for more disks
REPLICAS: Final = 3
CONTROLLER: Final = "CONTROLLER"
INTER_BROKER_PROTOCOL: Final = "security.inter.broker.protocol"
CONTROLLER_PORTS_APART: Final = 10_000
PORTS_OF_ROOT: Final = 1023
PORT_MAX: Final = 65_535
OUTGOING_PORTS_FROM: Final = 32_768  # an outgoing connection may take the port of a node that is down
METRICS_PORTS_APART: Final = 312

HostOf = Callable[[int], str]


def localhost(_: int) -> str:
    """The host of every node; tests may give each node a network of its own."""
    return "localhost"


@dataclass(frozen=True, slots=True)
class Controller:
    """A voter of the quorum. Port and directory id are part of the voter set and never change."""

    node_id: int
    port: int
    directory_id: str


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The contents of cluster.json."""

    cluster_id: str
    brokers: int
    port: int
    controllers: tuple[Controller, ...]

    @classmethod
    def read(cls, path: Path) -> Self:
        try:
            saved = json.loads(path.read_text())
            controllers = tuple(Controller(**each) for each in saved["controllers"])
            return cls(saved["cluster_id"], saved["brokers"], saved["port"], controllers)
        except (ValueError, KeyError, TypeError) as error:
            raise CommandError(f"{path} is not valid ({error}); is this the directory of a cluster?") from error

    def write(self, path: Path) -> None:
        temporary = path.with_name(f"{path.name}.new")
        temporary.write_text(json.dumps(asdict(self), indent=2) + "\n")
        os.replace(temporary, path)


@dataclass(frozen=True, slots=True)
class LocalNode:
    """One node: its data directory, its settings file, and its addresses."""

    node_id: int
    folder: Path
    settings_file: Path
    address: Address
    controller: Controller | None
    settings: Mapping[str, str] = field(repr=False)

    @property
    def is_controller(self) -> bool:
        return self.controller is not None


@dataclass(frozen=True, slots=True)
class LocalCluster:
    """Nodes 1 to n on this machine. Created by `LocalCluster.open`."""

    folder: Path
    state: ClusterState
    nodes: tuple[LocalNode, ...]

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        brokers: int | None = None,
        port: int | None = None,
        host_of: HostOf = localhost,
        controller_port: int | None = None,
        settings: Mapping[str, str] | None = None,
        scram_users: Credentials | None = None,
        acls: Sequence[AclBinding] = (),
        check: Callable[[Self], None] = lambda _: None,
        prepare: Callable[[Self], None] = lambda _: None,
    ) -> Self:
        """Open the cluster in this directory, or create one if there is none; format data directories.

        A new cluster begins with `scram_users` and `acls`. `check` may raise before anything is written, so that a
        rejected port is not saved; then `prepare` may write files that the nodes need.
        """
        state = _saved_or_new_state(folder, brokers, port, controller_port)
        if state.port + state.brokers - 1 > PORT_MAX:
            raise usage_error(f"--port {state.port} leaves no room for {state.brokers} brokers below {PORT_MAX + 1}")
        nodes = tuple(_node(folder, host_of, state, node_id, settings or {}) for node_id in _ids(state))
        cluster = cls(folder, state, nodes)
        check(cluster)
        folder.mkdir(parents=True, exist_ok=True)
        prepare(cluster)
        cluster._write(_first_voters(state, host_of), scram_users or {}, acls)
        return cluster

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(str(node.address) for node in self.nodes)

    def node(self, node_id: int) -> LocalNode:
        return self.nodes[node_id - 1]

    def _write(self, voters: VoterSet, scram_users: Credentials, acls: Sequence[AclBinding]) -> None:
        for node in self.nodes:
            _format(node, self.state.cluster_id, voters, scram_users, acls)
            write_private(node.settings_file, format_properties(node.settings))  # settings may be passwords
        self.state.write(self.folder / STATE_FILE)  # last: it marks a complete cluster


def _saved_or_new_state(
    folder: Path, brokers: int | None, port: int | None, controller_port: int | None
) -> ClusterState:
    path = folder / STATE_FILE
    if not path.exists():
        return _new(brokers or BROKERS_DEFAULT, port or 9092, controller_port)
    known = ClusterState.read(path)
    wanted = brokers or known.brokers
    if wanted < len(known.controllers):
        raise usage_error(
            f"the cluster in {folder} has {len(known.controllers)} controllers: --brokers must not be fewer"
        )
    return ClusterState(known.cluster_id, wanted, port or known.port, known.controllers)


def _new(brokers: int, port: int, controller_port: int | None) -> ClusterState:
    random = system_random()
    first = controller_port or _controller_port(port)
    count = CONTROLLERS if brokers >= CONTROLLERS else 1
    controllers = tuple(Controller(1 + index, first + index, encode_id(random_id(random))) for index in range(count))
    return ClusterState(encode_id(random_id(random)), brokers, port, controllers)


def _controller_port(port: int) -> int:
    above, below = port + CONTROLLER_PORTS_APART, port - CONTROLLER_PORTS_APART
    return above if above + CONTROLLERS <= OUTGOING_PORTS_FROM or below <= PORTS_OF_ROOT else below


def _metrics_port(port: int) -> int:
    above = port + METRICS_PORTS_APART
    return above if above + BROKERS_MAX <= PORT_MAX else port - METRICS_PORTS_APART


def _ids(state: ClusterState) -> Iterator[int]:
    yield from range(1, state.brokers + 1)


def _node(folder: Path, host_of: HostOf, state: ClusterState, node_id: int, more: Mapping[str, str]) -> LocalNode:
    controller = next((each for each in state.controllers if each.node_id == node_id), None)
    address = Address(host_of(node_id), state.port + node_id - 1)
    place = folder / f"node-{node_id}"
    settings = {
        "node.id": str(node_id),
        "process.roles": "broker,controller" if controller else "broker",
        **_listeners(address, controller, SecurityProtocol[more.get(INTER_BROKER_PROTOCOL, "PLAINTEXT")]),
        "controller.quorum.bootstrap.servers": ",".join(str(_endpoint(each, host_of)) for each in state.controllers),
        "log.dirs": str(place.absolute()),
        "moldau.metrics.listener": str(Address(address.host, _metrics_port(state.port) + node_id - 1)),
        **_replication(state.brokers),
        **more,
    }
    return LocalNode(node_id, place, folder / f"node-{node_id}.properties", address, controller, settings)


def _listeners(address: Address, controller: Controller | None, protocol: SecurityProtocol) -> dict[str, str]:
    """Clients and brokers use one listener. Where that has SASL, nodes authenticate to controllers by certificate."""
    listeners = [f"{protocol.name}://{address}"]
    of_controllers = SecurityProtocol.SSL if protocol.needs_tls else SecurityProtocol.PLAINTEXT
    if controller is not None:
        listeners.append(f"{CONTROLLER}://{Address(address.host, controller.port)}")
    by_certificate = {f"listener.name.{CONTROLLER.lower()}.ssl.client.auth": "required"} if protocol.needs_sasl else {}
    return by_certificate | {
        "listeners": ",".join(listeners),
        "controller.listener.names": CONTROLLER,
        "listener.security.protocol.map": f"{CONTROLLER}:{of_controllers.name},{protocol.name}:{protocol.name}",
    }


def _replication(brokers: int) -> dict[str, str]:
    """Three replicas of which two must be in sync, so that any one broker may fail; fewer with fewer brokers."""
    replicas = min(REPLICAS, brokers)
    in_sync = 2 if replicas == REPLICAS else 1
    settings = {
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
    }
    return {name: str(value) for name, value in settings.items() if _has_effect(name)}


def _has_effect(name: str) -> bool:
    setting = broker_setting(name)
    return setting is not None and setting.has_effect


def _endpoint(controller: Controller, host_of: HostOf) -> Address:
    return Address(host_of(controller.node_id), controller.port)


def _first_voters(state: ClusterState, host_of: HostOf) -> VoterSet:
    return VoterSet.of(
        Voter(NodeId(each.node_id), decode_id(each.directory_id), ((CONTROLLER, _endpoint(each, host_of)),))
        for each in state.controllers
    )


def _format(node: LocalNode, cluster_id: str, voters: VoterSet, users: Credentials, acls: Sequence[AclBinding]) -> None:
    """Format a new data directory; reject one that belongs to another node or cluster."""
    known = read_identity(node.folder)
    if known is not None:
        _check(node, known, cluster_id)
        return
    of_node = voters if node.is_controller else InitialVoters.UNSPECIFIED
    format_data_directory(node.folder, node.node_id, cluster_id, voters=of_node, scram_users=users, acls=acls)


def format_data_directory(
    path: Path,
    node_id: int,
    cluster_id: str | None,
    *,
    voters: VoterSet | InitialVoters = InitialVoters.UNSPECIFIED,
    scram_users: Credentials | None = None,
    acls: Sequence[AclBinding] = (),
) -> None:
    disk = SystemDisk(Capabilities.detect())
    log_dir = LogDir.open(disk, str(path))
    try:
        format_log_dir(
            log_dir,
            disk,
            system_random(),
            SystemClock(),
            node_id=node_id,
            cluster_id=cluster_id,
            voters=voters,
            scram_users=scram_users,
            acls=acls,
        )
    finally:
        log_dir.close()


def _check(node: LocalNode, known: MetaProperties, cluster_id: str) -> None:
    if known.cluster_id != cluster_id or known.node_id != node.node_id:
        raise CommandError(
            f"{node.folder} belongs to node {known.node_id} of cluster {known.cluster_id}, not to node "
            f"{node.node_id} of {cluster_id}: choose another --data directory"
        )

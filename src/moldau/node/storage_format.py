"""Formatting a data directory: its identity, and the initial voters of the quorum (KIP-853)."""

import re
from collections.abc import Sequence
from enum import Enum
from typing import Final

from moldau.broker.drivers.bootstrap_file import Credentials, write_bootstrap
from moldau.broker.drivers.metadata_log import FOLDER, make_metadata_folder
from moldau.broker.drivers.metadata_snapshots import bootstrap_snapshot
from moldau.broker.drivers.quorum_state import QuorumState, write_quorum_state
from moldau.machines.access.acls import AclBinding
from moldau.machines.raft import Endpoints, Voter, VoterSet
from moldau.model.errors import InvalidConfig
from moldau.model.ids import NodeId
from moldau.model.listeners import parse_address
from moldau.model.ports import Clock, Disk, Random
from moldau.model.settings import INT_MAX, shorten
from moldau.node.identity import identify, random_id
from moldau.storage.files import replace_file
from moldau.storage.log_dir import LogDir, MetaProperties, decode_id

_VOTER: Final = re.compile(r"([0-9]{1,10})@(.+):([A-Za-z0-9_-]{22})")
_LISTENER: Final = "CONTROLLER"


def parse_initial_controllers(text: str, listener: str = _LISTENER) -> VoterSet:
    """Parse `id@host:port:directoryId,…` as Kafka's format tool does. All nodes must be given the same value."""
    voters: dict[int, Voter] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        match = _VOTER.fullmatch(part)
        if match is None or int(match[1]) > INT_MAX:
            raise InvalidConfig(
                f"'{shorten(part)}' is not id@host:port:directoryId, such as 1@localhost:9093:3Db5QLSqSZieL3rJBUUegA."
            )
        node_id = NodeId(int(match[1]))
        if node_id in voters:
            raise InvalidConfig(f"Node {node_id} appears twice in the initial controllers.")
        voters[node_id] = Voter(node_id, _directory(match[3]), ((listener, parse_address(match[2])),))
    if not voters:
        raise InvalidConfig("There must be at least one initial controller.")
    return VoterSet.of(voters.values())


def _directory(text: str) -> bytes:
    try:
        return decode_id(text)
    except ValueError as error:
        raise InvalidConfig(f"Invalid directory id of an initial controller: {error}.") from None


class InitialVoters(Enum):
    """The alternatives to an explicit list of initial voters."""

    UNSPECIFIED = "unspecified"  # brokers have none; a single-node controller makes itself the only voter at its start
    STANDALONE = "standalone"
    NONE = "no initial controllers"  # joins an existing quorum and must not form one by itself


def format_log_dir(
    log_dir: LogDir,
    disk: Disk,
    random: Random,
    clock: Clock,
    *,
    node_id: int,
    cluster_id: str | None,
    voters: VoterSet | InitialVoters = InitialVoters.UNSPECIFIED,
    endpoints: Endpoints = (),
    scram_users: Credentials | None = None,
    acls: Sequence[AclBinding] = (),
) -> MetaProperties:
    """Format a data directory. Voters and users are written first: the identity marks the directory as formatted."""
    own = voters.get(NodeId(node_id)) if isinstance(voters, VoterSet) else None
    if isinstance(voters, VoterSet) and own is None:
        raise InvalidConfig(
            f"Node {node_id} is not among the initial controllers {', '.join(str(each) for each in voters.ids)}: "
            "format a controller that joins later with --no-initial-controllers, a broker with neither option."
        )
    directory_id = own.directory_id if own is not None else random_id(random)
    if voters is InitialVoters.STANDALONE:
        voters = VoterSet.of([Voter(NodeId(node_id), directory_id, endpoints)])
    if isinstance(voters, VoterSet):
        write_initial_voters(disk, log_dir, voters, clock.wall_ms())
    elif voters is InitialVoters.NONE:
        write_no_voters(disk, log_dir)
    if scram_users or acls:
        by_id = {random_id(random): each for each in acls}
        write_bootstrap(disk, log_dir.path, scram_users or {}, clock.wall_ms(), by_id)
    return identify(log_dir, node_id, random, cluster_id, directory_id=directory_id)


def write_initial_voters(disk: Disk, log_dir: LogDir, voters: VoterSet, now_ms: int) -> None:
    """Write the bootstrap snapshot with the initial voters, which is the same on all of them."""
    make_metadata_folder(disk, log_dir.path)
    snapshot, data = bootstrap_snapshot(voters, now_ms)
    replace_file(disk, f"{log_dir.path}/{FOLDER}/{snapshot.name}", data)


def write_no_voters(disk: Disk, log_dir: LogDir) -> None:
    """Write a quorum state without voters, so that the controller joins a quorum and does not form one by itself."""
    make_metadata_folder(disk, log_dir.path)
    write_quorum_state(disk, f"{log_dir.path}/{FOLDER}", QuorumState())

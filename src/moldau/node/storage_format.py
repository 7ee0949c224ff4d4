"""Making a data folder: whose it is, and whom its controller takes for the first voters of the quorum (KIP-853)."""

import re
from enum import Enum
from typing import Final

from moldau.broker.drivers.metadata_log import FOLDER, make_metadata_folder
from moldau.broker.drivers.metadata_snapshots import bootstrap_snapshot
from moldau.broker.drivers.quorum_state import QuorumState, write_quorum_state
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
    """`id@host:port:directoryId,…` as Kafka's format tool takes it. All nodes must be given the same."""
    voters: dict[int, Voter] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        match = _VOTER.fullmatch(part)
        if match is None or int(match[1]) > INT_MAX:
            raise InvalidConfig(
                f"'{shorten(part)}' is no id@host:port:directoryId, such as 1@localhost:9093:3Db5QLSqSZieL3rJBUUegA."
            )
        node_id = NodeId(int(match[1]))
        if node_id in voters:
            raise InvalidConfig(f"Node {node_id} is named twice among the initial controllers.")
        voters[node_id] = Voter(node_id, _directory(match[3]), ((listener, parse_address(match[2])),))
    if not voters:
        raise InvalidConfig("There must be at least one initial controller.")
    return VoterSet.of(voters.values())


def _directory(text: str) -> bytes:
    try:
        return decode_id(text)
    except ValueError as error:
        raise InvalidConfig(f"The directory id of an initial controller: {error}.") from None


class FirstVoters(Enum):
    """What a new folder says about the quorum, beside a list of voters."""

    UNSAID = "unsaid"  # a broker has no say; a controller alone makes itself the only voter when it starts
    ITSELF = "standalone"
    NONE = "no initial controllers"  # it joins a quorum that exists: by itself it must not become one


def format_folder(
    folder: LogDir,
    disk: Disk,
    random: Random,
    clock: Clock,
    *,
    node_id: int,
    cluster_id: str | None,
    voters: VoterSet | FirstVoters = FirstVoters.UNSAID,
    endpoints: Endpoints = (),
) -> MetaProperties:
    """Give a new folder its identity. The voters are written first: a folder with an identity is a finished one."""
    own = voters.get(NodeId(node_id)) if isinstance(voters, VoterSet) else None
    if isinstance(voters, VoterSet) and own is None:
        raise InvalidConfig(
            f"Node {node_id} is not among the initial controllers {', '.join(str(each) for each in voters.ids)}: a "
            "controller that joins later is formatted with --no-initial-controllers, a broker without either."
        )
    directory_id = own.directory_id if own is not None else random_id(random)
    if voters is FirstVoters.ITSELF:
        voters = VoterSet.of([Voter(NodeId(node_id), directory_id, endpoints)])
    if isinstance(voters, VoterSet):
        write_first_voters(disk, folder, voters, clock.wall_ms())
    elif voters is FirstVoters.NONE:
        write_no_voters(disk, folder)
    return identify(folder, node_id, random, cluster_id, directory_id=directory_id)


def write_first_voters(disk: Disk, folder: LogDir, voters: VoterSet, now_ms: int) -> None:
    """A snapshot of nothing that names the first voters; each of them begins with the same."""
    make_metadata_folder(disk, folder.path)
    snapshot, data = bootstrap_snapshot(voters, now_ms)
    replace_file(disk, f"{folder.path}/{FOLDER}/{snapshot.name}", data)


def write_no_voters(disk: Disk, folder: LogDir) -> None:
    """This controller joins a quorum that exists, or will: by itself it must not become one."""
    make_metadata_folder(disk, folder.path)
    write_quorum_state(disk, f"{folder.path}/{FOLDER}", QuorumState())

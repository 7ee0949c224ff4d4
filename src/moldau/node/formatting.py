"""Making a data folder: whose it is, and whom its controller takes for the first voters of the quorum (KIP-853)."""

import re
from typing import Final

from moldau.broker.drivers.metadata_log import FOLDER, make_metadata_folder
from moldau.broker.drivers.metadata_snapshots import bootstrap_snapshot
from moldau.broker.drivers.quorum_state import QuorumState, write_quorum_state
from moldau.machines.raft import Voter, VoterSet
from moldau.model.errors import InvalidConfig
from moldau.model.ids import NodeId
from moldau.model.listeners import parse_address
from moldau.model.ports import Disk
from moldau.model.settings import INT_MAX, shorten
from moldau.storage.files import replace_file
from moldau.storage.folder import DataFolder, decode_id

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


def write_first_voters(disk: Disk, folder: DataFolder, voters: VoterSet, now_ms: int) -> None:
    """A snapshot of nothing that names the first voters; each of them begins with the same."""
    make_metadata_folder(disk, folder.path)
    snapshot, data = bootstrap_snapshot(voters, now_ms)
    replace_file(disk, f"{folder.path}/{FOLDER}/{snapshot.name}", data)


def write_no_voters(disk: Disk, folder: DataFolder) -> None:
    """This controller joins a quorum that exists, or will: by itself it must not become one."""
    make_metadata_folder(disk, folder.path)
    write_quorum_state(disk, f"{folder.path}/{FOLDER}", QuorumState())

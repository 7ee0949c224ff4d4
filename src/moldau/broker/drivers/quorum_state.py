"""The `quorum-state` file: which epoch this node has seen, whom it voted for in it, and who led it. Kafka's JSON."""

import json
import logging
from dataclasses import dataclass
from typing import Any, Final

from moldau.model.ids import NO_NODE
from moldau.model.ports import Disk
from moldau.storage.files import replace_file
from moldau.storage.folder import decode_id, encode_id

log = logging.getLogger(__name__)

FILE_NAME: Final = "quorum-state"
_VERSION: Final = 1
_NO_DIRECTORY: Final = bytes(16)


@dataclass(frozen=True, slots=True)
class QuorumState:
    """What must not be forgotten in a crash, or a node could vote twice in one epoch."""

    leader_epoch: int = 0
    leader_id: int = NO_NODE
    voted_id: int = NO_NODE
    voted_directory_id: bytes = _NO_DIRECTORY

    def encode(self) -> bytes:
        fields = {
            "leaderId": self.leader_id,
            "leaderEpoch": self.leader_epoch,
            "votedId": self.voted_id,
            "votedDirectoryId": encode_id(self.voted_directory_id),
            "data_version": _VERSION,
        }
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> "QuorumState":
        """Of version 0 or 1; `ValueError` for anything else."""
        fields: dict[str, Any] = json.loads(data)
        try:
            if fields["data_version"] not in (0, _VERSION):
                raise ValueError(f"data_version {fields['data_version']}")
            directory_id = fields.get("votedDirectoryId")
            return cls(
                leader_epoch=int(fields["leaderEpoch"]),
                leader_id=int(fields["leaderId"]),
                voted_id=int(fields["votedId"]),
                voted_directory_id=decode_id(directory_id) if directory_id else _NO_DIRECTORY,
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a quorum state: {error}") from None


def read_quorum_state(disk: Disk, folder: str) -> QuorumState:
    """What the file says; nothing, if there is none. One that does not parse is said to hold nothing, with a warning:
    the epochs in the log tell the rest, as long as this node is its only voter."""
    path = f"{folder}/{FILE_NAME}"
    if not disk.exists(path):
        return QuorumState()
    try:
        return QuorumState.decode(disk.read(path))
    except ValueError as error:
        log.warning("%s is ignored: %s", path, error)
        return QuorumState()


def write_quorum_state(disk: Disk, folder: str, state: QuorumState) -> None:
    """On disk when this returns."""
    replace_file(disk, f"{folder}/{FILE_NAME}", state.encode())

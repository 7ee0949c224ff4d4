"""The `quorum-state` file, in Kafka's JSON: the current epoch, this node's vote in it, and its leader.

Version 0 is for static quorums (voters in the settings), version 1 for quorums that keep the voters in the log.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from moldau.model.ids import NO_DIRECTORY, NO_NODE
from moldau.model.ports import Disk
from moldau.storage.files import replace_file, sync_directory
from moldau.storage.log_dir import decode_id, encode_id

FILE_NAME: Final = "quorum-state"
_FIXED_VOTERS_VERSION: Final = 0
_VERSION: Final = 1


class BrokenQuorumState(Exception):
    """The file cannot be parsed, so this node's vote is unknown."""


@dataclass(frozen=True, slots=True)
class QuorumState:
    """The state that must survive a crash, or a node could vote twice in one epoch."""

    leader_epoch: int = 0
    leader_id: int = NO_NODE
    voted_id: int = NO_NODE
    voted_directory_id: bytes = NO_DIRECTORY

    def encode(self, fixed_voters: Sequence[int] | None = None) -> bytes:
        """Version 0 for static voters, whose ids it contains."""
        fields: dict[str, Any]
        if fixed_voters is None:
            fields = {
                "leaderId": self.leader_id,
                "leaderEpoch": self.leader_epoch,
                "votedId": self.voted_id,
                "votedDirectoryId": encode_id(self.voted_directory_id),
                "data_version": _VERSION,
            }
        else:
            fields = {
                "clusterId": "",
                "leaderId": self.leader_id,
                "leaderEpoch": self.leader_epoch,
                "votedId": self.voted_id,
                "appliedOffset": 0,
                "currentVoters": [{"voterId": each} for each in fixed_voters],
                "data_version": _FIXED_VOTERS_VERSION,
            }
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> "QuorumState":
        """Decode version 0 or 1; raises `ValueError` for anything else."""
        fields: dict[str, Any] = json.loads(data)
        try:
            if fields["data_version"] not in (_FIXED_VOTERS_VERSION, _VERSION):
                raise ValueError(f"data_version {fields['data_version']}")
            directory_id = fields.get("votedDirectoryId")
            return cls(
                leader_epoch=int(fields["leaderEpoch"]),
                leader_id=int(fields["leaderId"]),
                voted_id=int(fields["votedId"]),
                voted_directory_id=decode_id(directory_id) if directory_id else NO_DIRECTORY,
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a quorum state: {error}") from None


def read_quorum_state(disk: Disk, folder: str) -> QuorumState | None:
    """Read the file; None if it does not exist, `BrokenQuorumState` if it cannot be parsed.

    It is durable when this returns: a crash may have come between its rename and the flush.
    """
    path = f"{folder}/{FILE_NAME}"
    if not disk.exists(path):
        return None
    sync_directory(disk, folder)
    try:
        return QuorumState.decode(disk.read(path))
    except ValueError as error:
        raise BrokenQuorumState(f"{path}: {error}") from None


def write_quorum_state(disk: Disk, folder: str, state: QuorumState, fixed_voters: Sequence[int] | None = None) -> None:
    """Durable when this returns."""
    replace_file(disk, f"{folder}/{FILE_NAME}", state.encode(fixed_voters))

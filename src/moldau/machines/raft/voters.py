"""Who may vote: replicas, voters and their sets, and how the set changed along the log (KIP-853)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from moldau.machines.raft.settings import VOTER_SETS_KEPT
from moldau.model.ids import Address, NodeId

NO_DIRECTORY: Final = bytes(16)
BOOTSTRAP_OFFSET: Final = -1
"""Where a set stands that is in no log yet: it came with the bootstrap checkpoint."""

Endpoints = tuple[tuple[str, Address], ...]
"""(listener, where it is reached)"""


@dataclass(frozen=True, slots=True, order=True)
class ReplicaKey:
    """A replica of the metadata log. A wiped disk has another directory id, and is another replica."""

    node_id: NodeId
    directory_id: bytes = NO_DIRECTORY

    def names(self, replica: "ReplicaKey") -> bool:
        """Whether this replica is meant. A key without a directory id means the node, with any disk."""
        return self.node_id == replica.node_id and self.directory_id in (NO_DIRECTORY, replica.directory_id)

    def __str__(self) -> str:
        return f"{self.node_id}" if self.directory_id == NO_DIRECTORY else f"{self.node_id}/{self.directory_id.hex()}"


@dataclass(frozen=True, slots=True)
class Voter:
    """A member of the quorum. Without a directory id (a static quorum) any disk of this node may vote."""

    node_id: NodeId
    directory_id: bytes = NO_DIRECTORY
    endpoints: Endpoints = ()
    kraft_version_min: int = 0
    kraft_version_max: int = 1

    @property
    def key(self) -> ReplicaKey:
        return ReplicaKey(self.node_id, self.directory_id)

    def is_replica(self, key: ReplicaKey) -> bool:
        """Whether this replica is the voter, and not the same node with another disk."""
        return self.key.names(key)


@dataclass(frozen=True, slots=True)
class VoterSet:
    """The voters at one point of the log, by node id."""

    voters: tuple[Voter, ...] = ()

    @classmethod
    def of(cls, voters: Iterable[Voter]) -> "VoterSet":
        return cls(tuple(sorted(voters, key=lambda voter: voter.node_id)))

    def __iter__(self) -> Iterator[Voter]:
        return iter(self.voters)

    def __len__(self) -> int:
        return len(self.voters)

    @property
    def majority(self) -> int:
        return len(self.voters) // 2 + 1

    @property
    def ids(self) -> tuple[NodeId, ...]:
        return tuple(voter.node_id for voter in self.voters)

    def get(self, node_id: NodeId) -> Voter | None:
        return next((voter for voter in self.voters if voter.node_id == node_id), None)

    def includes(self, key: ReplicaKey) -> bool:
        return any(voter.is_replica(key) for voter in self.voters)

    def endpoints_of(self, node_id: NodeId) -> Endpoints:
        voter = self.get(node_id)
        return voter.endpoints if voter is not None else ()

    def with_voter(self, voter: Voter) -> "VoterSet":
        """With this one, instead of whoever had its node id."""
        return VoterSet.of([*(each for each in self.voters if each.node_id != voter.node_id), voter])

    def without(self, key: ReplicaKey) -> "VoterSet":
        return VoterSet(tuple(voter for voter in self.voters if voter.key != key))


@dataclass(frozen=True, slots=True)
class VotersAt:
    """A voters record of the log: from `offset` on this set decides, committed or not."""

    offset: int
    voters: VoterSet


class VoterHistory:
    """The sets along the log. The latest decides; one that is cut off the log never was."""

    def __init__(self, static_voters: VoterSet) -> None:
        self._static = static_voters
        self._entries: list[VotersAt] = []

    @property
    def is_dynamic(self) -> bool:
        """Whether the voters are written down (kraft.version 1), and so may change."""
        return bool(self._entries)

    @property
    def voters(self) -> VoterSet:
        return self._entries[-1].voters if self._entries else self._static

    @property
    def offset(self) -> int:
        """Where the latest set stands in the log; BOOTSTRAP_OFFSET if nowhere."""
        return self._entries[-1].offset if self._entries else BOOTSTRAP_OFFSET

    @property
    def previous(self) -> VoterSet | None:
        """The set before the latest."""
        return self._entries[-2].voters if len(self._entries) > 1 else None

    def at(self, end_offset: int) -> VoterSet | None:
        """The latest set below an offset."""
        return next((entry.voters for entry in reversed(self._entries) if entry.offset < end_offset), None)

    def add(self, offset: int, voters: VoterSet) -> None:
        self.truncate(offset)
        self._entries.append(VotersAt(offset, voters))

    def truncate(self, end_offset: int) -> None:
        while self._entries and self._entries[-1].offset >= end_offset:
            self._entries.pop()

    def restart(self, offset: int, voters: VoterSet | None) -> None:
        """A snapshot has taken the place of the log."""
        self._entries = [VotersAt(offset, voters)] if voters is not None else []

    def forget(self, high_watermark: int) -> None:
        """What no truncation and no snapshot will want any more: of the committed sets only the latest are kept."""
        while len(self._entries) > VOTER_SETS_KEPT and self._entries[1].offset < high_watermark:
            del self._entries[0]

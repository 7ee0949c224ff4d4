"""Replica keys, voters, voter sets, and the history of the voter set along the log (KIP-853)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from moldau.machines.raft.settings import VOTER_SETS_KEPT
from moldau.model.ids import NO_DIRECTORY, Address, NodeId

BOOTSTRAP_OFFSET: Final = -1
"""Offset of the bootstrap checkpoint's voter set, which is not in the log yet."""

Endpoints = tuple[tuple[str, Address], ...]
"""(listener, address)"""


@dataclass(frozen=True, slots=True, order=True)
class ReplicaKey:
    """A replica of the metadata log. A wiped disk gets a new directory id and is a new replica."""

    node_id: NodeId
    directory_id: bytes = NO_DIRECTORY

    def matches(self, replica: "ReplicaKey") -> bool:
        """Whether this key matches a replica. A key without a directory id matches any disk of the node."""
        return self.node_id == replica.node_id and self.directory_id in (NO_DIRECTORY, replica.directory_id)

    def __str__(self) -> str:
        return f"{self.node_id}" if self.directory_id == NO_DIRECTORY else f"{self.node_id}/{self.directory_id.hex()}"


@dataclass(frozen=True, slots=True)
class Voter:
    """A voter of the quorum. Without a directory id (static quorum) any disk of the node may vote."""

    node_id: NodeId
    directory_id: bytes = NO_DIRECTORY
    endpoints: Endpoints = ()
    kraft_version_min: int = 0
    kraft_version_max: int = 1

    @property
    def key(self) -> ReplicaKey:
        return ReplicaKey(self.node_id, self.directory_id)

    def is_replica(self, key: ReplicaKey) -> bool:
        """Whether `key` is this voter, and not the same node with another disk."""
        return self.key.matches(key)


@dataclass(frozen=True, slots=True)
class VoterSet:
    """The voters at an offset of the log, sorted by node id."""

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
        """Return a set with this voter, replacing any voter of the same node id."""
        return VoterSet.of([*(each for each in self.voters if each.node_id != voter.node_id), voter])

    def without(self, key: ReplicaKey) -> "VoterSet":
        return VoterSet(tuple(voter for voter in self.voters if voter.key != key))


@dataclass(frozen=True, slots=True)
class VotersAt:
    """A voters record of the log: effective from `offset` on, committed or not."""

    offset: int
    voters: VoterSet


class VoterHistory:
    """The voter sets along the log. The latest is effective; truncating its record reverts to the one before."""

    def __init__(self, static_voters: VoterSet) -> None:
        self._static = static_voters
        self._entries: list[VotersAt] = []

    @property
    def is_dynamic(self) -> bool:
        """Whether the voter set is in the log (kraft.version 1) and can change."""
        return bool(self._entries)

    @property
    def voters(self) -> VoterSet:
        return self._entries[-1].voters if self._entries else self._static

    @property
    def offset(self) -> int:
        """Offset of the latest set; BOOTSTRAP_OFFSET if it is not in the log."""
        return self._entries[-1].offset if self._entries else BOOTSTRAP_OFFSET

    @property
    def previous(self) -> VoterSet | None:
        """The set before the latest."""
        return self._entries[-2].voters if len(self._entries) > 1 else None

    def at(self, end_offset: int) -> VoterSet | None:
        """Return the latest set below an offset."""
        return next((entry.voters for entry in reversed(self._entries) if entry.offset < end_offset), None)

    def add(self, offset: int, voters: VoterSet) -> None:
        self.truncate(offset)
        self._entries.append(VotersAt(offset, voters))

    def truncate(self, end_offset: int) -> None:
        while self._entries and self._entries[-1].offset >= end_offset:
            self._entries.pop()

    def restart(self, offset: int, voters: VoterSet | None) -> None:
        """Start over from a snapshot, which replaced the log."""
        self._entries = [VotersAt(offset, voters)] if voters is not None else []

    def discard_below(self, high_watermark: int) -> None:
        """Drop sets that neither a truncation nor a snapshot can need: keep only the latest committed ones."""
        while len(self._entries) > VOTER_SETS_KEPT and self._entries[1].offset < high_watermark:
            del self._entries[0]

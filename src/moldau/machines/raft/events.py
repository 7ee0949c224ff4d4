"""Input events of the raft machine: requests and responses of other nodes, log progress, and timeouts."""

from dataclasses import dataclass
from typing import TypeAlias

from moldau.machines.raft.effects import (
    ElectionState,
    Leadership,
    Send,
    SendBeginQuorum,
    SendEndQuorum,
    SendFetch,
    SendFetchSnapshot,
    SendUpdateVoter,
    SendVote,
    Ticket,
)
from moldau.machines.raft.log_view import OffsetAndEpoch
from moldau.machines.raft.voters import Endpoints, ReplicaKey, Voter, VotersAt, VoterSet
from moldau.model.errors import ErrorCode
from moldau.model.ids import NodeId

# This node ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started:
    """First event: the log is open and synced to its end. `voter_sets` holds the sets of the bootstrap checkpoint (at
    BOOTSTRAP_OFFSET), the latest snapshot and the log, in that order; empty in a static quorum."""

    state: ElectionState
    voter_sets: tuple[VotersAt, ...] = ()


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The clock may have reached `deadline_ms`. Harmless if it has not."""


@dataclass(frozen=True, slots=True)
class ResignRequested:
    """This node is shutting down: resign if it is the leader."""


@dataclass(frozen=True, slots=True)
class PeerStopped:
    """The process of this node is down: its connection broke and two reconnection attempts were rejected."""

    node_id: NodeId


# The log ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogAppended:
    """Records were appended, either by the leader's own writers or by an append effect. `end_offset` is the new log
    end."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class LogSynced:
    """Everything below `end_offset` survives a power loss. The driver syncs after every append on its own. It does not
    report a sync that started before a truncation or a snapshot removed the end of the log."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class LogTruncated:
    """The log now ends at `end_offset`."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class SnapshotLoaded:
    """The snapshot is in place; the log starts and ends at its offset. `voters` is its voter set, None in a static
    quorum."""

    snapshot: OffsetAndEpoch
    voters: VoterSet | None


@dataclass(frozen=True, slots=True)
class VotersChanged:
    """A voters record was appended at `offset`, locally or by replication. Precedes its `LogAppended`."""

    offset: int
    voters: VoterSet


# Requests from other nodes --------------------------------------------------------------------------------------------
# The driver has validated the cluster id and the topic partition (metadata) of each request.


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteRequested:
    ticket: Ticket
    epoch: int
    candidate: ReplicaKey
    voter: ReplicaKey | None  # the voter key the candidate addressed; None before version 1
    last_offset: int
    last_epoch: int
    is_pre_vote: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginQuorumRequested:
    ticket: Ticket
    epoch: int
    leader_id: NodeId
    voter: ReplicaKey | None
    endpoints: Endpoints


@dataclass(frozen=True, slots=True, kw_only=True)
class EndQuorumRequested:
    ticket: Ticket
    epoch: int
    leader_id: NodeId
    successors: tuple[ReplicaKey, ...]
    endpoints: Endpoints


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequested:
    """`epoch` -1: not sent. `replica` None: not a replica (a debugging consumer)."""

    ticket: Ticket
    replica: ReplicaKey | None
    epoch: int
    offset: int
    last_epoch: int
    high_watermark: int = -1  # as known to the replica (KIP-1166); -1: not sent


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotRequested:
    ticket: Ticket
    replica: ReplicaKey | None
    epoch: int
    snapshot: OffsetAndEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class AddVoterRequested:
    ticket: Ticket
    voter: Voter
    timeout_ms: int
    ack_when_committed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveVoterRequested:
    ticket: Ticket
    voter: ReplicaKey
    timeout_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateVoterRequested:
    ticket: Ticket
    epoch: int
    voter: Voter


@dataclass(frozen=True, slots=True, kw_only=True)
class KRaftUpgradeRequested:
    """Write the voter set of a static quorum to the log, so that it can change (upgrade to kraft.version 1)."""

    ticket: Ticket
    timeout_ms: int
    is_validate_only: bool = False


# Responses from other nodes -------------------------------------------------------------------------------------------
# Each carries its request as the effect had it. `leadership` is the leader named in the response, with endpoints if the
# response has them. A top-level error also arrives as `error`.


@dataclass(frozen=True, slots=True)
class VoteResponseReceived:
    request: SendVote
    error: ErrorCode
    leadership: Leadership
    is_granted: bool


@dataclass(frozen=True, slots=True)
class QuorumEpochResponseReceived:
    """Response to BeginQuorumEpoch or EndQuorumEpoch."""

    request: SendBeginQuorum | SendEndQuorum
    error: ErrorCode
    leadership: Leadership


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponseReceived:
    """Holds at most one of `diverging`, `snapshot` and records. The driver keeps the records until the end of this
    step: it appends them on `AppendFetched` and drops them otherwise."""

    request: SendFetch
    error: ErrorCode
    leadership: Leadership
    high_watermark: int
    diverging: OffsetAndEpoch | None = None
    snapshot: OffsetAndEpoch | None = None
    has_records: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotResponseReceived:
    """The driver has written the bytes at `request.position`; `next_position` follows them."""

    request: SendFetchSnapshot
    error: ErrorCode
    leadership: Leadership
    next_position: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class UpdateVoterResponseReceived:
    request: SendUpdateVoter
    error: ErrorCode
    leadership: Leadership


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """The request has no response: the connection broke, the connect failed, or the request timed out."""

    request: Send


Event: TypeAlias = (
    Started
    | TimedOut
    | ResignRequested
    | PeerStopped
    | LogAppended
    | LogSynced
    | LogTruncated
    | SnapshotLoaded
    | VotersChanged
    | VoteRequested
    | BeginQuorumRequested
    | EndQuorumRequested
    | FetchRequested
    | FetchSnapshotRequested
    | AddVoterRequested
    | RemoveVoterRequested
    | UpdateVoterRequested
    | KRaftUpgradeRequested
    | VoteResponseReceived
    | QuorumEpochResponseReceived
    | FetchResponseReceived
    | FetchSnapshotResponseReceived
    | UpdateVoterResponseReceived
    | RequestFailed
)

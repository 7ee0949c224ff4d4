"""What the raft machine is told: requests and answers of other nodes, what became of the log, and the time."""

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
    """The first event: the log is open and synced to its end. `voter_sets` are those of the bootstrap checkpoint (at
    BOOTSTRAP_OFFSET), of the latest snapshot and of the log, in their order; none where the quorum is static."""

    state: ElectionState
    voter_sets: tuple[VotersAt, ...] = ()


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The time has reached `deadline_ms`. Harmless when it has not."""


@dataclass(frozen=True, slots=True)
class ResignRequested:
    """This node is about to stop: hand over, if it leads."""


@dataclass(frozen=True, slots=True)
class PeerVanished:
    """The process of this node is gone: its connection broke, and two attempts to connect were refused."""

    node_id: NodeId


# The log ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogAppended:
    """By the leader's own writers, or as an effect wanted it. `end_offset` is the end of the log now."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class LogSynced:
    """Everything below `end_offset` survives a power loss. The driver syncs after every append, without being asked. A
    sync that began before a truncation or a snapshot took the log's end away is not reported."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class LogTruncated:
    """It ends at `end_offset` now."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class SnapshotLoaded:
    """It is in place and the log begins and ends at its offset. `voters` are those in it; None in a static quorum."""

    snapshot: OffsetAndEpoch
    voters: VoterSet | None


@dataclass(frozen=True, slots=True)
class VotersChanged:
    """A voters record was appended at `offset`, by whomever. Before the `LogAppended` that covers it."""

    offset: int
    voters: VoterSet


# Requests of other nodes ---------------------------------------------------------------------------------------------
# The driver has checked the cluster id and that it is about the metadata partition.


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteRequested:
    ticket: Ticket
    epoch: int
    candidate: ReplicaKey
    voter: ReplicaKey | None  # whom the candidate believes to be asking; None before version 1
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
    """`epoch` -1: the replica does not say. `replica` None: it is no replica (a debugging reader)."""

    ticket: Ticket
    replica: ReplicaKey | None
    epoch: int
    offset: int
    last_epoch: int
    high_watermark: int = -1  # what the replica knows (KIP-1166); -1: it does not say


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
    is_answered_when_committed: bool = True


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
class WritingDownRequested:
    """The voters of a fixed quorum are to be written down, so that they may change (kraft.version 1)."""

    ticket: Ticket
    timeout_ms: int
    is_only_checked: bool = False


# Answers of other nodes ----------------------------------------------------------------------------------------------
# Each carries the request that it answers, as the effect was. `leadership` is what the answer says of the leader, with
# its endpoints where the answer has them. A top-level error is given as `error` too.


@dataclass(frozen=True, slots=True)
class VoteAnswered:
    request: SendVote
    error: ErrorCode
    leadership: Leadership
    is_granted: bool


@dataclass(frozen=True, slots=True)
class QuorumAnswered:
    """Begin- or EndQuorumEpoch was answered."""

    request: SendBeginQuorum | SendEndQuorum
    error: ErrorCode
    leadership: Leadership


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchAnswered:
    """At most one of `diverging`, `snapshot` and records. The driver keeps the records until the machine says
    `AppendFetched` in this step; if it does not, they are dropped."""

    request: SendFetch
    error: ErrorCode
    leadership: Leadership
    high_watermark: int
    diverging: OffsetAndEpoch | None = None
    snapshot: OffsetAndEpoch | None = None
    has_records: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotAnswered:
    """The driver has written the bytes at `request.position`; `next_position` is behind them."""

    request: SendFetchSnapshot
    error: ErrorCode
    leadership: Leadership
    next_position: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class UpdateVoterAnswered:
    request: SendUpdateVoter
    error: ErrorCode
    leadership: Leadership


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """No answer will come: the connection broke, nobody listens, or the request timed out."""

    request: Send


Event: TypeAlias = (
    Started
    | TimedOut
    | ResignRequested
    | PeerVanished
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
    | WritingDownRequested
    | VoteAnswered
    | QuorumAnswered
    | FetchAnswered
    | FetchSnapshotAnswered
    | UpdateVoterAnswered
    | RequestFailed
)

"""Output effects of the raft machine.

The driver carries out the effects of a step in order. It completes those that touch the disk (persist, append,
truncate, load) before the next step, because the machine reads the log through its `LogView` and relies on its own
effects being visible there. Requests and responses are only sent in that order; their outcome arrives as a later event.
"""

from dataclasses import dataclass
from typing import TypeAlias

from moldau.machines.raft.log_view import OffsetAndEpoch
from moldau.machines.raft.voters import Endpoints, ReplicaKey, Voter, VoterSet
from moldau.model.errors import ErrorCode
from moldau.model.ids import NO_NODE, NodeId

Ticket: TypeAlias = int
"""Correlates a waiting request with its response. Chosen by the driver."""


@dataclass(frozen=True, slots=True)
class ElectionState:
    """The contents of the `quorum-state` file. Losing it in a crash would let a node vote twice in an epoch."""

    epoch: int = 0
    leader_id: NodeId = NO_NODE
    voted: ReplicaKey | None = None


@dataclass(frozen=True, slots=True)
class Leadership:
    """The leader of an epoch as known to this node; `leader_id` is NO_NODE if unknown."""

    leader_id: NodeId
    epoch: int
    endpoints: Endpoints = ()

    @property
    def is_known(self) -> bool:
        return self.leader_id != NO_NODE


# Disk -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PersistQuorumState:
    """Write and sync the quorum state BEFORE sending any later effect of the list."""

    state: ElectionState


@dataclass(frozen=True, slots=True)
class AppendLeaderChange:
    """Append a control batch in `epoch`: LeaderChange, then KRaftVersion and Voters if `voter_set` is given. Then step
    `VotersChanged` for that set, `LogAppended`, and `LogSynced` after the sync."""

    epoch: int
    leader_id: NodeId
    voters: VoterSet
    granting_voters: tuple[NodeId, ...]
    voter_set: VoterSet | None = None


@dataclass(frozen=True, slots=True)
class AppendVoters:
    """Append a Voters control record in `epoch`, preceded by KRaftVersion if it is the first. Then step the same events
    as for AppendLeaderChange."""

    epoch: int
    voters: VoterSet
    are_first: bool = False


@dataclass(frozen=True, slots=True)
class AppendFetched:
    """Append the records of the response to this fetch after checking every batch. Then step `VotersChanged` for each
    voters record, `LogAppended`, and `LogSynced` after the sync. If the append fails (bad checksum), step
    `RequestFailed(request)` instead."""

    request: "SendFetch"


@dataclass(frozen=True, slots=True)
class TruncateLog:
    """Truncate the log to `end_offset`; then step `LogTruncated`."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class LoadSnapshot:
    """The snapshot is downloaded completely: verify it, move it into place, restart the log at its end, sync all of it.
    Then step `SnapshotLoaded`; if it is corrupt, delete it and step `RequestFailed(request)`."""

    request: "SendFetchSnapshot"


# Requests to other nodes ----------------------------------------------------------------------------------------------
# The outcome is an event that carries the effect, or `RequestFailed`. The driver adds the cluster id.


@dataclass(frozen=True, slots=True, kw_only=True)
class SendVote:
    """Request a vote or a pre-vote from a voter. After PersistQuorumState."""

    to: Voter
    epoch: int
    candidate: ReplicaKey
    last_offset: int  # log end of the candidate
    last_epoch: int
    is_pre_vote: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SendBeginQuorum:
    """Announce the leader of this epoch to a voter."""

    to: Voter
    epoch: int
    leader_id: NodeId
    endpoints: Endpoints


@dataclass(frozen=True, slots=True, kw_only=True)
class SendEndQuorum:
    """Announce to a voter that the leader resigned, with its preferred successors. No response needed."""

    to: Voter
    epoch: int
    leader_id: NodeId
    successors: tuple[ReplicaKey, ...]
    endpoints: Endpoints


@dataclass(frozen=True, slots=True, kw_only=True)
class SendFetch:
    """Fetch from the leader; if `to` is NO_NODE, from the bootstrap servers in turn, to find the leader. Acknowledges
    everything below `offset` as synced. The machine only accepts the response to the fetch with the latest `number`;
    the driver may cancel older ones."""

    to: NodeId
    endpoints: Endpoints  # empty: the driver only knows the bootstrap servers or the static voters
    epoch: int
    offset: int
    last_epoch: int
    high_watermark: int
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendFetchSnapshot:
    """Fetch the bytes of a snapshot from `position` on and store them beside the log."""

    to: NodeId
    endpoints: Endpoints
    epoch: int
    snapshot: OffsetAndEpoch
    position: int
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendUpdateVoter:
    """Send the leader this voter's current endpoints."""

    to: NodeId
    endpoints: Endpoints
    epoch: int
    voter: Voter


Send: TypeAlias = SendVote | SendBeginQuorum | SendEndQuorum | SendFetch | SendFetchSnapshot | SendUpdateVoter


# Responses ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RespondToVote:
    """Respond to Vote. After PersistQuorumState: a granted vote must survive a crash."""

    ticket: Ticket
    error: ErrorCode
    leadership: Leadership
    is_granted: bool = False


@dataclass(frozen=True, slots=True)
class RespondToQuorumEpoch:
    """Respond to BeginQuorumEpoch or EndQuorumEpoch."""

    ticket: Ticket
    error: ErrorCode
    leadership: Leadership


@dataclass(frozen=True, slots=True, kw_only=True)
class RespondToFetch:
    """Respond to Fetch without records: an error, the end of the diverging epoch, or a snapshot id."""

    ticket: Ticket
    error: ErrorCode
    leadership: Leadership
    high_watermark: int
    diverging: OffsetAndEpoch | None = None
    snapshot: OffsetAndEpoch | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeFetch:
    """Respond with records from `offset` to the log end (to voters and observers alike), the high watermark and the
    leader, once the log end is above `offset` or the high watermark is above `high_watermark`, at the latest after
    the replica's max wait. Cancelled by `FailWaitingFetches`."""

    ticket: Ticket
    offset: int
    high_watermark: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RespondToFetchSnapshot:
    """Respond to FetchSnapshot with an error and no bytes."""

    ticket: Ticket
    error: ErrorCode
    leadership: Leadership


@dataclass(frozen=True, slots=True)
class ServeSnapshot:
    """Respond with bytes of this snapshot; the driver detects POSITION_OUT_OF_RANGE and SNAPSHOT_NOT_FOUND."""

    ticket: Ticket
    snapshot: OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class RespondToVoterChange:
    """Respond to AddRaftVoter, RemoveRaftVoter or UpdateRaftVoter. `message` is empty without an error."""

    ticket: Ticket
    error: ErrorCode
    message: str
    leadership: Leadership


# Local node -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BecomeLeader:
    """This node leads `epoch` and may append in it. The epoch is only certain to last once the high watermark is above
    `start_offset`, the offset of its LeaderChange. After AppendLeaderChange."""

    epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class BecomeFollower:
    """This node is not the leader: another node is, or none is known. Also sent when only the endpoints changed."""

    leadership: Leadership


@dataclass(frozen=True, slots=True)
class AdvanceHighWatermark:
    """Everything below `offset` is committed. Never decreases, and never exceeds the local log end."""

    offset: int


@dataclass(frozen=True, slots=True)
class FailPendingAppends:
    """Leadership is lost: the outcome of pending commits is unknown, and appends must stop. Always the first effect of
    its step, so that no append slips in while the quorum state is written."""

    leadership: Leadership


@dataclass(frozen=True, slots=True)
class FailWaitingFetches:
    """Leadership is lost: fail every fetch waiting in `ServeFetch` with NOT_LEADER_OR_FOLLOWER, or with
    FENCED_LEADER_EPOCH if the epoch increased."""

    error: ErrorCode
    leadership: Leadership


Effect: TypeAlias = (
    PersistQuorumState
    | AppendLeaderChange
    | AppendVoters
    | AppendFetched
    | TruncateLog
    | LoadSnapshot
    | Send
    | RespondToVote
    | RespondToQuorumEpoch
    | RespondToFetch
    | ServeFetch
    | RespondToFetchSnapshot
    | ServeSnapshot
    | RespondToVoterChange
    | BecomeLeader
    | BecomeFollower
    | AdvanceHighWatermark
    | FailPendingAppends
    | FailWaitingFetches
)

"""What the raft machine wants done.

The driver carries out the effects of a step in their order, and all that touch the disk (persist, append, truncate,
load) before it takes the next step: the machine reads the log through its `LogView` and must find it as it wanted it.
Sends and answers only leave in that order; nobody waits for what they bring.
"""

from dataclasses import dataclass
from typing import TypeAlias

from moldau.machines.raft.log_view import OffsetAndEpoch
from moldau.machines.raft.voters import Endpoints, ReplicaKey, Voter, VoterSet
from moldau.model.errors import ErrorCode
from moldau.model.ids import NO_NODE, NodeId

Ticket: TypeAlias = int
"""Names a waiting request between an event and its answer. The driver chooses it."""


@dataclass(frozen=True, slots=True)
class ElectionState:
    """What must not be forgotten in a crash, or a node could vote twice in one epoch (the `quorum-state` file)."""

    epoch: int = 0
    leader_id: NodeId = NO_NODE
    voted: ReplicaKey | None = None


@dataclass(frozen=True, slots=True)
class Leadership:
    """Who leads in which epoch, as far as this node knows; `leader_id` is NO_NODE when it does not."""

    leader_id: NodeId
    epoch: int
    endpoints: Endpoints = ()

    @property
    def is_known(self) -> bool:
        return self.leader_id != NO_NODE


# The disk ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PersistQuorumState:
    """Write and sync the quorum state BEFORE any later effect of the list leaves."""

    state: ElectionState


@dataclass(frozen=True, slots=True)
class AppendLeaderChange:
    """Append one control batch in `epoch`: LeaderChange, and if `voter_set` is given KRaftVersion and Voters after it.
    Then step `VotersChanged` for the set if there is one, `LogAppended`, and `LogSynced` once it is synced."""

    epoch: int
    leader_id: NodeId
    voters: VoterSet
    granting_voters: tuple[NodeId, ...]
    voter_set: VoterSet | None = None


@dataclass(frozen=True, slots=True)
class AppendVoters:
    """Append a Voters control record in `epoch`, if they are the first with a KRaftVersion before it. Then as for a
    leader change."""

    epoch: int
    voters: VoterSet
    are_first: bool = False


@dataclass(frozen=True, slots=True)
class AppendFetched:
    """Append the records of the answer to this fetch, which the driver holds: check every batch first. Then step
    `VotersChanged` for each voters record in them, `LogAppended`, and `LogSynced` once they are synced. If they cannot
    be appended (a checksum), step `RequestFailed(request)` instead."""

    request: "SendFetch"


@dataclass(frozen=True, slots=True)
class TruncateLog:
    """Cut the log so that it ends at `end_offset`; then step `LogTruncated`."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class LoadSnapshot:
    """The snapshot is downloaded to its last byte: check it, put it in place, begin the log anew at its end, all of it
    synced. Then step `SnapshotLoaded`; if it is broken, drop it and step `RequestFailed(request)`."""

    request: "SendFetchSnapshot"


# To other nodes ----------------------------------------------------------------------------------------------------
# Each is answered by an event that carries it, or by `RequestFailed`. The driver adds the cluster id.


@dataclass(frozen=True, slots=True, kw_only=True)
class SendVote:
    """Ask a voter for its vote, or (pre-vote) whether it would give it. After PersistQuorumState."""

    to: Voter
    epoch: int
    candidate: ReplicaKey
    last_offset: int  # the end of the candidate's log
    last_epoch: int
    is_pre_vote: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SendBeginQuorum:
    """Tell a voter who leads this epoch."""

    to: Voter
    epoch: int
    leader_id: NodeId
    endpoints: Endpoints


@dataclass(frozen=True, slots=True, kw_only=True)
class SendEndQuorum:
    """Tell a voter that the leader of this epoch leads no more, and who should follow it. No answer is needed."""

    to: Voter
    epoch: int
    leader_id: NodeId
    successors: tuple[ReplicaKey, ...]
    endpoints: Endpoints


@dataclass(frozen=True, slots=True, kw_only=True)
class SendFetch:
    """Fetch from the leader; where `to` is NO_NODE, from any of the bootstrap servers, another one each time, to hear
    who leads. Everything below `offset` is synced here: that is what the leader counts. The machine believes only the
    answer to the fetch with the latest `number`; the driver may give up an older one."""

    to: NodeId
    endpoints: Endpoints  # none: the driver knows only the bootstrap servers, or fixed voters
    epoch: int
    offset: int
    last_epoch: int
    high_watermark: int
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendFetchSnapshot:
    """Fetch the bytes of a snapshot from `position` on, and keep them beside the log."""

    to: NodeId
    endpoints: Endpoints
    epoch: int
    snapshot: OffsetAndEpoch
    position: int
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendUpdateVoter:
    """Tell the leader where this voter is reached now."""

    to: NodeId
    endpoints: Endpoints
    epoch: int
    voter: Voter


Send: TypeAlias = SendVote | SendBeginQuorum | SendEndQuorum | SendFetch | SendFetchSnapshot | SendUpdateVoter


# Answers ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AnswerVote:
    """After PersistQuorumState: a vote that is told is a vote that is kept."""

    ticket: Ticket
    error: ErrorCode
    leadership: Leadership
    is_granted: bool = False


@dataclass(frozen=True, slots=True)
class AnswerQuorum:
    """To BeginQuorumEpoch and EndQuorumEpoch."""

    ticket: Ticket
    error: ErrorCode
    leadership: Leadership


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFetch:
    """Without records: an error, or a place from which the replica differs, or a snapshot that it needs."""

    ticket: Ticket
    error: ErrorCode
    leadership: Leadership
    high_watermark: int
    diverging: OffsetAndEpoch | None = None
    snapshot: OffsetAndEpoch | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeFetch:
    """Answer with records from `offset` to the end of the log (to replicas and observers alike), the machine's high
    watermark and leadership, as soon as the log ends above `offset` or the machine's high watermark is above
    `high_watermark`, or else when the replica's patience ends. Given up by `FailWaitingFetches`."""

    ticket: Ticket
    offset: int
    high_watermark: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFetchSnapshot:
    """An error and no bytes."""

    ticket: Ticket
    error: ErrorCode
    leadership: Leadership


@dataclass(frozen=True, slots=True)
class ServeSnapshot:
    """Answer with bytes of this snapshot; POSITION_OUT_OF_RANGE and SNAPSHOT_NOT_FOUND are the driver's to find."""

    ticket: Ticket
    snapshot: OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class AnswerVoterChange:
    """To AddRaftVoter, RemoveRaftVoter and UpdateRaftVoter. `message` is for people, empty without an error."""

    ticket: Ticket
    error: ErrorCode
    message: str
    leadership: Leadership


# To the rest of this node --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BecomeLeader:
    """This node leads `epoch` now and may append in it. Its epoch is only certain to last once the high watermark is
    above `start_offset`, where the leader change stands. After AppendLeaderChange."""

    epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class BecomeFollower:
    """This node does not lead: somebody else does, or nobody that it knows of. Also when only the address changed."""

    leadership: Leadership


@dataclass(frozen=True, slots=True)
class AdvanceHighWatermark:
    """Everything below `offset` is committed. It never goes back, and never lies above the end of the local log."""

    offset: int


@dataclass(frozen=True, slots=True)
class FailPendingAppends:
    """Leadership is lost: whoever waits for a commit does not know whether it will come, and nobody may append any
    more. The first effect of its step, so that no write slips in while the quorum state goes to disk."""

    leadership: Leadership


@dataclass(frozen=True, slots=True)
class FailWaitingFetches:
    """Leadership is lost: every fetch that `ServeFetch` left waiting is answered with NOT_LEADER_OR_FOLLOWER, or with
    FENCED_LEADER_EPOCH when the epoch has grown."""

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
    | AnswerVote
    | AnswerQuorum
    | AnswerFetch
    | ServeFetch
    | AnswerFetchSnapshot
    | ServeSnapshot
    | AnswerVoterChange
    | BecomeLeader
    | BecomeFollower
    | AdvanceHighWatermark
    | FailPendingAppends
    | FailWaitingFetches
)

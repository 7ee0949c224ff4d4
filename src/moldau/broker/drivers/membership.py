"""Who this node is to the quorum, and whom it takes for the voters before the log says so."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from moldau.broker.configs.quorum_settings import MemberSettings
from moldau.broker.drivers.metadata_log import MetadataLog
from moldau.broker.drivers.quorum_state import BrokenQuorumState, QuorumState, read_quorum_state
from moldau.machines.raft import (
    BOOTSTRAP_OFFSET,
    NO_DIRECTORY,
    ElectionState,
    QuorumSettings,
    ReplicaKey,
    Voter,
    VotersAt,
    VoterSet,
)
from moldau.model.errors import InvalidConfig
from moldau.model.ids import NO_NODE, Address, NodeId
from moldau.model.ports import Disk

log = logging.getLogger(__name__)

CONTROLLER_LISTENER: Final = "CONTROLLER"


@dataclass(frozen=True, slots=True)
class Membership:
    """What the settings and the data folder say. A node that is alone may make itself the only voter."""

    me: Voter
    cluster_id: str
    static_voters: VoterSet | None = None
    bootstrap_servers: tuple[Address, ...] = ()
    is_standalone: bool = True
    settings: QuorumSettings = field(default_factory=QuorumSettings)
    member: MemberSettings = field(default_factory=MemberSettings)


def fixed_voters(voters: Mapping[NodeId, Address], listener: str = CONTROLLER_LISTENER) -> VoterSet | None:
    """The voters that `controller.quorum.voters` names; None where it names none."""
    if not voters:
        return None
    return VoterSet.of(Voter(node_id, endpoints=((listener, address),)) for node_id, address in voters.items())


@dataclass(frozen=True, slots=True)
class Remembered:
    """What this node knows of elections; `is_to_join` if it was made for a quorum that exists already."""

    state: ElectionState
    is_to_join: bool = False


def remembered(
    disk: Disk, metadata_log: MetadataLog, membership: Membership, voter_sets: Sequence[VotersAt]
) -> Remembered:
    """What is in the `quorum-state` file. A vote that others may count on must not be forgotten."""
    try:
        kept = read_quorum_state(disk, metadata_log.folder)
    except BrokenQuorumState as error:
        voters = voter_sets[-1].voters.ids if voter_sets else ()
        if not membership.is_standalone or any(each != membership.me.node_id for each in voters):
            raise
        log.warning("what this node voted is lost, and as the only voter it can do without: %s", error)
        kept = None
    is_to_join = kept == QuorumState() and metadata_log.end_offset == 0
    kept = kept or QuorumState()
    if metadata_log.last_epoch > kept.leader_epoch:
        return Remembered(ElectionState(metadata_log.last_epoch))
    voted = ReplicaKey(NodeId(kept.voted_id), kept.voted_directory_id) if kept.voted_id != NO_NODE else None
    return Remembered(ElectionState(kept.leader_epoch, NodeId(kept.leader_id), voted), is_to_join)


def first_voters(
    metadata_log: MetadataLog, membership: Membership, voter_sets: Sequence[VotersAt], *, is_to_join: bool
) -> tuple[Sequence[VotersAt], VoterSet | None]:
    """The voter sets and the fixed voters to start with; a node that is alone in a new folder is its first voter."""
    me = membership.me
    if not membership.is_standalone:
        if not voter_sets and membership.static_voters is None and me.endpoints:
            log.warning(
                "this controller knows no voters yet and looks for a quorum that it may join; of a new cluster, the "
                "first controller is formatted with --standalone, or several with --initial-controllers"
            )
        return voter_sets, membership.static_voters
    if voter_sets:
        if not voter_sets[-1].voters.includes(me.key) and len(voter_sets[-1].voters) <= 1:
            raise InvalidConfig(
                f"{metadata_log.folder} belongs to the quorum of {_names(voter_sets[-1].voters)}, and this node is "
                f"{me.key}: it is no voter, and no setting says where the others are."
            )
        return voter_sets, None
    if is_to_join:
        raise InvalidConfig(
            f"{metadata_log.folder} was formatted with --no-initial-controllers: this controller joins a quorum that "
            "exists, and controller.quorum.bootstrap.servers has to say where."
        )
    if metadata_log.end_offset > 0:  # a fixed quorum of one, which Kafka kept
        return (), VoterSet.of([Voter(me.node_id, NO_DIRECTORY, me.endpoints)])
    return (VotersAt(BOOTSTRAP_OFFSET, VoterSet.of([me])),), None


def _names(voters: VoterSet) -> str:
    return ", ".join(str(each.key) for each in voters)

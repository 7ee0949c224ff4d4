"""This node's identity in the quorum, and the voters to start with until the log names them."""

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
    """The settings and the contents of the log directory. A node without peers may make itself the only voter."""

    me: Voter
    cluster_id: str
    static_voters: VoterSet | None = None
    bootstrap_servers: tuple[Address, ...] = ()
    is_standalone: bool = True
    settings: QuorumSettings = field(default_factory=QuorumSettings)
    member: MemberSettings = field(default_factory=MemberSettings)


def fixed_voters(voters: Mapping[NodeId, Address], listener: str = CONTROLLER_LISTENER) -> VoterSet | None:
    """The voters in `controller.quorum.voters`; None if it is not set."""
    if not voters:
        return None
    return VoterSet.of(Voter(node_id, endpoints=((listener, address),)) for node_id, address in voters.items())


@dataclass(frozen=True, slots=True)
class RestoredState:
    """The persisted election state; `is_to_join` if the node was formatted to join an existing quorum."""

    state: ElectionState
    is_to_join: bool = False


def read_election_state(
    disk: Disk, metadata_log: MetadataLog, membership: Membership, voter_sets: Sequence[VotersAt]
) -> RestoredState:
    """Read the `quorum-state` file. A vote that other nodes may count on must never be forgotten."""
    try:
        stored = read_quorum_state(disk, metadata_log.folder)
    except BrokenQuorumState as error:
        voters = voter_sets[-1].voters.ids if voter_sets else ()
        if not membership.is_standalone or any(each != membership.me.node_id for each in voters):
            raise
        log.warning("Election state lost; continuing because this node is the only voter: %s", error)
        stored = None
    is_to_join = stored == QuorumState() and metadata_log.end_offset == 0
    stored = stored or QuorumState()
    if metadata_log.last_epoch > stored.leader_epoch:
        return RestoredState(ElectionState(metadata_log.last_epoch))
    voted = ReplicaKey(NodeId(stored.voted_id), stored.voted_directory_id) if stored.voted_id != NO_NODE else None
    return RestoredState(ElectionState(stored.leader_epoch, NodeId(stored.leader_id), voted), is_to_join)


def first_voters(
    metadata_log: MetadataLog, membership: Membership, voter_sets: Sequence[VotersAt], *, is_to_join: bool
) -> tuple[Sequence[VotersAt], VoterSet | None]:
    """The voter sets and static voters to start with; a single node with a new log directory is its first voter."""
    me = membership.me
    if not membership.is_standalone:
        if not voter_sets and membership.static_voters is None and me.endpoints:
            log.warning(
                "No voters known yet; looking for a quorum to join. For a new cluster, format the first controller "
                "with --standalone, or several controllers with --initial-controllers"
            )
        return voter_sets, membership.static_voters
    if voter_sets:
        if not voter_sets[-1].voters.includes(me.key) and len(voter_sets[-1].voters) <= 1:
            raise InvalidConfig(
                f"{metadata_log.folder} belongs to the quorum of {_names(voter_sets[-1].voters)}, but this node is "
                f"{me.key}, which is not a voter. Set controller.quorum.bootstrap.servers."
            )
        return voter_sets, None
    if is_to_join:
        raise InvalidConfig(
            f"{metadata_log.folder} was formatted with --no-initial-controllers to join an existing quorum. "
            "Set controller.quorum.bootstrap.servers."
        )
    if metadata_log.end_offset > 0:  # a static quorum of one, as Kafka writes it
        return (), VoterSet.of([Voter(me.node_id, NO_DIRECTORY, me.endpoints)])
    return (VotersAt(BOOTSTRAP_OFFSET, VoterSet.of([me])),), None


def _names(voters: VoterSet) -> str:
    return ", ".join(str(each.key) for each in voters)

"""UpdateRaftVoter: a voter reports its current endpoints to the leader."""

from typing import Final

from moldau.broker.handlers.contexts import QuorumContext
from moldau.broker.requests.quorum_requests import check_member, endpoints_in
from moldau.machines.raft import Leadership, RespondToVoterChange, Ticket, UpdateVoterRequested, Voter
from moldau.model.ids import Address, NodeId
from moldau.wire.messages import UpdateRaftVoterRequest, UpdateRaftVoterResponse

NO_ADDRESS: Final = Address("", -1)


async def handle(request: UpdateRaftVoterRequest, context: QuorumContext) -> UpdateRaftVoterResponse:
    """Respond at once: the voter retries if the change is lost."""
    check_member(request.cluster_id, context)
    supported = request.k_raft_version_feature
    voter = Voter(
        NodeId(request.voter_id),
        request.voter_directory_id,
        endpoints_in(request.listeners),
        supported.min_supported_version,
        supported.max_supported_version,
    )

    def event(ticket: Ticket) -> UpdateVoterRequested:
        return UpdateVoterRequested(ticket=ticket, epoch=request.current_leader_epoch, voter=voter)

    response: RespondToVoterChange = await context.broker.metadata.quorum.ask(event)
    return UpdateRaftVoterResponse(error_code=int(response.error), current_leader=_leader(response.leadership))


def _leader(leadership: Leadership) -> UpdateRaftVoterResponse.CurrentLeader:
    address = leadership.endpoints[0][1] if leadership.endpoints else NO_ADDRESS
    return UpdateRaftVoterResponse.CurrentLeader(
        leader_id=leadership.leader_id, leader_epoch=leadership.epoch, host=address.host, port=address.port
    )

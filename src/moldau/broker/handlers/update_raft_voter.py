"""UpdateRaftVoter: a voter tells the leader where it is reached now."""

from typing import Any, Final

from moldau.broker.requests.context import RequestContext
from moldau.broker.requests.quorum_requests import check_member, endpoints_in
from moldau.machines.raft import Leadership, RespondToVoterChange, Ticket, UpdateVoterRequested, Voter
from moldau.model.ids import Address, NodeId
from moldau.wire.messages import UpdateRaftVoterRequest, UpdateRaftVoterResponse

NOWHERE: Final = Address("", -1)


async def handle(request: UpdateRaftVoterRequest, context: RequestContext) -> UpdateRaftVoterResponse:
    """Answered at once: the voter asks again, should the change be lost."""
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

    answer: RespondToVoterChange = await context.broker.metadata.quorum.ask(event)
    return UpdateRaftVoterResponse(error_code=int(answer.error), current_leader=_leader(answer.leadership))


def _leader(leadership: Leadership) -> Any:
    address = leadership.endpoints[0][1] if leadership.endpoints else NOWHERE
    return UpdateRaftVoterResponse.CurrentLeader(
        leader_id=leadership.leader_id, leader_epoch=leadership.epoch, host=address.host, port=address.port
    )

"""AddRaftVoter: turn a controller that has caught up with the metadata log into a voter."""

from moldau.broker.access import CLUSTER, Operation
from moldau.broker.handlers.contexts import QuorumContext
from moldau.broker.requests.quorum_requests import check_cluster, endpoints_in
from moldau.machines.raft import AddVoterRequested, RespondToVoterChange, Ticket, Voter
from moldau.model.ids import NodeId
from moldau.wire.messages import AddRaftVoterRequest, AddRaftVoterResponse


async def handle(request: AddRaftVoterRequest, context: QuorumContext) -> AddRaftVoterResponse:
    """Add one voter at a time; respond once the new voter set has committed the change, or with an error."""
    context.authorize(Operation.ALTER, CLUSTER)
    check_cluster(request.cluster_id, context)
    voter = Voter(NodeId(request.voter_id), request.voter_directory_id, endpoints_in(request.listeners))

    def event(ticket: Ticket) -> AddVoterRequested:
        return AddVoterRequested(
            ticket=ticket,
            voter=voter,
            timeout_ms=request.timeout_ms,
            ack_when_committed=request.ack_when_committed,
        )

    response: RespondToVoterChange = await context.broker.metadata.quorum.ask(event)
    return AddRaftVoterResponse(error_code=int(response.error), error_message=response.message or None)

"""AddRaftVoter: a controller that has caught up with the metadata log becomes a voter."""

from moldau.broker.access import CLUSTER, Operation
from moldau.broker.requests.context import RequestContext
from moldau.broker.requests.quorum_requests import check_cluster, endpoints_in
from moldau.machines.raft import AddVoterRequested, RespondToVoterChange, Ticket, Voter
from moldau.model.ids import NodeId
from moldau.wire.messages import AddRaftVoterRequest, AddRaftVoterResponse


async def handle(request: AddRaftVoterRequest, context: RequestContext) -> AddRaftVoterResponse:
    """One at a time; answered when the new voters have committed it, or when it is refused."""
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

    answer: RespondToVoterChange = await context.broker.metadata.quorum.ask(event)
    return AddRaftVoterResponse(error_code=int(answer.error), error_message=answer.message or None)

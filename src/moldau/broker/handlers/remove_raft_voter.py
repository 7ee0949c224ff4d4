"""RemoveRaftVoter: remove a controller from the voters."""

from typing import Final

from moldau.broker.access import CLUSTER, Operation
from moldau.broker.handlers.contexts import QuorumContext
from moldau.broker.requests.quorum_requests import check_cluster
from moldau.machines.raft import RemoveVoterRequested, ReplicaKey, RespondToVoterChange, Ticket
from moldau.model.ids import NodeId
from moldau.model.units import SECOND_MS
from moldau.wire.messages import RemoveRaftVoterRequest, RemoveRaftVoterResponse

TIMEOUT_MS: Final = 30 * SECOND_MS  # the request has no timeout


async def handle(request: RemoveRaftVoterRequest, context: QuorumContext) -> RemoveRaftVoterResponse:
    """Respond once the remaining voters have committed the change. A leader that removes itself then resigns."""
    context.authorize(Operation.ALTER, CLUSTER)
    check_cluster(request.cluster_id, context)
    voter = ReplicaKey(NodeId(request.voter_id), request.voter_directory_id)

    def event(ticket: Ticket) -> RemoveVoterRequested:
        return RemoveVoterRequested(ticket=ticket, voter=voter, timeout_ms=TIMEOUT_MS)

    response: RespondToVoterChange = await context.broker.metadata.quorum.ask(event)
    return RemoveRaftVoterResponse(error_code=int(response.error), error_message=response.message or None)

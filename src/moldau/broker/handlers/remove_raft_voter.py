"""RemoveRaftVoter: a controller votes no more."""

from typing import Final

from moldau.broker.access import CLUSTER, Operation
from moldau.broker.requests.context import RequestContext
from moldau.broker.requests.quorum_requests import check_cluster
from moldau.machines.raft import RemoveVoterRequested, ReplicaKey, RespondToVoterChange, Ticket
from moldau.model.ids import NodeId
from moldau.model.units import SECOND_MS
from moldau.wire.messages import RemoveRaftVoterRequest, RemoveRaftVoterResponse

TIMEOUT_MS: Final = 30 * SECOND_MS  # the request does not say


async def handle(request: RemoveRaftVoterRequest, context: RequestContext) -> RemoveRaftVoterResponse:
    """Answered when the voters that stay have committed it. A leader that removes itself then steps down."""
    context.authorize(Operation.ALTER, CLUSTER)
    check_cluster(request.cluster_id, context)
    voter = ReplicaKey(NodeId(request.voter_id), request.voter_directory_id)

    def event(ticket: Ticket) -> RemoveVoterRequested:
        return RemoveVoterRequested(ticket=ticket, voter=voter, timeout_ms=TIMEOUT_MS)

    answer: RespondToVoterChange = await context.broker.metadata.quorum.ask(event)
    return RemoveRaftVoterResponse(error_code=int(answer.error), error_message=answer.message or None)

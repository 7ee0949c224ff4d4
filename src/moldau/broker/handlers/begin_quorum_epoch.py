"""BeginQuorumEpoch: somebody leads the quorum now, and says so."""

from typing import Final

from moldau.broker.drivers.quorum_messages import PARTITION, TOPIC
from moldau.broker.requests.context import RequestContext
from moldau.broker.requests.quorum_requests import check_member, endpoints_in, only_partition, where_leader_is
from moldau.machines.raft import BeginQuorumRequested, ReplicaKey, RespondToQuorumEpoch, Ticket
from moldau.model.ids import NodeId
from moldau.wire.messages import BeginQuorumEpochRequest, BeginQuorumEpochResponse

VOTER_NAMED_FROM: Final = 1


async def handle(request: BeginQuorumEpochRequest, context: RequestContext) -> BeginQuorumEpochResponse:
    """Who this node follows is on disk before it is told."""
    check_member(request.cluster_id, context)
    asked = only_partition(request.topics)
    is_named = context.api_version >= VOTER_NAMED_FROM and request.voter_id >= 0
    voter = ReplicaKey(NodeId(request.voter_id), asked.voter_directory_id) if is_named else None

    def event(ticket: Ticket) -> BeginQuorumRequested:
        return BeginQuorumRequested(
            ticket=ticket,
            epoch=asked.leader_epoch,
            leader_id=NodeId(asked.leader_id),
            voter=voter,
            endpoints=endpoints_in(request.leader_endpoints),
        )

    answer: RespondToQuorumEpoch = await context.broker.metadata.quorum.ask(event)
    partition = BeginQuorumEpochResponse.PartitionData(
        partition_index=PARTITION,
        error_code=int(answer.error),
        leader_id=answer.leadership.leader_id,
        leader_epoch=answer.leadership.epoch,
    )
    return BeginQuorumEpochResponse(
        topics=[BeginQuorumEpochResponse.TopicData(topic_name=TOPIC, partitions=[partition])],
        node_endpoints=where_leader_is(BeginQuorumEpochResponse.NodeEndpoint, answer.leadership),
    )

"""BeginQuorumEpoch: the new leader of the metadata quorum announces itself."""

from moldau.broker.handlers.contexts import QuorumContext
from moldau.broker.requests.quorum_requests import check_member, endpoints_in, leader_endpoints, only_partition
from moldau.machines.raft import BeginQuorumRequested, ReplicaKey, RespondToQuorumEpoch, Ticket
from moldau.model.ids import NodeId
from moldau.model.protocol import METADATA_PARTITION, METADATA_TOPIC, VOTER_KEY_FROM
from moldau.wire.messages import BeginQuorumEpochRequest, BeginQuorumEpochResponse


async def handle(request: BeginQuorumEpochRequest, context: QuorumContext) -> BeginQuorumEpochResponse:
    """Persist the leader that this node follows before responding."""
    check_member(request.cluster_id, context)
    requested = only_partition(request.topics)
    is_named = context.api_version >= VOTER_KEY_FROM and request.voter_id >= 0
    voter = ReplicaKey(NodeId(request.voter_id), requested.voter_directory_id) if is_named else None

    def event(ticket: Ticket) -> BeginQuorumRequested:
        return BeginQuorumRequested(
            ticket=ticket,
            epoch=requested.leader_epoch,
            leader_id=NodeId(requested.leader_id),
            voter=voter,
            endpoints=endpoints_in(request.leader_endpoints),
        )

    response: RespondToQuorumEpoch = await context.broker.metadata.quorum.ask(event)
    partition = BeginQuorumEpochResponse.PartitionData(
        partition_index=METADATA_PARTITION,
        error_code=int(response.error),
        leader_id=response.leadership.leader_id,
        leader_epoch=response.leadership.epoch,
    )
    return BeginQuorumEpochResponse(
        topics=[BeginQuorumEpochResponse.TopicData(topic_name=METADATA_TOPIC, partitions=[partition])],
        node_endpoints=leader_endpoints(BeginQuorumEpochResponse.NodeEndpoint, response.leadership),
    )

"""EndQuorumEpoch: the leader of the metadata quorum resigns and names its preferred successors."""

from typing import Final

from moldau.broker.handlers.contexts import QuorumContext
from moldau.broker.requests.quorum_requests import check_member, endpoints_in, leader_endpoints, only_partition
from moldau.machines.raft import EndQuorumRequested, ReplicaKey, RespondToQuorumEpoch, Ticket
from moldau.model.ids import NodeId
from moldau.model.protocol import METADATA_PARTITION, METADATA_TOPIC
from moldau.wire.messages import EndQuorumEpochRequest, EndQuorumEpochResponse

CANDIDATES_FROM: Final = 1  # older versions name successors without their directory ids


async def handle(request: EndQuorumEpochRequest, context: QuorumContext) -> EndQuorumEpochResponse:
    """The first successor starts an election at once."""
    check_member(request.cluster_id, context)
    requested = only_partition(request.topics)
    if context.api_version >= CANDIDATES_FROM:
        candidates = requested.preferred_candidates
        successors = [ReplicaKey(NodeId(each.candidate_id), each.candidate_directory_id) for each in candidates]
    else:
        successors = [ReplicaKey(NodeId(each)) for each in requested.preferred_successors]

    def event(ticket: Ticket) -> EndQuorumRequested:
        return EndQuorumRequested(
            ticket=ticket,
            epoch=requested.leader_epoch,
            leader_id=NodeId(requested.leader_id),
            successors=tuple(successors),
            endpoints=endpoints_in(request.leader_endpoints),
        )

    response: RespondToQuorumEpoch = await context.broker.metadata.quorum.ask(event)
    partition = EndQuorumEpochResponse.PartitionData(
        partition_index=METADATA_PARTITION,
        error_code=int(response.error),
        leader_id=response.leadership.leader_id,
        leader_epoch=response.leadership.epoch,
    )
    return EndQuorumEpochResponse(
        topics=[EndQuorumEpochResponse.TopicData(topic_name=METADATA_TOPIC, partitions=[partition])],
        node_endpoints=leader_endpoints(EndQuorumEpochResponse.NodeEndpoint, response.leadership),
    )

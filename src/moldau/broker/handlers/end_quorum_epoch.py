"""EndQuorumEpoch: the leader of the quorum steps down, and says who should follow it."""

from typing import Final

from moldau.broker.drivers.quorum_messages import PARTITION, TOPIC
from moldau.broker.requests.context import RequestContext
from moldau.broker.requests.quorum_requests import check_member, endpoints_in, only_partition, where_leader_is
from moldau.machines.raft import EndQuorumRequested, ReplicaKey, RespondToQuorumEpoch, Ticket
from moldau.model.ids import NodeId
from moldau.wire.messages import EndQuorumEpochRequest, EndQuorumEpochResponse

CANDIDATES_FROM: Final = 1  # before, successors were named without their directories


async def handle(request: EndQuorumEpochRequest, context: RequestContext) -> EndQuorumEpochResponse:
    """The first successor stands for election at once."""
    check_member(request.cluster_id, context)
    asked = only_partition(request.topics)
    if context.api_version >= CANDIDATES_FROM:
        candidates = asked.preferred_candidates
        successors = [ReplicaKey(NodeId(each.candidate_id), each.candidate_directory_id) for each in candidates]
    else:
        successors = [ReplicaKey(NodeId(each)) for each in asked.preferred_successors]

    def event(ticket: Ticket) -> EndQuorumRequested:
        return EndQuorumRequested(
            ticket=ticket,
            epoch=asked.leader_epoch,
            leader_id=NodeId(asked.leader_id),
            successors=tuple(successors),
            endpoints=endpoints_in(request.leader_endpoints),
        )

    answer: RespondToQuorumEpoch = await context.broker.metadata.quorum.ask(event)
    partition = EndQuorumEpochResponse.PartitionData(
        partition_index=PARTITION,
        error_code=int(answer.error),
        leader_id=answer.leadership.leader_id,
        leader_epoch=answer.leadership.epoch,
    )
    return EndQuorumEpochResponse(
        topics=[EndQuorumEpochResponse.TopicData(topic_name=TOPIC, partitions=[partition])],
        node_endpoints=where_leader_is(EndQuorumEpochResponse.NodeEndpoint, answer.leadership),
    )

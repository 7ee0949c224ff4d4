"""Vote: a candidate requests this node's vote or pre-vote."""

from moldau.broker.handlers.contexts import QuorumContext
from moldau.broker.requests.quorum_requests import check_member, leader_endpoints, only_partition
from moldau.machines.raft import ReplicaKey, RespondToVote, Ticket, VoteRequested
from moldau.model.ids import NodeId
from moldau.model.protocol import METADATA_PARTITION, METADATA_TOPIC, VOTER_KEY_FROM
from moldau.wire.messages import VoteRequest, VoteResponse


async def handle(request: VoteRequest, context: QuorumContext) -> VoteResponse:
    """Persist the vote before responding."""
    check_member(request.cluster_id, context)
    requested = only_partition(request.topics)
    is_named = context.api_version >= VOTER_KEY_FROM and request.voter_id >= 0
    voter = ReplicaKey(NodeId(request.voter_id), requested.voter_directory_id) if is_named else None

    def event(ticket: Ticket) -> VoteRequested:
        return VoteRequested(
            ticket=ticket,
            epoch=requested.replica_epoch,
            candidate=ReplicaKey(NodeId(requested.replica_id), requested.replica_directory_id),
            voter=voter,
            last_offset=requested.last_offset,
            last_epoch=requested.last_offset_epoch,
            is_pre_vote=requested.pre_vote,
        )

    response: RespondToVote = await context.broker.metadata.quorum.ask(event)
    partition = VoteResponse.PartitionData(
        partition_index=METADATA_PARTITION,
        error_code=int(response.error),
        leader_id=response.leadership.leader_id,
        leader_epoch=response.leadership.epoch,
        vote_granted=response.is_granted,
    )
    return VoteResponse(
        topics=[VoteResponse.TopicData(topic_name=METADATA_TOPIC, partitions=[partition])],
        node_endpoints=leader_endpoints(VoteResponse.NodeEndpoint, response.leadership),
    )

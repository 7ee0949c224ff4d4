"""Vote: a member of the quorum asks for this node's vote, or whether it would get it."""

from typing import Final

from moldau.broker.drivers.quorum_messages import PARTITION, TOPIC
from moldau.broker.requests.context import RequestContext
from moldau.broker.requests.quorum_requests import check_member, only_partition, where_leader_is
from moldau.machines.raft import ReplicaKey, RespondToVote, Ticket, VoteRequested
from moldau.model.ids import NodeId
from moldau.wire.messages import VoteRequest, VoteResponse

VOTER_NAMED_FROM: Final = 1


async def handle(request: VoteRequest, context: RequestContext) -> VoteResponse:
    """The vote is on disk before it is told."""
    check_member(request.cluster_id, context)
    asked = only_partition(request.topics)
    is_named = context.api_version >= VOTER_NAMED_FROM and request.voter_id >= 0
    voter = ReplicaKey(NodeId(request.voter_id), asked.voter_directory_id) if is_named else None

    def event(ticket: Ticket) -> VoteRequested:
        return VoteRequested(
            ticket=ticket,
            epoch=asked.replica_epoch,
            candidate=ReplicaKey(NodeId(asked.replica_id), asked.replica_directory_id),
            voter=voter,
            last_offset=asked.last_offset,
            last_epoch=asked.last_offset_epoch,
            is_pre_vote=asked.pre_vote,
        )

    answer: RespondToVote = await context.broker.metadata.quorum.ask(event)
    partition = VoteResponse.PartitionData(
        partition_index=PARTITION,
        error_code=int(answer.error),
        leader_id=answer.leadership.leader_id,
        leader_epoch=answer.leadership.epoch,
        vote_granted=answer.is_granted,
    )
    return VoteResponse(
        topics=[VoteResponse.TopicData(topic_name=TOPIC, partitions=[partition])],
        node_endpoints=where_leader_is(VoteResponse.NodeEndpoint, answer.leadership),
    )

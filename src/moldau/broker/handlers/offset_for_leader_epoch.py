"""OffsetForLeaderEpoch: the end offset of a leader epoch, for clients and followers to detect truncation."""

from moldau.broker.access import CLUSTER, Operation
from moldau.broker.handlers.contexts import LogContext
from moldau.broker.runtime.time_slice import TimeSlice
from moldau.model.errors import KafkaError, TopicAuthorizationFailed
from moldau.wire.messages import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse

Requested = OffsetForLeaderEpochRequest.OffsetForLeaderPartition
Result = OffsetForLeaderEpochResponse.EpochEndOffset
TopicResult = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult


async def handle(request: OffsetForLeaderEpochRequest, context: LogContext) -> OffsetForLeaderEpochResponse:
    """Look up each partition on its own."""
    turn = TimeSlice(context)
    is_broker = context.is_allowed(Operation.CLUSTER_ACTION, CLUSTER, is_audited=False)
    topics = []
    for topic in request.topics:
        is_visible = is_broker or context.may(Operation.DESCRIBE, topic.topic)
        results = []
        for requested in topic.partitions:
            results.append(_result(topic.topic, requested, context, is_visible=is_visible))
            if turn.is_over():
                await turn.next()
        topics.append(TopicResult(topic=topic.topic, partitions=results))
    return OffsetForLeaderEpochResponse(topics=topics)


def _result(topic: str, requested: Requested, context: LogContext, *, is_visible: bool) -> Result:
    try:
        if not is_visible:
            raise TopicAuthorizationFailed(f"Not authorized to describe topic {topic}.")
        partition = context.broker.partitions.get(topic, requested.partition)
        partition.role.check_epoch(requested.current_leader_epoch)
    except KafkaError as error:
        return Result(partition=requested.partition, error_code=int(error.code))
    if requested.leader_epoch == partition.role.leader_epoch:  # the current epoch, even if it has no records yet
        epoch, end_offset = requested.leader_epoch, partition.log.end_offset
    else:
        epoch, end_offset = partition.log.end_offset_for_epoch(requested.leader_epoch)
    return Result(partition=requested.partition, leader_epoch=epoch, end_offset=end_offset)


def error_response(
    request: OffsetForLeaderEpochRequest,
    error: KafkaError,
    version: int,  # noqa: ARG001
) -> OffsetForLeaderEpochResponse:
    """Return the same error for every partition."""
    topics = [
        TopicResult(
            topic=topic.topic,
            partitions=[
                Result(partition=requested.partition, error_code=int(error.code)) for requested in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return OffsetForLeaderEpochResponse(topics=topics)

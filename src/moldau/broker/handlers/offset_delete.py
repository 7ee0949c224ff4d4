"""OffsetDelete: delete a group's committed offsets of partitions that no member is subscribed to."""

from moldau.broker.access import Operation
from moldau.broker.handlers.contexts import GroupContext
from moldau.model.errors import ErrorCode
from moldau.wire.messages import OffsetDeleteRequest, OffsetDeleteResponse

Topic = OffsetDeleteRequest.OffsetDeleteRequestTopic
TopicResult = OffsetDeleteResponse.OffsetDeleteResponseTopic
Result = OffsetDeleteResponse.OffsetDeleteResponsePartition


async def handle(request: OffsetDeleteRequest, context: GroupContext) -> OffsetDeleteResponse:
    """Delete or reject each partition on its own."""
    context.authorize_group(Operation.DELETE, request.group_id)
    shard = context.broker.groups.shard_of(request.group_id)
    rejected = [result for topic in request.topics if (result := _remove_rejected(topic, context)).partitions]
    request.topics = [topic for topic in request.topics if topic.partitions]
    response = await shard.commit(lambda machine: machine.decide_delete_offsets(request, now=shard.now))
    response.topics = [*response.topics, *rejected]
    return response


def _remove_rejected(topic: Topic, context: GroupContext) -> TopicResult:
    """Remove invalid partitions from the request and return their errors."""
    error, count = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0
    if not context.may(Operation.READ, topic.name):
        error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    elif (known := context.broker.image.topics.get(topic.name)) is not None:
        count = len(known.partitions)
    rejected = [each for each in topic.partitions if not 0 <= each.partition_index < count]
    topic.partitions = [each for each in topic.partitions if 0 <= each.partition_index < count]
    return TopicResult(
        name=topic.name,
        partitions=[Result(partition_index=each.partition_index, error_code=int(error)) for each in rejected],
    )

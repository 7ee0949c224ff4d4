"""OffsetDelete: a group forgets what it committed for some partitions that none of its members reads."""

from moldau.broker.access import Operation
from moldau.broker.requests.context import RequestContext
from moldau.model.errors import ErrorCode
from moldau.wire.messages import OffsetDeleteRequest, OffsetDeleteResponse

Topic = OffsetDeleteRequest.OffsetDeleteRequestTopic
TopicAnswer = OffsetDeleteResponse.OffsetDeleteResponseTopic
Answer = OffsetDeleteResponse.OffsetDeleteResponsePartition


async def handle(request: OffsetDeleteRequest, context: RequestContext) -> OffsetDeleteResponse:
    """Each partition is forgotten or refused by itself."""
    context.authorize_group(Operation.DELETE, request.group_id)
    shard = context.broker.groups.shard_of(request.group_id)
    refused = [answer for topic in request.topics if (answer := _take_out_refused(topic, context)).partitions]
    request.topics = [topic for topic in request.topics if topic.partitions]
    response = await shard.commit(lambda machine: machine.decide_delete_offsets(request, now=shard.now))
    response.topics = [*response.topics, *refused]
    return response


def _take_out_refused(topic: Topic, context: RequestContext) -> TopicAnswer:
    """Leave in the request what can be forgotten; the answer about the rest."""
    error, count = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0
    if not context.may(Operation.READ, topic.name):
        error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    elif (known := context.broker.image.topics.get(topic.name)) is not None:
        count = len(known.partitions)
    refused = [each for each in topic.partitions if not 0 <= each.partition_index < count]
    topic.partitions = [each for each in topic.partitions if 0 <= each.partition_index < count]
    return TopicAnswer(
        name=topic.name,
        partitions=[Answer(partition_index=each.partition_index, error_code=int(error)) for each in refused],
    )

"""DeleteRecords: everything below an offset is gone for readers at once, and from disk with its segment."""

from typing import Final

from moldau.broker.access import Operation
from moldau.broker.context import RequestContext
from moldau.broker.topics import is_internal
from moldau.model.errors import InvalidTopic, KafkaError, OffsetOutOfRange, PolicyViolation, TopicAuthorizationFailed
from moldau.model.ids import NO_OFFSET
from moldau.wire.messages import DeleteRecordsRequest, DeleteRecordsResponse

UP_TO_HIGH_WATERMARK: Final = -1

Asked = DeleteRecordsRequest.DeleteRecordsPartition
Answer = DeleteRecordsResponse.DeleteRecordsPartitionResult
TopicAnswer = DeleteRecordsResponse.DeleteRecordsTopicResult


async def handle(request: DeleteRecordsRequest, context: RequestContext) -> DeleteRecordsResponse:
    """Each partition is answered for itself, with its new first offset."""
    topics = [
        TopicAnswer(name=topic.name, partitions=[_delete(topic.name, asked, context) for asked in topic.partitions])
        for topic in request.topics
    ]
    # Once for all of them, and before the answer: what is told to be gone stays gone after a crash.
    if any(answer.error_code == 0 for topic in topics for answer in topic.partitions):
        await context.broker.partitions.checkpoint_starts()
    return DeleteRecordsResponse(topics=topics)


def _delete(topic: str, asked: Asked, context: RequestContext) -> Answer:
    try:
        if not context.may(Operation.DELETE, topic):
            raise TopicAuthorizationFailed(f"Not authorized to delete from topic {topic}.")
        if is_internal(topic):
            raise InvalidTopic(f"Records of the internal topic {topic} are not deleted by clients.")
        low_watermark = _advance(topic, asked, context)
    except KafkaError as error:
        return Answer(partition_index=asked.partition_index, low_watermark=NO_OFFSET, error_code=int(error.code))
    return Answer(partition_index=asked.partition_index, low_watermark=low_watermark)


def _advance(topic: str, asked: Asked, context: RequestContext) -> int:
    partition = context.broker.partitions.get(topic, asked.partition_index)
    if "delete" not in partition.log.settings.cleanup_policy and partition.log.settings.cleanup_policy:
        raise PolicyViolation(f"Topic {topic} is compacted only; its cleanup.policy has no delete.")
    high_watermark = partition.high_watermark
    offset = high_watermark if asked.offset == UP_TO_HIGH_WATERMARK else asked.offset
    if not 0 <= offset <= high_watermark:
        raise OffsetOutOfRange(f"{partition.name} ends at {high_watermark}.")
    if offset > partition.log.start_offset:
        partition.log.advance_start(offset)
        for follower in list(partition.followers):
            follower.committed()  # it is told, and does the same
    return partition.log.start_offset


def refuse(request: DeleteRecordsRequest, error: KafkaError, version: int) -> DeleteRecordsResponse:  # noqa: ARG001
    """The same error for every partition."""
    topics = [
        TopicAnswer(
            name=topic.name,
            partitions=[
                Answer(partition_index=asked.partition_index, low_watermark=NO_OFFSET, error_code=int(error.code))
                for asked in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return DeleteRecordsResponse(topics=topics)

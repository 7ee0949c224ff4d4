"""DeleteRecords: everything below an offset is gone for readers at once, and from disk with its segment."""

import asyncio
from typing import Final

from moldau.broker.access import Operation
from moldau.broker.handlers.produce import give_up
from moldau.broker.internal_topics import is_internal
from moldau.broker.partitions.partition import Partition
from moldau.broker.requests.context import RequestContext
from moldau.model.errors import InvalidTopic, KafkaError, OffsetOutOfRange, PolicyViolation, TopicAuthorizationFailed
from moldau.model.ids import NO_OFFSET
from moldau.wire.messages import DeleteRecordsRequest, DeleteRecordsResponse

UP_TO_HIGH_WATERMARK: Final = -1

Asked = DeleteRecordsRequest.DeleteRecordsPartition
Answer = DeleteRecordsResponse.DeleteRecordsPartitionResult
TopicAnswer = DeleteRecordsResponse.DeleteRecordsTopicResult
Waiting = tuple[asyncio.Future[None], Answer]


async def handle(request: DeleteRecordsRequest, context: RequestContext) -> DeleteRecordsResponse:
    """Each partition is answered for itself, with its new first offset."""
    waiting: list[Waiting] = []
    topics = [
        TopicAnswer(
            name=topic.name, partitions=[_delete(topic.name, asked, context, waiting) for asked in topic.partitions]
        )
        for topic in request.topics
    ]
    # Once for all of them, and before the answer: what is told to be gone stays gone after a crash.
    if any(answer.error_code == 0 for topic in topics for answer in topic.partitions):
        await context.broker.partitions.checkpoint_starts()
    if waiting:
        await _wait(waiting, request.timeout_ms)
    return DeleteRecordsResponse(topics=topics)


def _delete(topic: str, asked: Asked, context: RequestContext, waiting: list[Waiting]) -> Answer:
    try:
        if not context.may(Operation.DELETE, topic):
            raise TopicAuthorizationFailed(f"Not authorized to delete from topic {topic}.")
        if is_internal(topic):
            raise InvalidTopic(f"Records of the internal topic {topic} are not deleted by clients.")
        partition = _advance(topic, asked, context)
    except KafkaError as error:
        return _refused(asked.partition_index, error)
    answer = Answer(partition_index=asked.partition_index, low_watermark=partition.log.start_offset)
    if partition.leading is not None:
        waiting.append((partition.leading.start_wait(partition.log.start_offset), answer))
    return answer


def _refused(index: int, error: KafkaError) -> Answer:
    return Answer(partition_index=index, low_watermark=NO_OFFSET, error_code=int(error.code))


async def _wait(waiting: list[Waiting], timeout_ms: int) -> None:
    """Until the other copies have done the same; those of brokers that are down do it when they come back."""
    waits = [wait for wait, _ in waiting]
    timer = asyncio.get_running_loop().call_later(max(timeout_ms, 0) / 1000, give_up, *waits)
    try:
        await asyncio.wait(waits)
        for wait, answer in waiting:
            failure = wait.exception()
            if isinstance(failure, KafkaError):
                answer.error_code, answer.low_watermark = int(failure.code), NO_OFFSET
    finally:
        timer.cancel()
        for wait in waits:
            wait.cancel()


def _advance(topic: str, asked: Asked, context: RequestContext) -> Partition:
    partition = context.broker.partitions.get(topic, asked.partition_index)
    if "delete" not in partition.log.settings.cleanup_policy and partition.log.settings.cleanup_policy:
        raise PolicyViolation(f"Topic {topic} is compacted only; its cleanup.policy has no delete.")
    high_watermark = partition.high_watermark
    offset = high_watermark if asked.offset == UP_TO_HIGH_WATERMARK else asked.offset
    if not 0 <= offset <= high_watermark:
        raise OffsetOutOfRange(f"{partition.name} ends at {high_watermark}.")
    if offset > partition.log.start_offset:
        partition.log.advance_start_offset(offset)
        for follower in list(partition.followers):
            follower.committed()  # it is told, and does the same
    return partition


def refuse(request: DeleteRecordsRequest, error: KafkaError, version: int) -> DeleteRecordsResponse:  # noqa: ARG001
    """The same error for every partition."""
    topics = [
        TopicAnswer(
            name=topic.name,
            partitions=[_refused(asked.partition_index, error) for asked in topic.partitions],
        )
        for topic in request.topics
    ]
    return DeleteRecordsResponse(topics=topics)

"""DeleteRecords: advance the log start offset. Records below it are unreadable at once; segments are deleted later."""

import asyncio
from typing import Final

from moldau.broker.access import Operation
from moldau.broker.handlers.contexts import LogContext
from moldau.broker.internal_topics import is_internal
from moldau.broker.partitions.commit_outcome import time_out
from moldau.broker.partitions.partition import Partition
from moldau.model.errors import InvalidTopic, KafkaError, OffsetOutOfRange, PolicyViolation, TopicAuthorizationFailed
from moldau.model.ids import NO_OFFSET
from moldau.wire.messages import DeleteRecordsRequest, DeleteRecordsResponse

UP_TO_HIGH_WATERMARK: Final = -1

Requested = DeleteRecordsRequest.DeleteRecordsPartition
Result = DeleteRecordsResponse.DeleteRecordsPartitionResult
TopicResult = DeleteRecordsResponse.DeleteRecordsTopicResult
PendingCommit = tuple[asyncio.Future[None], Result]


async def handle(request: DeleteRecordsRequest, context: LogContext) -> DeleteRecordsResponse:
    """Respond with each partition's new log start offset."""
    pending: list[PendingCommit] = []
    topics = [
        TopicResult(
            name=topic.name,
            partitions=[_delete(topic.name, requested, context, pending) for requested in topic.partitions],
        )
        for topic in request.topics
    ]
    # Checkpoint once for all partitions, before the response: acknowledged deletions must survive a crash.
    if any(result.error_code == 0 for topic in topics for result in topic.partitions):
        await _checkpoint(context)
    if pending:
        await _wait(pending, request.timeout_ms)
    return DeleteRecordsResponse(topics=topics)


async def _checkpoint(context: LogContext) -> None:
    """On a full disk, free the space of the deleted segments first."""
    partitions = context.broker.partitions
    try:
        await partitions.checkpoint_starts()
    except OSError:
        await context.broker.log_maintenance.apply_retention(is_urgent=True)
        await partitions.checkpoint_starts()


def _delete(topic: str, requested: Requested, context: LogContext, pending: list[PendingCommit]) -> Result:
    try:
        if not context.may(Operation.DELETE, topic):
            raise TopicAuthorizationFailed(f"Not authorized to delete from topic {topic}.")
        if is_internal(topic):
            raise InvalidTopic(f"Clients cannot delete records of the internal topic {topic}.")
        partition, offset = _advance(topic, requested, context)
    except KafkaError as error:
        return _error_result(requested.partition_index, error)
    result = Result(partition_index=requested.partition_index, low_watermark=partition.log.start_offset)
    if partition.role.leading is not None:
        pending.append((partition.role.leading.start_wait(offset), result))
    return result


def _error_result(index: int, error: KafkaError) -> Result:
    return Result(partition_index=index, low_watermark=NO_OFFSET, error_code=int(error.code))


async def _wait(pending: list[PendingCommit], timeout_ms: int) -> None:
    """Wait until the followers have advanced too; brokers that are down catch up after their restart."""
    waits = [wait for wait, _ in pending]
    timer = asyncio.get_running_loop().call_later(max(timeout_ms, 0) / 1000, time_out, *waits)
    try:
        await asyncio.wait(waits)
        for wait, result in pending:
            failure = wait.exception()
            if isinstance(failure, KafkaError):
                result.error_code, result.low_watermark = int(failure.code), NO_OFFSET
    finally:
        timer.cancel()
        for wait in waits:
            wait.cancel()


def _advance(topic: str, requested: Requested, context: LogContext) -> tuple[Partition, int]:
    """Return the partition and the offset that no replica may start below when the request is done."""
    partition = context.broker.partitions.get(topic, requested.partition_index)
    if "delete" not in partition.log.settings.cleanup_policy and partition.log.settings.cleanup_policy:
        raise PolicyViolation(f"Topic {topic} is compacted only; its cleanup.policy has no delete.")
    high_watermark = partition.high_watermark
    offset = high_watermark if requested.offset == UP_TO_HIGH_WATERMARK else requested.offset
    if not 0 <= offset <= high_watermark:
        raise OffsetOutOfRange(f"{partition.name} has high watermark {high_watermark}; offset {offset} is beyond it.")
    partition.delete_before(offset)
    return partition, offset


def error_response(request: DeleteRecordsRequest, error: KafkaError, version: int) -> DeleteRecordsResponse:  # noqa: ARG001
    """Return the same error for every partition."""
    topics = [
        TopicResult(
            name=topic.name,
            partitions=[_error_result(requested.partition_index, error) for requested in topic.partitions],
        )
        for topic in request.topics
    ]
    return DeleteRecordsResponse(topics=topics)

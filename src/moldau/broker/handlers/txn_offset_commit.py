"""TxnOffsetCommit: commit a group's offsets as part of a transaction; they count once that is committed."""

from collections.abc import Sequence
from typing import Final

from moldau.broker.access import Operation, Resource, ResourceKind
from moldau.broker.groups.shard import Shard
from moldau.broker.handlers.contexts import TxnContext
from moldau.broker.transactions.verification import (
    FirstBatch,
    TransactionalClient,
    map_error_for_offset_commit,
    verify_first_batches,
)
from moldau.model.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    ErrorCode,
    InvalidGroupId,
    KafkaError,
)
from moldau.wire.messages import TxnOffsetCommitRequest, TxnOffsetCommitResponse

ADDS_ON_WRITE_FROM: Final = 5
ABORTABLE_FROM: Final = 4
LOAD_IN_PROGRESS_FROM: Final = 2  # older producers treat COORDINATOR_LOAD_IN_PROGRESS as fatal

Topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
Partition = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition
TopicResult = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
Result = TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition


async def handle(request: TxnOffsetCommitRequest, context: TxnContext) -> TxnOffsetCommitResponse:
    """Commit all valid partitions in one decision of the group's shard."""
    context.authorize(Operation.WRITE, Resource(ResourceKind.TRANSACTIONAL_ID, request.transactional_id))
    context.authorize_group(Operation.READ, request.group_id)
    if not request.group_id:
        raise InvalidGroupId("The group id must not be empty.")
    shard = context.broker.groups.shard_of(request.group_id)
    rejected = [result for topic in request.topics if (result := _remove_rejected(topic, context)) is not None]
    request.topics = [topic for topic in request.topics if topic.partitions]
    if not request.topics:
        return TxnOffsetCommitResponse(topics=rejected)
    try:
        await _begin(request, shard, context)
        response = await shard.commit_in_transaction(request)
    except KafkaError as error:
        response = error_response(request, error, context.api_version)
    return TxnOffsetCommitResponse(topics=_merged(rejected, response.topics)) if rejected else response


async def _begin(request: TxnOffsetCommitRequest, shard: Shard, context: TxnContext) -> None:
    """Verify with the transaction coordinator unless the transaction is open in the shard's partition already."""
    partition = shard.partition
    producer_id, epoch = request.producer_id, request.producer_epoch
    if partition.log.producers.is_in_transaction(producer_id, epoch):
        return
    version = context.api_version
    client = TransactionalClient(
        request.transactional_id,
        producer_id,
        epoch,
        adds_on_write=version >= ADDS_ON_WRITE_FROM,
        supports_abortable=version >= ABORTABLE_FROM,
    )
    rejected = await verify_first_batches(context.broker, client, [FirstBatch(partition)])
    for code in rejected.values():
        raise map_error_for_offset_commit(code, client)


def _remove_rejected(topic: Topic, context: TxnContext) -> TopicResult | None:
    """Remove invalid partitions from the request and return their errors."""
    known = context.broker.image.topics.get(topic.name)
    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not context.may(Operation.READ, topic.name):
        known, error = None, ErrorCode.TOPIC_AUTHORIZATION_FAILED
    count = 0 if known is None else len(known.partitions)
    rejected = [each for each in topic.partitions if not 0 <= each.partition_index < count]
    if not rejected:
        return None
    topic.partitions = [each for each in topic.partitions if 0 <= each.partition_index < count]
    return TopicResult(name=topic.name, partitions=_error_result(rejected, error))


def _error_result(partitions: Sequence[Partition], error: ErrorCode) -> list[Result]:
    return [Result(partition_index=each.partition_index, error_code=int(error)) for each in partitions]


def _merged(rejected: list[TopicResult], committed: Sequence[TopicResult]) -> list[TopicResult]:
    """Merge both into one response per topic."""
    results = {result.name: result for result in rejected}
    for result in committed:
        known = results.setdefault(result.name, result)
        if known is not result:
            known.partitions = [*known.partitions, *result.partitions]
    return list(results.values())


def error_response(request: TxnOffsetCommitRequest, error: KafkaError, version: int) -> TxnOffsetCommitResponse:
    """Return the same error for every partition."""
    code = error.code
    if isinstance(error, CoordinatorLoadInProgress) and version < LOAD_IN_PROGRESS_FROM:
        code = CoordinatorNotAvailable.code
    topics = [
        TopicResult(name=topic.name, partitions=_error_result(topic.partitions, code)) for topic in request.topics
    ]
    return TxnOffsetCommitResponse(topics=topics)

"""TxnOffsetCommit: a group's offsets become part of a transaction, and count when that is committed."""

from collections.abc import Sequence
from typing import Final

from moldau.broker.access import Operation, Resource, ResourceKind
from moldau.broker.groups.shard import Shard
from moldau.broker.requests.context import RequestContext
from moldau.broker.transactions.verification import Beginning, Speaker, begin, told_to_committer
from moldau.model.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    ErrorCode,
    InvalidGroupId,
    KafkaError,
)
from moldau.wire.messages import TxnOffsetCommitRequest, TxnOffsetCommitResponse

ENROLS_FROM: Final = 5
KNOWS_ABORTABLE_FROM: Final = 4
KNOWS_LOADING_FROM: Final = 2  # producers before it stop for good when they hear that a group is being loaded

Topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
Partition = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition
TopicAnswer = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
Answer = TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition


async def handle(request: TxnOffsetCommitRequest, context: RequestContext) -> TxnOffsetCommitResponse:
    """What may be committed goes to the group's shard in one piece."""
    context.authorize(Operation.WRITE, Resource(ResourceKind.TRANSACTIONAL_ID, request.transactional_id))
    context.authorize_group(Operation.READ, request.group_id)
    if not request.group_id:
        raise InvalidGroupId("A group id is needed.")
    shard = context.broker.groups.shard_of(request.group_id)
    refused = [answer for topic in request.topics if (answer := _take_out_refused(topic, context)) is not None]
    request.topics = [topic for topic in request.topics if topic.partitions]
    if not request.topics:
        return TxnOffsetCommitResponse(topics=refused)
    try:
        await _begin(request, shard, context)
        response = await shard.commit_in_transaction(request)
    except KafkaError as error:
        response = refuse(request, error, context.api_version)
    return TxnOffsetCommitResponse(topics=_merged(refused, response.topics)) if refused else response


async def _begin(request: TxnOffsetCommitRequest, shard: Shard, context: RequestContext) -> None:
    """Unless the transaction is open in the shard's partition, its coordinator is asked."""
    partition = shard.partition
    producer_id, epoch = request.producer_id, request.producer_epoch
    if partition.log.producers.is_in_transaction(producer_id, epoch):
        return
    version = context.api_version
    speaker = Speaker(
        request.transactional_id,
        producer_id,
        epoch,
        enrols=version >= ENROLS_FROM,
        knows_abortable=version >= KNOWS_ABORTABLE_FROM,
    )
    refused = await begin(context.broker, speaker, [Beginning(partition)])
    for code in refused.values():
        raise told_to_committer(code, speaker)


def _take_out_refused(topic: Topic, context: RequestContext) -> TopicAnswer | None:
    """Leave in the request what can be committed; the answer about the rest, if any."""
    known = context.broker.image.topics.get(topic.name)
    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not context.may(Operation.READ, topic.name):
        known, error = None, ErrorCode.TOPIC_AUTHORIZATION_FAILED
    count = 0 if known is None else len(known.partitions)
    refused = [each for each in topic.partitions if not 0 <= each.partition_index < count]
    if not refused:
        return None
    topic.partitions = [each for each in topic.partitions if 0 <= each.partition_index < count]
    return TopicAnswer(name=topic.name, partitions=_refused(refused, error))


def _refused(partitions: Sequence[Partition], error: ErrorCode) -> list[Answer]:
    return [Answer(partition_index=each.partition_index, error_code=int(error)) for each in partitions]


def _merged(refused: list[TopicAnswer], taken: Sequence[TopicAnswer]) -> list[TopicAnswer]:
    """One answer for each topic, though some of its partitions were refused."""
    answers = {answer.name: answer for answer in refused}
    for answer in taken:
        known = answers.setdefault(answer.name, answer)
        if known is not answer:
            known.partitions = [*known.partitions, *answer.partitions]
    return list(answers.values())


def refuse(request: TxnOffsetCommitRequest, error: KafkaError, version: int) -> TxnOffsetCommitResponse:
    """The same error for every partition."""
    code = error.code
    if isinstance(error, CoordinatorLoadInProgress) and version < KNOWS_LOADING_FROM:
        code = CoordinatorNotAvailable.code
    topics = [TopicAnswer(name=topic.name, partitions=_refused(topic.partitions, code)) for topic in request.topics]
    return TxnOffsetCommitResponse(topics=topics)

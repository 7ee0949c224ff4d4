"""AddPartitionsToTxn: partitions join a transaction, asked by its producer, or by brokers for many at once."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from moldau.broker.access import CLUSTER, Operation, Resource, ResourceKind
from moldau.broker.internal_topics import is_internal
from moldau.broker.requests.context import RequestContext
from moldau.broker.transactions.error_mapping import EPOCH_PER_TRANSACTION, FIRST_VERSION, told
from moldau.machines.transactions import ProducerIdentity
from moldau.model.errors import ErrorCode, KafkaError
from moldau.model.ids import ProducerId, TopicPartition
from moldau.wire.messages import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse

BATCHED_FROM: Final = 4  # only brokers send it so: for their clients, and to verify what clients say
FENCING_FROM: Final = 2

Topics = Sequence[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic]
Asked = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
TopicResult = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
Result = AddPartitionsToTxnResponse.AddPartitionsToTxnResult


async def handle(request: AddPartitionsToTxnRequest, context: RequestContext) -> AddPartitionsToTxnResponse:
    """All partitions of a transaction join it, or none does; each is told why."""
    if context.api_version >= BATCHED_FROM:
        context.authorize(Operation.CLUSTER_ACTION, CLUSTER)
        codes = await _for_brokers(request.transactions, context)
        results = [
            Result(transactional_id=asked.transactional_id, topic_results=_results(asked.topics, each))
            for asked, each in zip(request.transactions, codes, strict=True)
        ]
        return AddPartitionsToTxnResponse(results_by_transaction=results)
    topics = request.v3_and_below_topics
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=_results(topics, await _for_client(request, context))
    )


async def _for_client(request: AddPartitionsToTxnRequest, context: RequestContext) -> Mapping[TopicPartition, int]:
    transactional_id = request.v3_and_below_transactional_id
    context.authorize(Operation.WRITE, Resource(ResourceKind.TRANSACTIONAL_ID, transactional_id))
    partitions = _partitions(request.v3_and_below_topics)
    refused = _unauthorized(partitions, context) or _unknown(partitions, context)
    if refused:
        return refused
    producer = ProducerIdentity(ProducerId(request.v3_and_below_producer_id), request.v3_and_below_producer_epoch)
    try:
        await context.broker.transactions.add_partitions(
            transactional_id, producer, partitions, client_version=FIRST_VERSION
        )
    except KafkaError as refusal:
        code = told(refusal, knows_fencing=context.api_version >= FENCING_FROM).code
        return dict.fromkeys(partitions, int(code))
    return {}


async def _for_brokers(asked: Sequence[Asked], context: RequestContext) -> list[Mapping[TopicPartition, int]]:
    """Transactions do not wait for each other. Mostly there is one, which takes no task of its own."""
    if len(asked) == 1:
        return [await _for_broker(asked[0], context)]
    return await asyncio.gather(*(_for_broker(each, context) for each in asked))


async def _for_broker(asked: Asked, context: RequestContext) -> Mapping[TopicPartition, int]:
    partitions = _partitions(asked.topics)
    refused = _unknown(partitions, context)
    if refused:
        return refused
    producer = ProducerIdentity(ProducerId(asked.producer_id), asked.producer_epoch)
    transactions = context.broker.transactions
    try:
        if asked.verify_only:
            found = await transactions.verify_partitions(asked.transactional_id, producer, partitions)
            return {partition: int(code) for partition, code in found.items()}
        await transactions.add_partitions(
            asked.transactional_id, producer, partitions, client_version=EPOCH_PER_TRANSACTION
        )
    except KafkaError as refusal:
        return dict.fromkeys(partitions, int(refusal.code))
    return {}


def _partitions(topics: Topics) -> list[TopicPartition]:
    return [TopicPartition(topic.name, index) for topic in topics for index in topic.partitions]


def _unauthorized(partitions: Sequence[TopicPartition], context: RequestContext) -> dict[TopicPartition, int]:
    """Nor may clients write to topics of the broker itself, whoever they are."""
    refused = {each for each in partitions if is_internal(each.topic) or not context.may(Operation.WRITE, each.topic)}
    return _none_joins(partitions, refused, ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def _unknown(partitions: Sequence[TopicPartition], context: RequestContext) -> dict[TopicPartition, int]:
    image = context.broker.image
    return _none_joins(
        partitions,
        {each for each in partitions if image.partition(*each) is None},
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )


def _none_joins(
    partitions: Iterable[TopicPartition], refused: set[TopicPartition], code: ErrorCode
) -> dict[TopicPartition, int]:
    """If one is refused, the others are told that they were not tried."""
    if not refused:
        return {}
    return {each: int(code if each in refused else ErrorCode.OPERATION_NOT_ATTEMPTED) for each in partitions}


def _results(topics: Topics, codes: Mapping[TopicPartition, int]) -> list[TopicResult]:
    """Whoever is not among the codes has joined."""
    return [
        TopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult(
                    partition_index=index,
                    partition_error_code=codes.get(TopicPartition(topic.name, index), int(ErrorCode.NONE)),
                )
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]


def refuse(request: AddPartitionsToTxnRequest, error: KafkaError, version: int) -> AddPartitionsToTxnResponse:
    """Brokers hear it once, clients for each partition."""
    if version >= BATCHED_FROM:
        return AddPartitionsToTxnResponse(error_code=int(error.code))
    topics = request.v3_and_below_topics
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=_results(topics, dict.fromkeys(_partitions(topics), int(error.code)))
    )

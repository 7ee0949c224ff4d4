"""AddPartitionsToTxn: add partitions to a transaction, for its producer or, batched, for other brokers."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from moldau.broker.access import CLUSTER, Operation, Resource, ResourceKind
from moldau.broker.handlers.contexts import TxnContext
from moldau.broker.internal_topics import is_internal
from moldau.broker.transactions.error_mapping import EPOCH_PER_TRANSACTION, FIRST_VERSION, error_for_version
from moldau.machines.transactions import ProducerIdentity
from moldau.model.errors import ErrorCode, KafkaError
from moldau.model.ids import ProducerId, TopicPartition
from moldau.wire.messages import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse

BATCHED_FROM: Final = 4  # only brokers send batches: on behalf of their clients, and to verify open transactions
FENCING_FROM: Final = 2

Topics = Sequence[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic]
Requested = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
TopicResult = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
Result = AddPartitionsToTxnResponse.AddPartitionsToTxnResult


async def handle(request: AddPartitionsToTxnRequest, context: TxnContext) -> AddPartitionsToTxnResponse:
    """Add all partitions of a transaction or none; each partition gets its own error code."""
    if context.api_version >= BATCHED_FROM:
        context.authorize(Operation.CLUSTER_ACTION, CLUSTER)
        codes = await _for_brokers(request.transactions, context)
        results = [
            Result(transactional_id=requested.transactional_id, topic_results=_results(requested.topics, each))
            for requested, each in zip(request.transactions, codes, strict=True)
        ]
        return AddPartitionsToTxnResponse(results_by_transaction=results)
    topics = request.v3_and_below_topics
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=_results(topics, await _for_client(request, context))
    )


async def _for_client(request: AddPartitionsToTxnRequest, context: TxnContext) -> Mapping[TopicPartition, int]:
    transactional_id = request.v3_and_below_transactional_id
    context.authorize(Operation.WRITE, Resource(ResourceKind.TRANSACTIONAL_ID, transactional_id))
    partitions = _partitions(request.v3_and_below_topics)
    rejected = _unauthorized(partitions, context) or _unknown(partitions, context)
    if rejected:
        return rejected
    producer = ProducerIdentity(ProducerId(request.v3_and_below_producer_id), request.v3_and_below_producer_epoch)
    try:
        await context.broker.transactions.add_partitions(
            transactional_id, producer, partitions, client_version=FIRST_VERSION
        )
    except KafkaError as rejection:
        code = error_for_version(rejection, knows_fencing=context.api_version >= FENCING_FROM).code
        return dict.fromkeys(partitions, int(code))
    return {}


async def _for_brokers(requested: Sequence[Requested], context: TxnContext) -> list[Mapping[TopicPartition, int]]:
    """Handle transactions concurrently. The usual single transaction needs no task of its own."""
    if len(requested) == 1:
        return [await _for_broker(requested[0], context)]
    return await asyncio.gather(*(_for_broker(each, context) for each in requested))


async def _for_broker(requested: Requested, context: TxnContext) -> Mapping[TopicPartition, int]:
    partitions = _partitions(requested.topics)
    rejected = _unknown(partitions, context)
    if rejected:
        return rejected
    producer = ProducerIdentity(ProducerId(requested.producer_id), requested.producer_epoch)
    transactions = context.broker.transactions
    try:
        if requested.verify_only:
            found = await transactions.verify_partitions(requested.transactional_id, producer, partitions)
            return {partition: int(code) for partition, code in found.items()}
        await transactions.add_partitions(
            requested.transactional_id, producer, partitions, client_version=EPOCH_PER_TRANSACTION
        )
    except KafkaError as rejection:
        return dict.fromkeys(partitions, int(rejection.code))
    return {}


def _partitions(topics: Topics) -> list[TopicPartition]:
    return [TopicPartition(topic.name, index) for topic in topics for index in topic.partitions]


def _unauthorized(partitions: Sequence[TopicPartition], context: TxnContext) -> dict[TopicPartition, int]:
    """Internal topics are rejected as well: no client may write to them in a transaction."""
    rejected = {each for each in partitions if is_internal(each.topic) or not context.may(Operation.WRITE, each.topic)}
    return _reject_all(partitions, rejected, ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def _unknown(partitions: Sequence[TopicPartition], context: TxnContext) -> dict[TopicPartition, int]:
    image = context.broker.image
    return _reject_all(
        partitions,
        {each for each in partitions if image.partition(*each) is None},
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )


def _reject_all(
    partitions: Iterable[TopicPartition], rejected: set[TopicPartition], code: ErrorCode
) -> dict[TopicPartition, int]:
    """If one partition is rejected, the others fail with OPERATION_NOT_ATTEMPTED."""
    if not rejected:
        return {}
    return {each: int(code if each in rejected else ErrorCode.OPERATION_NOT_ATTEMPTED) for each in partitions}


def _results(topics: Topics, codes: Mapping[TopicPartition, int]) -> list[TopicResult]:
    """Partitions without a code were added."""
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


def error_response(request: AddPartitionsToTxnRequest, error: KafkaError, version: int) -> AddPartitionsToTxnResponse:
    """Brokers get one error code, clients one per partition."""
    if version >= BATCHED_FROM:
        return AddPartitionsToTxnResponse(error_code=int(error.code))
    topics = request.v3_and_below_topics
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=_results(topics, dict.fromkeys(_partitions(topics), int(error.code)))
    )

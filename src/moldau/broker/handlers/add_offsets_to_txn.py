"""AddOffsetsToTxn: add a group's partition of the offsets topic to a transaction."""

from typing import Final

from moldau.broker.access import Operation, Resource, ResourceKind
from moldau.broker.handlers.contexts import TxnContext
from moldau.broker.internal_topics import OFFSETS_TOPIC, partition_for
from moldau.broker.transactions.error_mapping import FIRST_VERSION, error_for_version
from moldau.machines.transactions import ProducerIdentity
from moldau.model.errors import CoordinatorNotAvailable, KafkaError
from moldau.model.ids import ProducerId, TopicPartition
from moldau.wire.messages import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse

FENCING_FROM: Final = 2


async def handle(request: AddOffsetsToTxnRequest, context: TxnContext) -> AddOffsetsToTxnResponse:
    """Add the partition; the producer then commits the offsets with the group coordinator (TxnOffsetCommit)."""
    context.authorize(Operation.WRITE, Resource(ResourceKind.TRANSACTIONAL_ID, request.transactional_id))
    context.authorize_group(Operation.READ, request.group_id)
    partition = await _offsets_partition(request.group_id, context)
    producer = ProducerIdentity(ProducerId(request.producer_id), request.producer_epoch)
    try:
        await context.broker.transactions.add_partitions(
            request.transactional_id, producer, [partition], client_version=FIRST_VERSION
        )
    except KafkaError as rejection:
        raise error_for_version(rejection, knows_fencing=context.api_version >= FENCING_FROM) from None
    return AddOffsetsToTxnResponse()


async def _offsets_partition(group_id: str, context: TxnContext) -> TopicPartition:
    """Find the group's partition; a producer may come before any consumer, so the topic may have to be created."""
    broker = context.broker
    if OFFSETS_TOPIC not in broker.image.topics:
        await broker.groups.coordinator_of(group_id)
    topic = broker.image.topics.get(OFFSETS_TOPIC)
    if topic is None:
        raise CoordinatorNotAvailable(f"Topic {OFFSETS_TOPIC} does not exist yet.")
    return TopicPartition(OFFSETS_TOPIC, partition_for(group_id, len(topic.partitions)))

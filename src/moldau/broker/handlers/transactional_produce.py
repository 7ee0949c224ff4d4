"""Transactional Produce requests: the batch batch of a transaction in a partition is verified before the append."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from moldau.broker.access import Operation
from moldau.broker.handlers.contexts import ProduceContext
from moldau.broker.internal_topics import INTERNAL
from moldau.broker.partitions.partition import Partition
from moldau.broker.runtime.time_slice import ALONE
from moldau.broker.transactions.verification import (
    FirstBatch,
    TransactionalClient,
    map_error_for_produce,
    verify_first_batches,
)
from moldau.model.errors import InvalidProducerIdMapping, KafkaError
from moldau.model.ids import TopicId, TopicPartition
from moldau.model.protocol import PRODUCE_TOPIC_IDS_FROM
from moldau.records.header import HEADER_BYTES, BatchHeader, read_header
from moldau.wire.messages import ProduceRequest

ADDS_ON_WRITE_FROM: Final = 12  # the version of Produce
ABORTABLE_FROM: Final = 11


class _UnverifiedBatch(NamedTuple):
    partition: Partition
    header: BatchHeader


@dataclass(slots=True)
class Admitted:
    """The rejected partitions of a request, and the copies of its batches until they are appended."""

    context: ProduceContext
    rejected: dict[TopicPartition, KafkaError] = field(default_factory=dict)
    copies: list[bytearray] = field(default_factory=list)

    def check(self, topic: str, index: int) -> None:
        if self.rejected and (topic, index) in self.rejected:
            raise self.rejected[TopicPartition(topic, index)]

    def close(self) -> None:
        for copy in self.copies:
            self.context.broker.record_validator.release(copy)
        self.copies.clear()


async def admit(request: ProduceRequest, context: ProduceContext) -> Admitted:
    """Verify batch batches. Usually there are none, and nothing awaits. `close` the result after the append."""
    admitted = Admitted(context)
    unverified = list(_unverified_batches(request, context))
    if not unverified:
        return admitted
    producers = {(each.header.producer_id, each.header.producer_epoch) for each in unverified}
    if len(producers) > 1:
        raise InvalidProducerIdMapping("All batches in a transactional request must come from one producer.")
    ((producer_id, epoch),) = producers
    client = TransactionalClient(
        request.transactional_id or "",
        producer_id,
        epoch,
        adds_on_write=context.api_version >= ADDS_ON_WRITE_FROM,
        supports_abortable=context.api_version >= ABORTABLE_FROM,
    )
    context.weight = ALONE  # later requests of the connection wait, so that batches stay in order
    try:
        _copy_batches(request, admitted)
        codes = await verify_first_batches(
            context.broker, client, [FirstBatch(each.partition, _first_sequence(each, client)) for each in unverified]
        )
    except BaseException:
        admitted.close()
        raise
    admitted.rejected = {name: map_error_for_produce(code, client) for name, code in codes.items()}
    return admitted


def _first_sequence(batch: _UnverifiedBatch, client: TransactionalClient) -> int:
    """With an epoch per transaction its batch sequence is 0; any other means a lost batch."""
    return 0 if client.adds_on_write else batch.header.base_sequence


def _unverified_batches(request: ProduceRequest, context: ProduceContext) -> Iterator[_UnverifiedBatch]:
    """Yield batches whose transaction is not open in their partition. Invalid batches are rejected by the append."""
    for topic in request.topic_data:
        name = _name(topic, context)
        if name in INTERNAL or not context.may(Operation.WRITE, name):  # rejected by the append
            continue
        for data in topic.partition_data:
            partition = context.broker.partitions.find(name, data.index)
            records = data.records
            if partition is None or not partition.role.is_leader or records is None or len(records) < HEADER_BYTES:
                continue
            header = read_header(records)
            if header.is_transactional and header.producer_id >= 0 and _is_first(partition, header):
                yield _UnverifiedBatch(partition, header)


def _is_first(partition: Partition, header: BatchHeader) -> bool:
    """Whether it starts a transaction here. The append handles duplicates and fenced epochs."""
    producers = partition.log.producers
    if producers.is_in_transaction(header.producer_id, header.producer_epoch):
        return False
    try:
        return producers.check(header) is None
    except KafkaError:
        return False


def _name(topic: ProduceRequest.TopicProduceData, context: ProduceContext) -> str:
    if context.api_version < PRODUCE_TOPIC_IDS_FROM:
        return str(topic.name)
    known = context.broker.image.topics_by_id.get(TopicId(topic.topic_id))
    return "" if known is None else known.name


def _copy_batches(request: ProduceRequest, admitted: Admitted) -> None:
    """Copy the batches: the receive buffer is only borrowed until the batch await."""
    validator = admitted.context.broker.record_validator
    for topic in request.topic_data:
        for data in topic.partition_data:
            if data.records is not None:
                copy = validator.copy(data.records)
                admitted.copies.append(copy)
                data.records = memoryview(copy)

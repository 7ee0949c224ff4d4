"""Produce requests of transactions: those partitions are found whose first batch of a transaction this is."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from moldau.broker.access import Operation
from moldau.broker.handlers.contexts import ProduceContext
from moldau.broker.internal_topics import INTERNAL
from moldau.broker.partitions.partition import Partition
from moldau.broker.runtime.time_slice import ALONE
from moldau.broker.transactions.verification import Beginning, Speaker, begin, told_to_producer
from moldau.model.errors import InvalidProducerIdMapping, KafkaError
from moldau.model.ids import TopicId, TopicPartition
from moldau.model.protocol import PRODUCE_TOPIC_IDS_FROM
from moldau.records.header import HEADER_BYTES, BatchHeader, read_header
from moldau.wire.messages import ProduceRequest

ENROLS_FROM: Final = 12  # the version of Produce
KNOWS_ABORTABLE_FROM: Final = 11


class _First(NamedTuple):
    partition: Partition
    header: BatchHeader


@dataclass(slots=True)
class Admitted:
    """What became of a request's partitions, and the memory that it holds until it is appended."""

    context: ProduceContext
    refused: dict[TopicPartition, KafkaError] = field(default_factory=dict)
    copies: list[bytearray] = field(default_factory=list)

    def check(self, topic: str, index: int) -> None:
        if self.refused and (topic, index) in self.refused:
            raise self.refused[TopicPartition(topic, index)]

    def close(self) -> None:
        for copy in self.copies:
            self.context.broker.record_validator.give_back(copy)
        self.copies.clear()


async def admit(request: ProduceRequest, context: ProduceContext) -> Admitted:
    """Mostly there is nothing to wait for: the transaction is open in every partition. `close` it after the append."""
    admitted = Admitted(context)
    firsts = list(_firsts(request, context))
    if not firsts:
        return admitted
    producers = {(each.header.producer_id, each.header.producer_epoch) for each in firsts}
    if len(producers) > 1:
        raise InvalidProducerIdMapping("The batches of one transaction are of one producer.")
    ((producer_id, epoch),) = producers
    speaker = Speaker(
        request.transactional_id or "",
        producer_id,
        epoch,
        enrols=context.api_version >= ENROLS_FROM,
        knows_abortable=context.api_version >= KNOWS_ABORTABLE_FROM,
    )
    context.weight = ALONE  # what comes behind it on this connection waits, so that batches keep their order
    try:
        _keep(request, admitted)
        codes = await begin(
            context.broker, speaker, [Beginning(each.partition, _first_sequence(each, speaker)) for each in firsts]
        )
    except BaseException:
        admitted.close()
        raise
    admitted.refused = {name: told_to_producer(code, speaker) for name, code in codes.items()}
    return admitted


def _first_sequence(first: _First, speaker: Speaker) -> int:
    """Where each transaction has an epoch of its own, it begins with 0: what begins otherwise has lost something."""
    return 0 if speaker.enrols else first.header.base_sequence


def _firsts(request: ProduceRequest, context: ProduceContext) -> Iterator[_First]:
    """The batches whose transaction is not known to be open where they go. What is wrong with others is found later."""
    for topic in request.topic_data:
        name = _name(topic, context)
        if name in INTERNAL or not context.may(Operation.WRITE, name):  # which it hears when it writes
            continue
        for data in topic.partition_data:
            partition = context.broker.partitions.find(name, data.index)
            if partition is None or not partition.is_leader or data.records is None or len(data.records) < HEADER_BYTES:
                continue
            header = read_header(data.records)
            if header.is_transactional and header.producer_id >= 0 and _is_first(partition, header):
                yield _First(partition, header)


def _is_first(partition: Partition, header: BatchHeader) -> bool:
    """Not one that is in the log already, nor one of an epoch that has passed: the log knows what to say to these."""
    producers = partition.log.producers
    if producers.is_in_transaction(header.producer_id, header.producer_epoch):
        return False
    try:
        return producers.check(header) is None
    except KafkaError:
        return False


def _name(topic: Any, context: ProduceContext) -> str:
    if context.api_version < PRODUCE_TOPIC_IDS_FROM:
        return str(topic.name)
    known = context.broker.image.topics_by_id.get(TopicId(topic.topic_id))
    return "" if known is None else known.name


def _keep(request: ProduceRequest, admitted: Admitted) -> None:
    """The batches were only lent, until the first wait."""
    validator = admitted.context.broker.record_validator
    for topic in request.topic_data:
        for data in topic.partition_data:
            if data.records is not None:
                copy = validator.copy(data.records)
                admitted.copies.append(copy)
                data.records = memoryview(copy)

"""DescribeProducers: who writes to a partition, as its leader knows them; what an admin needs to find a transaction
that hangs.
"""

from typing import Final

from moldau.broker.access import Operation
from moldau.broker.requests.context import RequestContext
from moldau.broker.runtime.time_slice import TimeSlice
from moldau.model.errors import ErrorCode, InvalidTopic, KafkaError, TopicAuthorizationFailed
from moldau.model.ids import NO_SEQUENCE
from moldau.storage.producer_state import Producer
from moldau.wire.messages import DescribeProducersRequest, DescribeProducersResponse

TopicAnswer = DescribeProducersResponse.TopicResponse
Answer = DescribeProducersResponse.PartitionResponse
State = DescribeProducersResponse.ProducerState

NAME_MAX: Final = 249


async def handle(request: DescribeProducersRequest, context: RequestContext) -> DescribeProducersResponse:
    """Each partition is answered for itself, and once, however often it is named."""
    turn = TimeSlice(context)
    named: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        named.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    topics = []
    for name, indexes in named.items():
        answers = []
        for index in indexes:
            answers.append(_describe(name, index, context))
            if turn.is_over(1 + len(answers[-1].active_producers)):
                await turn.next()
        topics.append(TopicAnswer(name=name, partitions=answers))
    return DescribeProducersResponse(topics=topics)


def _describe(topic: str, index: int, context: RequestContext) -> Answer:
    try:
        if not topic or len(topic) > NAME_MAX:
            raise InvalidTopic("A topic's name is needed.")
        if not context.may(Operation.READ, topic):
            raise TopicAuthorizationFailed(f"Not authorized to read topic {topic}.")
        producers = context.broker.partitions.get(topic, index).log.producers
    except KafkaError as error:
        return _refused(index, error)
    return Answer(
        partition_index=index,
        error_code=int(ErrorCode.NONE),
        active_producers=[_state(producer_id, each) for producer_id, each in producers.by_id.items()],
    )


def _state(producer_id: int, producer: Producer) -> State:
    last = producer.batches[-1] if producer.batches else None
    return State(
        producer_id=producer_id,
        producer_epoch=producer.epoch,
        last_sequence=NO_SEQUENCE if last is None else last.last_sequence,
        last_timestamp=producer.last_timestamp,
        coordinator_epoch=producer.coordinator_epoch,
        current_txn_start_offset=producer.transaction_start,
    )


def _refused(index: int, error: KafkaError) -> Answer:
    return Answer(partition_index=index, error_code=int(error.code), error_message=error.message)


def refuse(request: DescribeProducersRequest, error: KafkaError, version: int) -> DescribeProducersResponse:  # noqa: ARG001
    """The same error for every partition."""
    return DescribeProducersResponse(
        topics=[
            TopicAnswer(name=topic.name, partitions=[_refused(index, error) for index in topic.partition_indexes])
            for topic in request.topics
        ]
    )

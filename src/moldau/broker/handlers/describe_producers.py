"""DescribeProducers: the active producers of a partition, as its leader knows them.

Admin tools use it to find hanging transactions.
"""

from typing import Final

from moldau.broker.access import Operation
from moldau.broker.handlers.contexts import LogContext
from moldau.broker.runtime.time_slice import TimeSlice
from moldau.model.errors import ErrorCode, InvalidTopic, KafkaError, TopicAuthorizationFailed
from moldau.model.ids import NO_SEQUENCE
from moldau.storage.producer_state import Producer
from moldau.wire.messages import DescribeProducersRequest, DescribeProducersResponse

TopicResult = DescribeProducersResponse.TopicResponse
Result = DescribeProducersResponse.PartitionResponse
State = DescribeProducersResponse.ProducerState

NAME_MAX: Final = 249


async def handle(request: DescribeProducersRequest, context: LogContext) -> DescribeProducersResponse:
    """Describe each partition on its own, and once if it is named repeatedly."""
    turn = TimeSlice(context)
    named: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        named.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    topics = []
    for name, indexes in named.items():
        results = []
        for index in indexes:
            results.append(_describe(name, index, context))
            if turn.is_over(1 + len(results[-1].active_producers)):
                await turn.next()
        topics.append(TopicResult(name=name, partitions=results))
    return DescribeProducersResponse(topics=topics)


def _describe(topic: str, index: int, context: LogContext) -> Result:
    try:
        if not topic or len(topic) > NAME_MAX:
            raise InvalidTopic("The topic name must not be empty.")
        if not context.may(Operation.READ, topic):
            raise TopicAuthorizationFailed(f"Not authorized to read topic {topic}.")
        producers = context.broker.partitions.get(topic, index).log.producers
    except KafkaError as error:
        return _error_result(index, error)
    return Result(
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


def _error_result(index: int, error: KafkaError) -> Result:
    return Result(partition_index=index, error_code=int(error.code), error_message=error.message)


def error_response(request: DescribeProducersRequest, error: KafkaError, version: int) -> DescribeProducersResponse:  # noqa: ARG001
    """Return the same error for every partition."""
    return DescribeProducersResponse(
        topics=[
            TopicResult(name=topic.name, partitions=[_error_result(index, error) for index in topic.partition_indexes])
            for topic in request.topics
        ]
    )

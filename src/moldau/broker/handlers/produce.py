"""Produce: batches are checked by their headers, given their offsets, appended, and acknowledged."""

import asyncio
from typing import Any, Final, NamedTuple

from moldau.broker.access import Operation, Resource, ResourceKind
from moldau.broker.handlers.transactional_produce import Admitted, admit
from moldau.broker.internal_topics import INTERNAL
from moldau.broker.partitions.partition import FLUSH_EVERY_MESSAGE, Partition
from moldau.broker.partitions.produce_validation import ValidatedBatch, accept
from moldau.broker.requests.context import CloseConnection, RequestContext
from moldau.broker.requests.leader_hints import PRODUCE_FROM, LeaderHints
from moldau.broker.runtime.time_slice import ALONE, TimeSlice
from moldau.model.errors import (
    InvalidRequest,
    InvalidRequiredAcks,
    InvalidTopic,
    KafkaError,
    RequestTimedOut,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
    UnknownTopicId,
)
from moldau.model.ids import NO_OFFSET, TopicId
from moldau.records.header import TRANSACTIONAL
from moldau.wire.messages import ProduceRequest, ProduceResponse

TOPIC_IDS_FROM: Final = 13
NO_ANSWER: Final = 0
ALL: Final = -1
ACKS: Final = (ALL, 0, 1)

TopicAnswer = ProduceResponse.TopicProduceResponse
PartitionAnswer = ProduceResponse.PartitionProduceResponse
Waiting = tuple[Partition, int, Any]


class Inspected(NamedTuple):
    """A batch that is looked into before it is appended, and the place of its answer."""

    topic: str
    topic_id: bytes
    partition: int
    records: bytearray
    answers: list[Any]
    place: int


async def handle(request: ProduceRequest, context: RequestContext) -> ProduceResponse | None:
    """Everything is appended before the first wait, so requests of one connection append in the order they came.

    A transaction that is not known to be open here waits before that, and whatever follows it on the connection.
    """
    if request.acks not in ACKS:
        raise InvalidRequiredAcks(f"acks is {request.acks}; it must be -1 (all), 1 or 0.")
    admitted: Admitted | None = None
    if request.transactional_id is not None:
        context.authorize(Operation.WRITE, Resource(ResourceKind.TRANSACTIONAL_ID, request.transactional_id))
        admitted = await admit(request, context)
    waiting: list[Waiting] = []
    inspected: list[Inspected] = []
    try:
        responses = [
            _append_topic(topic, request, context, waiting, inspected, admitted) for topic in request.topic_data
        ]
        if inspected:
            await _append_inspected(inspected, request, context, waiting)
    finally:
        for each in inspected:
            context.broker.inspection.give_back(each.records)
        if admitted is not None:
            admitted.close()
    if request.acks == NO_ANSWER:
        _close_on_failure(responses)
        return None
    if waiting:
        await _wait(waiting, request, context)
    return _response(responses, context)


def _response(responses: list[Any], context: RequestContext) -> ProduceResponse:
    if context.leader_hints is None:
        return ProduceResponse(responses=responses)
    return ProduceResponse(responses=responses, node_endpoints=list(context.leader_hints.endpoints.values()))


def _append_topic(
    topic: Any,
    request: ProduceRequest,
    context: RequestContext,
    waiting: list[Waiting],
    inspected: list[Inspected],
    admitted: Admitted | None,
) -> Any:
    name, refusal = _name(topic, context)
    answers: list[Any] = []
    for data in topic.partition_data:
        try:
            if refusal is not None:
                raise refusal
            if admitted is not None:
                admitted.check(name, data.index)
            answer = _append(name, topic.topic_id, data, request, context, waiting)
            if answer is None:
                copy = context.broker.inspection.copy(data.records)
                inspected.append(Inspected(name, topic.topic_id, data.index, copy, answers, len(answers)))
            answers.append(answer)
        except KafkaError as error:
            answers.append(_failed(name, data.index, len(data.records or b""), error, context))
    return TopicAnswer(name=topic.name, topic_id=topic.topic_id, partition_responses=answers)


def _name(topic: Any, context: RequestContext) -> tuple[str, KafkaError | None]:
    name: str = topic.name
    if context.api_version < TOPIC_IDS_FROM and context.broker.allows_all and name not in INTERNAL:
        return name, None
    if context.api_version >= TOPIC_IDS_FROM:
        known = context.broker.image.topics_by_id.get(TopicId(topic.topic_id))
        if known is None:
            return "", UnknownTopicId("There is no topic with this id.")
        name = known.name
    if not context.may(Operation.WRITE, name):
        return name, TopicAuthorizationFailed(f"Not authorized to write to topic {name}.")
    if name in INTERNAL:
        return name, InvalidTopic(f"Topic {name} is written by brokers alone.")
    return name, None


def _append(
    name: str, topic_id: bytes, data: Any, request: ProduceRequest, context: RequestContext, waiting: list[Waiting]
) -> Any:
    partition = context.broker.partitions.get(name, data.index, topic_id)
    if data.records is None:
        raise InvalidRequest("A produce request must carry records for each partition it names.")
    now_ms = context.now_ms
    accepted = accept(data.records, partition.log, now_ms, context.api_version)
    if accepted is None:
        return None
    return _write(partition, accepted, now_ms, request, waiting)


async def _append_inspected(
    inspected: list[Inspected], request: ProduceRequest, context: RequestContext, waiting: list[Waiting]
) -> None:
    """Batches whose records had to be looked into. Nothing more of this connection begins before they are done."""
    broker = context.broker
    turn = TimeSlice(context)
    context.weight = ALONE
    for each in inspected:
        try:
            settings = broker.partitions.get(each.topic, each.partition, each.topic_id).log.settings
            accepted = await broker.inspection.accept(each.records, settings, context.now_ms, turn)
            partition = broker.partitions.get(each.topic, each.partition, each.topic_id)
            answer = _write(partition, accepted, context.now_ms, request, waiting)
        except KafkaError as error:
            answer = _failed(each.topic, each.partition, len(each.records), error, context)
        each.answers[each.place] = answer


def _write(
    partition: Partition, accepted: ValidatedBatch, now_ms: int, request: ProduceRequest, waiting: list[Waiting]
) -> Any:
    log = partition.log
    if accepted[1][5] & TRANSACTIONAL and request.transactional_id is None:
        raise TransactionalIdAuthorizationFailed("A transactional batch needs its transactional id.")
    if partition.leading is not None and request.acks == ALL:
        partition.leading.check_enough()
    appended = partition.append(*accepted, now_ms)
    partition.traffic.produces += 1
    answer = PartitionAnswer(
        index=partition.name.partition,
        base_offset=appended.base_offset,
        log_append_time_ms=appended.log_append_time_ms,
        log_start_offset=log.start_offset,
    )
    if partition.high_watermark <= appended.last_offset and (
        request.acks == ALL or log.settings.flush_messages == FLUSH_EVERY_MESSAGE
    ):
        waiting.append((partition, appended.last_offset + 1, answer))
    return answer


async def _wait(waiting: list[Waiting], request: ProduceRequest, context: RequestContext) -> None:
    """Until all of them are committed; what is not by then is answered with an error, though it stays in the log.

    Who asks for the leader's word alone waits for the leader's disk alone.
    """
    asks_all = request.acks == ALL
    waits = [
        partition.commit_wait(offset) if asks_all else partition.sync_wait(offset) for partition, offset, _ in waiting
    ]
    timer = asyncio.get_running_loop().call_later(max(request.timeout_ms, 0) / 1000, give_up, *waits)
    try:
        await asyncio.wait(waits)
        for wait, (partition, offset, answer) in zip(waits, waiting, strict=True):
            error = refusal_of(wait, partition, offset, asks_all=asks_all)
            if error is not None:
                _mark(answer, error)
                _hint(answer, *partition.name, error, context)
    finally:
        timer.cancel()
        for wait in waits:
            if not wait.cancel() and not wait.cancelled():
                wait.exception()  # nobody needs to hear of it any more


def give_up(*waits: asyncio.Future[None]) -> None:
    """The time is up for those that are not committed yet."""
    for wait in waits:
        if not wait.done():
            wait.set_exception(RequestTimedOut())


def refusal_of(
    wait: asyncio.Future[None], partition: Partition, end_offset: int, *, asks_all: bool = True
) -> KafkaError | None:
    """Why what was waited for is not acknowledged, though it may well be in the log; None if it is."""
    if wait.cancelled():
        return RequestTimedOut()
    return refusal_after(wait.exception(), partition, end_offset, asks_all=asks_all)


def refusal_after(
    failure: BaseException | None, partition: Partition, end_offset: int, *, asks_all: bool = True
) -> KafkaError | None:
    """The same once it is known how the wait has ended."""
    if isinstance(failure, RequestTimedOut):
        return RequestTimedOut(f"Offset {end_offset - 1} of {partition.name} was not committed in time.")
    if isinstance(failure, KafkaError):
        return failure
    try:
        if asks_all and partition.leading is not None:
            partition.leading.check_enough_after_append()
    except KafkaError as error:
        return error
    return None


def _mark(answer: Any, error: KafkaError) -> None:
    answer.error_code = int(error.code)
    answer.error_message = error.message
    answer.base_offset = NO_OFFSET


def _failed(topic: str, index: int, size_bytes: int, error: KafkaError, context: RequestContext) -> Any:
    context.note_refusal("a batch", f"{topic}-{index}", error.message)
    traffic = context.broker.traffic
    traffic.failed_produces += 1
    traffic.bytes_rejected += size_bytes
    context.broker.partitions.traffic.get(topic, traffic).produces += 1
    answer = _refused(index, error)
    _hint(answer, topic, index, error, context)
    return answer


def _hint(answer: Any, topic: str, index: int, error: KafkaError, context: RequestContext) -> None:
    if context.api_version >= PRODUCE_FROM:
        if context.leader_hints is None:
            context.leader_hints = LeaderHints(context.broker.partitions, context.listener, ProduceResponse)
        context.leader_hints.mark(answer, topic, index, error)


def refuse_batches(request: ProduceRequest, error: KafkaError, context: RequestContext) -> ProduceResponse:
    """None of the batches could be appended, for one reason."""
    responses = [
        TopicAnswer(
            name=topic.name,
            topic_id=topic.topic_id,
            partition_responses=[
                _failed(_name(topic, context)[0], data.index, len(data.records or b""), error, context)
                for data in topic.partition_data
            ],
        )
        for topic in request.topic_data
    ]
    return _response(responses, context)


def _refused(index: int, error: KafkaError) -> Any:
    answer = PartitionAnswer(index=index, log_append_time_ms=-1, log_start_offset=NO_OFFSET)
    _mark(answer, error)
    return answer


def _close_on_failure(responses: list[Any]) -> None:
    """With acks=0 nobody reads an answer; closing is the only way to tell that records were not taken."""
    for topic in responses:
        for answer in topic.partition_responses:
            if answer.error_code:
                raise CloseConnection(f"a produce with acks=0 failed: {answer.error_message}")


def refuse(request: ProduceRequest, error: KafkaError, version: int) -> ProduceResponse | None:  # noqa: ARG001
    """The same error for every partition."""
    if request.acks == NO_ANSWER:
        return None
    responses = [
        TopicAnswer(
            name=topic.name,
            topic_id=topic.topic_id,
            partition_responses=[_refused(data.index, error) for data in topic.partition_data],
        )
        for topic in request.topic_data
    ]
    return ProduceResponse(responses=responses)

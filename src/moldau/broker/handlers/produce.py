"""Produce: validate batches by their headers, assign offsets, append, and acknowledge them."""

import asyncio
from typing import Any, Final, NamedTuple

from moldau.broker.access import Operation, Resource, ResourceKind
from moldau.broker.handlers.contexts import ProduceContext
from moldau.broker.handlers.transactional_produce import Admitted, admit
from moldau.broker.partitions.commit_outcome import error_of_wait, time_out
from moldau.broker.partitions.partition import FLUSH_EVERY_MESSAGE, Partition
from moldau.broker.partitions.produce_append import append_produced
from moldau.broker.partitions.produce_validation import ValidatedBatch, accept
from moldau.broker.requests.context import CloseConnection
from moldau.broker.requests.leader_hints import LeaderHints
from moldau.broker.requests.produce_topics import find_topic
from moldau.broker.runtime.record_sampler import RecordSampler
from moldau.broker.runtime.time_slice import ALONE, TimeSlice
from moldau.model.errors import (
    InvalidRequest,
    InvalidRequiredAcks,
    KafkaError,
    RecordsRejected,
)
from moldau.model.ids import NO_OFFSET
from moldau.model.protocol import ACKS_ALL, ACKS_LEADER, ACKS_NONE, PRODUCE_LEADER_HINTS_FROM
from moldau.wire.messages import ProduceRequest, ProduceResponse

VALID_ACKS: Final = (ACKS_ALL, ACKS_NONE, ACKS_LEADER)

TopicResult = ProduceResponse.TopicProduceResponse
PartitionResult = ProduceResponse.PartitionProduceResponse
RecordErrorResult = ProduceResponse.BatchIndexAndErrorMessage
PendingCommit = tuple[Partition, int, PartitionResult]


class DeferredBatch(NamedTuple):
    """A batch whose records are validated before the append, and the position of its response."""

    topic: str
    topic_id: bytes
    partition: int
    records: bytearray
    results: list[PartitionResult]
    position: int


async def handle(request: ProduceRequest, context: ProduceContext) -> ProduceResponse | None:
    """Append everything before the first await, so that requests of one connection are appended in order.

    A transaction that is not known to be open here is verified first; later requests of the connection wait for that.
    """
    if request.acks not in VALID_ACKS:
        raise InvalidRequiredAcks(f"acks is {request.acks}; it must be -1 (all), 1 or 0.")
    admitted: Admitted | None = None
    if request.transactional_id is not None:
        context.authorize(Operation.WRITE, Resource(ResourceKind.TRANSACTIONAL_ID, request.transactional_id))
        admitted = await admit(request, context)
    pending: list[PendingCommit] = []
    deferred: list[DeferredBatch] = []
    try:
        responses = [
            _append_topic(topic, request, context, pending, deferred, admitted) for topic in request.topic_data
        ]
        if deferred:
            await _append_deferred(deferred, request, context, pending)
    finally:
        for each in deferred:
            context.broker.record_validator.release(each.records)
        if admitted is not None:
            admitted.close()
    if request.acks == ACKS_NONE:
        _close_on_failure(responses)
        return None
    if pending:
        await _wait(pending, request, context)
    return _response(responses, context)


def _response(responses: list[TopicResult], context: ProduceContext) -> ProduceResponse:
    if context.leader_hints is None:
        return ProduceResponse(responses=responses)
    return ProduceResponse(responses=responses, node_endpoints=list(context.leader_hints.endpoints.values()))


def _append_topic(
    topic: ProduceRequest.TopicProduceData,
    request: ProduceRequest,
    context: ProduceContext,
    pending: list[PendingCommit],
    deferred: list[DeferredBatch],
    admitted: Admitted | None,
) -> TopicResult:
    name, rejection = find_topic(topic, context)
    results: list[PartitionResult] = []
    for data in topic.partition_data:
        try:
            if rejection is not None:
                raise rejection
            if admitted is not None:
                admitted.check(name, data.index)
            result = _append(name, topic.topic_id, data, request, context, pending)
            if result is None:
                copy = context.broker.record_validator.copy(data.records)
                deferred.append(DeferredBatch(name, topic.topic_id, data.index, copy, results, len(results)))
            results.append(result)
        except KafkaError as error:
            results.append(_failed(name, data.index, len(data.records or b""), error, context))
    return TopicResult(name=topic.name, topic_id=topic.topic_id, partition_responses=results)


def _append(
    name: str,
    topic_id: bytes,
    data: ProduceRequest.PartitionProduceData,
    request: ProduceRequest,
    context: ProduceContext,
    pending: list[PendingCommit],
) -> Any:
    partition = context.broker.partitions.get(name, data.index, topic_id)
    if data.records is None:
        raise InvalidRequest("The produce request has no records for a partition.")
    now_ms = context.now_ms
    accepted = accept(data.records, partition.log, now_ms, context.api_version, sampler_of(context))
    if accepted is None:
        return None
    return _write(partition, accepted, now_ms, request, pending)


async def _append_deferred(
    deferred: list[DeferredBatch], request: ProduceRequest, context: ProduceContext, pending: list[PendingCommit]
) -> None:
    """Validate records, then append. Later requests of this connection start when these batches are done."""
    broker = context.broker
    turn = TimeSlice(context)
    context.weight = ALONE
    for each in deferred:
        try:
            settings = broker.partitions.get(each.topic, each.partition, each.topic_id).log.settings
            accepted = await broker.record_validator.accept(
                each.records, settings, context.now_ms, turn, sampler_of(context)
            )
            partition = broker.partitions.get(each.topic, each.partition, each.topic_id)
            result = _write(partition, accepted, context.now_ms, request, pending)
        except KafkaError as error:
            result = _failed(each.topic, each.partition, len(each.records), error, context)
        each.results[each.position] = result


def sampler_of(context: ProduceContext) -> RecordSampler:
    """The sampler of the request's connection, created by its first batch."""
    connection = context.connection
    if connection is None:
        return context.broker.record_samplers.create()
    if connection.record_sampler is None:
        connection.record_sampler = context.broker.record_samplers.create()
    return connection.record_sampler


def _write(
    partition: Partition, accepted: ValidatedBatch, now_ms: int, request: ProduceRequest, pending: list[PendingCommit]
) -> Any:
    log = partition.log
    appended = append_produced(
        partition, accepted, now_ms, request.acks == ACKS_ALL, request.transactional_id is not None
    )
    result = PartitionResult(
        index=partition.name.partition,
        base_offset=appended.base_offset,
        log_append_time_ms=appended.log_append_time_ms,
        log_start_offset=log.start_offset,
    )
    if partition.high_watermark <= appended.last_offset and (
        request.acks == ACKS_ALL or log.settings.flush_messages == FLUSH_EVERY_MESSAGE
    ):
        pending.append((partition, appended.last_offset + 1, result))
    return result


async def _wait(pending: list[PendingCommit], request: ProduceRequest, context: ProduceContext) -> None:
    """Wait until all batches are committed; a timeout is an error, although the batch stays in the log.

    With acks=1 only the leader's flush is waited for.
    """
    acks_all = request.acks == ACKS_ALL
    waits = [
        partition.waiters.commit_wait(offset) if acks_all else partition.waiters.sync_wait(offset)
        for partition, offset, _ in pending
    ]
    timer = asyncio.get_running_loop().call_later(max(request.timeout_ms, 0) / 1000, time_out, *waits)
    try:
        await asyncio.wait(waits)
        for wait, (partition, offset, result) in zip(waits, pending, strict=True):
            error = error_of_wait(wait, partition, offset, acks_all=acks_all)
            if error is not None:
                _mark(result, error)
                _hint(result, *partition.name, error, context)
    finally:
        timer.cancel()
        for wait in waits:
            if not wait.cancel() and not wait.cancelled():
                wait.exception()  # mark the exception as retrieved


def _mark(result: PartitionResult, error: KafkaError) -> None:
    result.error_code = int(error.code)
    result.error_message = error.message
    result.base_offset = NO_OFFSET
    if isinstance(error, RecordsRejected) and error.record_errors:
        result.record_errors = [
            RecordErrorResult(batch_index=index, batch_index_error_message=message)
            for index, message in error.record_errors
        ]


def _failed(topic: str, index: int, size_bytes: int, error: KafkaError, context: ProduceContext) -> PartitionResult:
    context.log_rejection("a batch", f"{topic}-{index}", error.message)
    traffic = context.broker.traffic
    traffic.failed_produces += 1
    traffic.bytes_rejected += size_bytes
    context.broker.partitions.traffic.get(topic, traffic).produces += 1
    result = _error_result(index, error)
    _hint(result, topic, index, error, context)
    return result


def _hint(result: PartitionResult, topic: str, index: int, error: KafkaError, context: ProduceContext) -> None:
    if context.api_version >= PRODUCE_LEADER_HINTS_FROM:
        if context.leader_hints is None:
            context.leader_hints = LeaderHints(context.broker.partitions, context.listener, ProduceResponse)
        context.leader_hints.mark(result, topic, index, error)


def reject_batches(request: ProduceRequest, error: KafkaError, context: ProduceContext) -> ProduceResponse:
    """Fail all batches with one error."""
    responses = [
        TopicResult(
            name=topic.name,
            topic_id=topic.topic_id,
            partition_responses=[
                _failed(find_topic(topic, context)[0], data.index, len(data.records or b""), error, context)
                for data in topic.partition_data
            ],
        )
        for topic in request.topic_data
    ]
    return _response(responses, context)


def _error_result(index: int, error: KafkaError) -> PartitionResult:
    result = PartitionResult(index=index, log_append_time_ms=-1, log_start_offset=NO_OFFSET)
    _mark(result, error)
    return result


def _close_on_failure(responses: list[TopicResult]) -> None:
    """With acks=0 there is no response; closing the connection is the only way to report a failed append."""
    for topic in responses:
        for result in topic.partition_responses:
            if result.error_code:
                raise CloseConnection(f"a produce with acks=0 failed: {result.error_message}")


def error_response(request: ProduceRequest, error: KafkaError, version: int) -> ProduceResponse | None:  # noqa: ARG001
    """Return the same error for every partition."""
    if request.acks == ACKS_NONE:
        return None
    responses = [
        TopicResult(
            name=topic.name,
            topic_id=topic.topic_id,
            partition_responses=[_error_result(data.index, error) for data in topic.partition_data],
        )
        for topic in request.topic_data
    ]
    return ProduceResponse(responses=responses)

"""WriteTxnMarkers: the transaction coordinator has commit or abort markers written to partitions."""

import asyncio
from typing import Final

from moldau.broker.access import CLUSTER, Operation
from moldau.broker.handlers.contexts import TxnContext
from moldau.broker.internal_topics import INTERNAL, OFFSETS_TOPIC
from moldau.broker.partitions.commit_outcome import error_of_wait, time_out
from moldau.broker.partitions.partition import Partition
from moldau.broker.partitions.transaction_end import TransactionEnding, end_transaction
from moldau.broker.runtime.time_slice import TimeSlice
from moldau.model.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    ErrorCode,
    KafkaError,
    NotCoordinator,
    NotEnoughReplicas,
    NotLeaderOrFollower,
)
from moldau.model.units import SECOND_MS
from moldau.wire.messages import WriteTxnMarkersRequest, WriteTxnMarkersResponse

COMMIT_MS_MAX: Final = 10 * SECOND_MS  # the coordinator retries

Requested = WriteTxnMarkersRequest.WritableTxnMarker
MarkerResult = WriteTxnMarkersResponse.WritableTxnMarkerResult
TopicResult = WriteTxnMarkersResponse.WritableTxnMarkerTopicResult
Result = WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult


class _PendingMarkers:
    """Markers that are appended, and the responses to fill in once they are committed."""

    def __init__(self) -> None:
        self.commits: list[tuple[asyncio.Future[None], Partition, int, Result]] = []
        self.groups: list[tuple[int, TransactionEnding, Result]] = []


async def handle(request: WriteTxnMarkersRequest, context: TxnContext) -> WriteTxnMarkersResponse:
    """Respond per partition once its marker is committed to the ISR."""
    if not context.is_allowed(Operation.ALTER, CLUSTER, is_audited=False):
        context.authorize(Operation.CLUSTER_ACTION, CLUSTER)
    turn = TimeSlice(context)
    pending = _PendingMarkers()
    markers = [await _write(marker, context, pending, turn) for marker in request.markers]
    await _wait(pending, context)
    return WriteTxnMarkersResponse(markers=markers)


async def _write(marker: Requested, context: TxnContext, pending: _PendingMarkers, turn: TimeSlice) -> MarkerResult:
    ending = TransactionEnding(
        marker.producer_id,
        marker.producer_epoch,
        marker.coordinator_epoch,
        marker.transaction_result,
        marker.transaction_version,
    )
    topics = []
    for topic in marker.topics:
        results = []
        for index in topic.partition_indexes:
            result = Result(partition_index=index, error_code=int(ErrorCode.NONE))
            results.append(result)
            if turn.is_over():
                await turn.next()
            try:
                if topic.name == OFFSETS_TOPIC:
                    pending.groups.append((index, ending, result))
                elif topic.name not in INTERNAL:  # transactions write to no other internal topic
                    _end(topic.name, index, ending, result, context, pending)
            except KafkaError as error:
                result.error_code = int(error.code)
        topics.append(TopicResult(name=topic.name, partitions=results))
    return MarkerResult(producer_id=marker.producer_id, topics=topics)


def _end(
    topic: str,
    index: int,
    ending: TransactionEnding,
    result: Result,
    context: TxnContext,
    pending: _PendingMarkers,
) -> None:
    partition = context.broker.partitions.get(topic, index)
    if partition.role.leading is not None:
        partition.role.leading.check_enough()
    end_offset = end_transaction(partition, ending, context.now_ms)
    if partition.high_watermark < end_offset:
        pending.commits.append((partition.waiters.commit_wait(end_offset), partition, end_offset, result))


async def _end_in_group_shard(index: int, ending: TransactionEnding, result: Result, context: TxnContext) -> None:
    """Settle the transaction's pending offsets in the shard that keeps them."""
    try:
        await context.broker.groups.shard_at(index).end_transaction(ending)
    except KafkaError as error:
        result.error_code = int(_mapped_error(error).code)


def _mapped_error(error: KafkaError) -> KafkaError:
    """Map errors of group coordinators to those of partitions, which transaction coordinators understand."""
    if isinstance(error, NotCoordinator | CoordinatorLoadInProgress):
        return NotLeaderOrFollower(error.message)
    return NotEnoughReplicas(error.message) if isinstance(error, CoordinatorNotAvailable) else error


async def _wait(pending: _PendingMarkers, context: TxnContext) -> None:
    waits = [wait for wait, *_ in pending.commits]
    timer = asyncio.get_running_loop().call_later(COMMIT_MS_MAX / 1000, time_out, *waits)
    try:
        await asyncio.gather(*(_end_in_group_shard(*each, context) for each in pending.groups))
        if waits:
            await asyncio.wait(waits)
        for wait, partition, end_offset, result in pending.commits:
            error = error_of_wait(wait, partition, end_offset)
            if error is not None:
                result.error_code = int(error.code)
    finally:
        timer.cancel()
        for wait in waits:
            if not wait.cancel() and not wait.cancelled():
                wait.exception()  # mark the exception as retrieved


def error_response(request: WriteTxnMarkersRequest, error: KafkaError, version: int) -> WriteTxnMarkersResponse:  # noqa: ARG001
    """Return the same error for every partition."""
    return WriteTxnMarkersResponse(
        markers=[
            MarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    TopicResult(
                        name=topic.name,
                        partitions=[
                            Result(partition_index=index, error_code=int(error.code))
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )

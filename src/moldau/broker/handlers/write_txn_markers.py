"""WriteTxnMarkers: a coordinator tells the partitions of a transaction that it has ended, and how."""

import asyncio
from typing import Final

from moldau.broker.access import CLUSTER, Operation
from moldau.broker.handlers.produce import give_up, refusal_of
from moldau.broker.internal_topics import INTERNAL, OFFSETS_TOPIC
from moldau.broker.partitions.partition import Partition, TransactionEnding
from moldau.broker.requests.context import RequestContext
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

COMMIT_MS_MAX: Final = 10 * SECOND_MS  # the coordinator does not wait for ever, and asks again

Asked = WriteTxnMarkersRequest.WritableTxnMarker
MarkerAnswer = WriteTxnMarkersResponse.WritableTxnMarkerResult
TopicAnswer = WriteTxnMarkersResponse.WritableTxnMarkerTopicResult
Answer = WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult


class _Waiting:
    """Markers that are written, and answers that are filled in when they are committed."""

    def __init__(self) -> None:
        self.commits: list[tuple[asyncio.Future[None], Partition, int, Answer]] = []
        self.groups: list[tuple[int, TransactionEnding, Answer]] = []


async def handle(request: WriteTxnMarkersRequest, context: RequestContext) -> WriteTxnMarkersResponse:
    """Each partition is answered for itself, once its marker is on the replicas that are in sync."""
    if not context.is_allowed(Operation.ALTER, CLUSTER):
        context.authorize(Operation.CLUSTER_ACTION, CLUSTER)
    turn = TimeSlice(context)
    waiting = _Waiting()
    markers = [await _write(marker, context, waiting, turn) for marker in request.markers]
    await _wait(waiting, context)
    return WriteTxnMarkersResponse(markers=markers)


async def _write(marker: Asked, context: RequestContext, waiting: _Waiting, turn: TimeSlice) -> MarkerAnswer:
    ending = TransactionEnding(
        marker.producer_id,
        marker.producer_epoch,
        marker.coordinator_epoch,
        marker.transaction_result,
        marker.transaction_version,
    )
    topics = []
    for topic in marker.topics:
        answers = []
        for index in topic.partition_indexes:
            answer = Answer(partition_index=index, error_code=int(ErrorCode.NONE))
            answers.append(answer)
            if turn.is_over():
                await turn.next()
            try:
                if topic.name == OFFSETS_TOPIC:
                    waiting.groups.append((index, ending, answer))
                elif topic.name not in INTERNAL:  # nothing of a transaction is ever in the others
                    _end(topic.name, index, ending, answer, context, waiting)
            except KafkaError as error:
                answer.error_code = int(error.code)
        topics.append(TopicAnswer(name=topic.name, partitions=answers))
    return MarkerAnswer(producer_id=marker.producer_id, topics=topics)


def _end(
    topic: str, index: int, ending: TransactionEnding, answer: Answer, context: RequestContext, waiting: _Waiting
) -> None:
    partition = context.broker.partitions.get(topic, index)
    if partition.leading is not None:
        partition.leading.check_enough()
    end_offset = partition.end_transaction(ending, context.now_ms)
    if partition.high_watermark < end_offset:
        waiting.commits.append((partition.commit_wait(end_offset), partition, end_offset, answer))


async def _end_in_groups(index: int, ending: TransactionEnding, answer: Answer, context: RequestContext) -> None:
    """Offsets that were committed in the transaction are settled by the shard that keeps them."""
    try:
        await context.broker.groups.shard_at(index).end_transaction(ending)
    except KafkaError as error:
        answer.error_code = int(_told(error).code)


def _told(error: KafkaError) -> KafkaError:
    """Coordinators of transactions know partitions, not coordinators of groups."""
    if isinstance(error, NotCoordinator | CoordinatorLoadInProgress):
        return NotLeaderOrFollower(error.message)
    return NotEnoughReplicas(error.message) if isinstance(error, CoordinatorNotAvailable) else error


async def _wait(waiting: _Waiting, context: RequestContext) -> None:
    waits = [wait for wait, *_ in waiting.commits]
    timer = asyncio.get_running_loop().call_later(COMMIT_MS_MAX / 1000, give_up, *waits)
    try:
        await asyncio.gather(*(_end_in_groups(*each, context) for each in waiting.groups))
        if waits:
            await asyncio.wait(waits)
        for wait, partition, end_offset, answer in waiting.commits:
            error = refusal_of(wait, partition, end_offset)
            if error is not None:
                answer.error_code = int(error.code)
    finally:
        timer.cancel()
        for wait in waits:
            if not wait.cancel() and not wait.cancelled():
                wait.exception()  # nobody needs to hear of it any more


def refuse(request: WriteTxnMarkersRequest, error: KafkaError, version: int) -> WriteTxnMarkersResponse:  # noqa: ARG001
    """The same error for every partition."""
    return WriteTxnMarkersResponse(
        markers=[
            MarkerAnswer(
                producer_id=marker.producer_id,
                topics=[
                    TopicAnswer(
                        name=topic.name,
                        partitions=[
                            Answer(partition_index=index, error_code=int(error.code))
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )

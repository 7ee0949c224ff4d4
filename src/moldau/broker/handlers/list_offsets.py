"""ListOffsets: the first offset, the last, the newest record, or the first at or after a time."""

from typing import Final

from moldau.broker.access import Operation
from moldau.broker.partitions.partition import Partition
from moldau.broker.requests.context import RequestContext
from moldau.broker.runtime.time_slice import TimeSlice
from moldau.model.errors import (
    KafkaError,
    LeaderNotAvailable,
    MessageTooLarge,
    OffsetNotAvailable,
    TopicAuthorizationFailed,
    UnsupportedVersion,
)
from moldau.model.ids import NO_EPOCH, NO_OFFSET, NO_TIMESTAMP
from moldau.model.units import MiB
from moldau.records.header import read_header
from moldau.records.record import iterate_records
from moldau.storage.log import Log
from moldau.wire.messages import ListOffsetsRequest, ListOffsetsResponse

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6
_SINCE_VERSION: Final = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
READ_COMMITTED: Final = 1
NOT_AVAILABLE_FROM: Final = 5  # versions that know OFFSET_NOT_AVAILABLE
INFLATED_BYTES_MAX: Final = 32 * MiB  # a batch that decompresses to more is not looked into

Asked = ListOffsetsRequest.ListOffsetsPartition
Answer = ListOffsetsResponse.ListOffsetsPartitionResponse
TopicAnswer = ListOffsetsResponse.ListOffsetsTopicResponse
Found = tuple[int, int]  # timestamp, offset


async def handle(request: ListOffsetsRequest, context: RequestContext) -> ListOffsetsResponse:
    """Each partition is answered for itself."""
    turn = TimeSlice(context)
    topics = []
    for topic in request.topics:
        answers = []
        for asked in topic.partitions:
            answers.append(await _answer(topic.name, asked, request, context, turn))
            if turn.is_over():
                await turn.next()
        topics.append(TopicAnswer(name=topic.name, partitions=answers))
    return ListOffsetsResponse(topics=topics)


async def _answer(
    topic: str, asked: Asked, request: ListOffsetsRequest, context: RequestContext, turn: TimeSlice
) -> Answer:
    try:
        if not context.may(Operation.DESCRIBE, topic):
            raise TopicAuthorizationFailed(f"Not authorized to describe topic {topic}.")
        if context.api_version < _SINCE_VERSION.get(asked.timestamp, 0) or asked.timestamp < EARLIEST_PENDING_UPLOAD:
            raise UnsupportedVersion(f"Timestamp {asked.timestamp} means nothing in this version.")
        partition = context.broker.partitions.get(topic, asked.partition_index)
        partition.check_epoch(asked.current_leader_epoch)
        end_offset = _end_offset(partition, asked.timestamp, request, context)
        timestamp, offset = await _look_up(partition, asked.timestamp, end_offset, turn)
        if offset == NO_OFFSET and asked.timestamp >= 0 and request.replica_id < 0:
            _check_known(partition, context)
    except KafkaError as error:
        return Answer(partition_index=asked.partition_index, error_code=int(error.code))
    return Answer(
        partition_index=asked.partition_index,
        timestamp=timestamp,
        offset=offset,
        leader_epoch=_epoch_at(offset, partition),
    )


def _epoch_at(offset: int, partition: Partition) -> int:
    """The end of the log belongs to the leader of today, though it may not have written anything yet."""
    if offset == NO_OFFSET:
        return NO_EPOCH
    log = partition.log
    return partition.leader_epoch if offset >= log.end_offset else log.epochs.epoch_at(offset)


def _end_offset(partition: Partition, timestamp: int, request: ListOffsetsRequest, context: RequestContext) -> int:
    """Where the partition ends for whoever asks: followers see all of it."""
    if request.replica_id >= 0:
        return partition.log.end_offset
    if timestamp in (LATEST, MAX_TIMESTAMP):
        _check_known(partition, context)
    return partition.last_stable_offset if request.isolation_level == READ_COMMITTED else partition.high_watermark


def _check_known(partition: Partition, context: RequestContext) -> None:
    """A new leader does not know yet how far its predecessor had committed: clients must not see it go back."""
    if partition.leading is not None and not partition.leading.machine.has_reached_epoch_start:
        raise OffsetNotAvailable if context.api_version >= NOT_AVAILABLE_FROM else LeaderNotAvailable


async def _look_up(partition: Partition, timestamp: int, end_offset: int, turn: TimeSlice) -> Found:
    log = partition.log
    if timestamp == LATEST:
        return NO_TIMESTAMP, end_offset
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return NO_TIMESTAMP, log.start_offset
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return NO_TIMESTAMP, NO_OFFSET  # nothing is kept anywhere but here
    if timestamp == MAX_TIMESTAMP:
        timestamp = log.newest_timestamp
    found = await _search(log, timestamp, turn) if timestamp >= 0 else None
    if found is None or found[1] >= end_offset:
        return NO_TIMESTAMP, NO_OFFSET
    return found


async def _search(log: Log, timestamp: int, turn: TimeSlice) -> Found | None:
    """The first record that is not older. A header may promise one that is not there: then on with the next batch."""
    offset = log.start_offset
    while (batch := log.batch_for_timestamp(timestamp, offset)) is not None:
        try:
            for record in iterate_records(batch, output_bytes_max=INFLATED_BYTES_MAX):
                if record.timestamp >= timestamp and record.offset >= offset:
                    return record.timestamp, record.offset
                if turn.is_over():
                    await turn.next()
        except MessageTooLarge:
            return timestamp, max(offset, read_header(batch).base_offset)  # a little early is better than a long wait
        offset = read_header(batch).next_offset
        if turn.is_over():
            await turn.next()
    return None


def refuse(request: ListOffsetsRequest, error: KafkaError, version: int) -> ListOffsetsResponse:  # noqa: ARG001
    """The same error for every partition."""
    topics = [
        TopicAnswer(
            name=topic.name,
            partitions=[
                Answer(partition_index=asked.partition_index, error_code=int(error.code)) for asked in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return ListOffsetsResponse(topics=topics)

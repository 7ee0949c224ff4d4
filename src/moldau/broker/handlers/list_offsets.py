"""ListOffsets: the earliest and latest offset, the record with the max timestamp, or the first since a timestamp."""

from typing import Final

from moldau.broker.access import Operation
from moldau.broker.handlers.contexts import LogContext
from moldau.broker.partitions.partition import Partition
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
from moldau.model.protocol import EARLIEST, LATEST, MAX_TIMESTAMP, READ_COMMITTED
from moldau.model.units import MiB
from moldau.records.header import read_header
from moldau.records.record import iterate_records
from moldau.storage.log import Log
from moldau.wire.messages import ListOffsetsRequest, ListOffsetsResponse

EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6
_SINCE_VERSION: Final = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
NOT_AVAILABLE_FROM: Final = 5  # versions that know OFFSET_NOT_AVAILABLE
INFLATED_BYTES_MAX: Final = 32 * MiB  # larger batches are not decompressed for a lookup

Requested = ListOffsetsRequest.ListOffsetsPartition
Result = ListOffsetsResponse.ListOffsetsPartitionResponse
TopicResult = ListOffsetsResponse.ListOffsetsTopicResponse
Found = tuple[int, int]  # timestamp, offset


async def handle(request: ListOffsetsRequest, context: LogContext) -> ListOffsetsResponse:
    """Look up each partition on its own."""
    turn = TimeSlice(context)
    topics = []
    for topic in request.topics:
        results = []
        for requested in topic.partitions:
            results.append(await _result(topic.name, requested, request, context, turn))
            if turn.is_over():
                await turn.next()
        topics.append(TopicResult(name=topic.name, partitions=results))
    return ListOffsetsResponse(topics=topics)


async def _result(
    topic: str, requested: Requested, request: ListOffsetsRequest, context: LogContext, turn: TimeSlice
) -> Result:
    try:
        if not context.may(Operation.DESCRIBE, topic):
            raise TopicAuthorizationFailed(f"Not authorized to describe topic {topic}.")
        if (
            context.api_version < _SINCE_VERSION.get(requested.timestamp, 0)
            or requested.timestamp < EARLIEST_PENDING_UPLOAD
        ):
            raise UnsupportedVersion(f"Timestamp {requested.timestamp} is not supported in this version.")
        partition = context.broker.partitions.get(topic, requested.partition_index)
        partition.role.check_epoch(requested.current_leader_epoch)
        end_offset = _end_offset(partition, requested.timestamp, request, context)
        timestamp, offset = await _look_up(partition, requested.timestamp, end_offset, turn)
        if offset == NO_OFFSET and requested.timestamp >= 0 and request.replica_id < 0:
            _check_known(partition, context)
    except KafkaError as error:
        return Result(partition_index=requested.partition_index, error_code=int(error.code))
    return Result(
        partition_index=requested.partition_index,
        timestamp=timestamp,
        offset=offset,
        leader_epoch=_epoch_at(offset, partition),
    )


def _epoch_at(offset: int, partition: Partition) -> int:
    """The log end offset belongs to the current leader epoch, even if that has no records yet."""
    if offset == NO_OFFSET:
        return NO_EPOCH
    log = partition.log
    return partition.role.leader_epoch if offset >= log.end_offset else log.epochs.epoch_at(offset)


def _end_offset(partition: Partition, timestamp: int, request: ListOffsetsRequest, context: LogContext) -> int:
    """The end offset visible to this client; followers see the whole log."""
    if request.replica_id >= 0:
        return partition.log.end_offset
    if timestamp in (LATEST, MAX_TIMESTAMP):
        _check_known(partition, context)
    return partition.last_stable_offset if request.isolation_level == READ_COMMITTED else partition.high_watermark


def _check_known(partition: Partition, context: LogContext) -> None:
    """A new leader learns its predecessor's high watermark late; until then offsets could go backwards for clients."""
    if partition.role.leading is not None and not partition.role.leading.machine.has_reached_epoch_start:
        raise OffsetNotAvailable if context.api_version >= NOT_AVAILABLE_FROM else LeaderNotAvailable


async def _look_up(partition: Partition, timestamp: int, end_offset: int, turn: TimeSlice) -> Found:
    log = partition.log
    if timestamp == LATEST:
        return NO_TIMESTAMP, end_offset
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return NO_TIMESTAMP, log.start_offset
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return NO_TIMESTAMP, NO_OFFSET  # there is no remote storage
    if timestamp == MAX_TIMESTAMP:
        timestamp = log.newest_timestamp
    found = await _search(log, timestamp, turn) if timestamp >= 0 else None
    if found is None or found[1] >= end_offset:
        return NO_TIMESTAMP, NO_OFFSET
    return found


async def _search(log: Log, timestamp: int, turn: TimeSlice) -> Found | None:
    """Find the first record at or after the timestamp. A header's max timestamp may be too high: try the next batch."""
    offset = log.start_offset
    while (batch := log.batch_for_timestamp(timestamp, offset)) is not None:
        try:
            for record in iterate_records(batch, output_bytes_max=INFLATED_BYTES_MAX):
                if record.timestamp >= timestamp and record.offset >= offset:
                    return record.timestamp, record.offset
                if turn.is_over():
                    await turn.next()
        except MessageTooLarge:
            return timestamp, max(offset, read_header(batch).base_offset)  # too early beats a long decompression
        offset = read_header(batch).next_offset
        if turn.is_over():
            await turn.next()
    return None


def error_response(request: ListOffsetsRequest, error: KafkaError, version: int) -> ListOffsetsResponse:  # noqa: ARG001
    """Return the same error for every partition."""
    topics = [
        TopicResult(
            name=topic.name,
            partitions=[
                Result(partition_index=requested.partition_index, error_code=int(error.code))
                for requested in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return ListOffsetsResponse(topics=topics)

"""Follower fetch, leader side: read up to the log end; the fetch offset counts towards the high watermark."""

from itertools import islice
from typing import Final

from moldau.broker.access import CLUSTER, Operation
from moldau.broker.fetch.contexts import FollowerFetchContext, FollowerFetchHost
from moldau.broker.fetch.replica_sessions import ReplicaFetchSession, SessionPartition
from moldau.broker.partitions.partition import Partition
from moldau.broker.runtime.time_slice import ALONE, TimeSlice
from moldau.machines.replication import find_divergence
from moldau.model.errors import (
    ErrorCode,
    FencedLeaderEpoch,
    KafkaError,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    UnknownTopicId,
    UnsupportedVersion,
)
from moldau.model.ids import NO_EPOCH, NO_OFFSET, TopicId
from moldau.model.ports import Executor, FileSlice
from moldau.model.protocol import FETCH_REPLICA_STATE_FROM, NO_FETCH_SESSION
from moldau.wire.messages import FetchRequest, FetchResponse

WAIT_MS_MAX: Final = 30_000
PARTITIONS_AT_ONCE: Final = 128  # without yielding in between
WAITING_WEIGHT: Final = ALONE // 2  # two at most: one that waits, and one that ends its wait

PartitionResult = FetchResponse.PartitionData
TopicResult = FetchResponse.FetchableTopicResponse
Results = dict[SessionPartition, PartitionResult]


def replica_of(request: FetchRequest) -> int:
    """The broker that fetches as a follower, -1 for a consumer."""
    state = request.replica_state
    return request.replica_id if state is None else state.replica_id


class FollowerRead:
    """The result of one pass over the partitions with news."""

    __slots__ = ("bytes", "is_urgent", "left_bytes", "results")

    def __init__(self, max_bytes: int) -> None:
        self.results: Results = {}
        self.bytes = 0
        self.left_bytes = max_bytes
        self.is_urgent = False  # an error or a divergence: do not delay the response


async def handle(request: FetchRequest, context: FollowerFetchContext) -> FetchResponse:
    """Respond at once if there is news, otherwise when there is, or at the follower's max wait."""
    if not context.is_allowed(Operation.CLUSTER_ACTION, CLUSTER):
        return _unauthorized(request)
    session = _open_session(request, context)
    try:
        reading = await _read(session, request.max_bytes, context)
        if should_wait(session, reading, request.max_wait_ms, request.min_bytes):
            reading = await _wait(session, request, reading, context)
        if not is_warm(reading):
            await warm(reading, context.broker.executor)
        return response(session.session_id, group_by_topic(reading))
    finally:
        if session.session_id == NO_FETCH_SESSION:
            session.end()


def _open_session(request: FetchRequest, context: FollowerFetchContext) -> ReplicaFetchSession:
    broker = context.broker
    if context.api_version < FETCH_REPLICA_STATE_FROM:
        raise UnsupportedVersion(f"A follower must use Fetch version {FETCH_REPLICA_STATE_FROM} or later.")
    replica = replica_of(request)
    if replica == broker.node_id or replica not in broker.partitions.image.brokers:
        raise NotLeaderOrFollower(f"Broker {replica} is not registered.")
    session = broker.replica_sessions.begin(request, replica)
    session.broker_epoch = NO_EPOCH if request.replica_state is None else request.replica_state.replica_epoch
    session.fetched_ms = context.started_ms
    session.forget(request.forgotten_topics_data)
    session.update(request.topics, lambda topic_id, index: _find(topic_id, index, context))
    if session.fetch_requested_by:
        session.notify_leadership_checks()
    return session


def _find(topic_id: bytes, index: int, context: FollowerFetchContext) -> Partition | None:
    partitions = context.broker.partitions
    topic = partitions.image.topics_by_id.get(TopicId(topic_id))
    return None if topic is None else partitions.find(topic.name, index)


def _unauthorized(request: FetchRequest) -> FetchResponse:
    """As in Kafka, each topic is rejected on its own."""
    code = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    return FetchResponse(
        responses=[
            TopicResult(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=[
                    PartitionResult(
                        partition_index=each.partition, error_code=code, high_watermark=NO_OFFSET, records=b""
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def should_wait(session: ReplicaFetchSession, reading: FollowerRead, max_wait_ms: int, min_bytes: int) -> bool:
    """Whether the response is delayed: there is too little to send, and nothing that must be sent at once."""
    return reading.bytes < min_bytes and max_wait_ms > 0 and not reading.is_urgent and not session.fetch_requested_by


def restore_ready(session: ReplicaFetchSession, reading: FollowerRead) -> None:
    """Too few bytes to respond: mark the partitions as ready again."""
    for followed in reading.results:
        followed.sent_high_watermark = followed.sent_offset = NO_OFFSET
        session.ready[followed] = None


async def _wait(
    session: ReplicaFetchSession, request: FetchRequest, reading: FollowerRead, context: FollowerFetchContext
) -> FollowerRead:
    restore_ready(session, reading)
    context.weight = WAITING_WEIGHT
    epoch = session.epoch
    wait_ms = min(request.max_wait_ms, WAIT_MS_MAX)
    await session.wait(request.min_bytes - reading.bytes, wait_ms, has_news=bool(reading.results))
    if session.epoch != epoch:  # the follower has sent another fetch, whose response covers everything
        return FollowerRead(0)
    return await _read(session, request.max_bytes, context)


def read_ready(session: ReplicaFetchSession, max_bytes: int, broker: FollowerFetchHost) -> FollowerRead:
    """Read partitions with news, until the response is full or large; the rest goes with the next one."""
    reading = FollowerRead(max_bytes)
    for followed in list(islice(session.ready, PARTITIONS_AT_ONCE)):
        if reading.left_bytes <= 0 and reading.bytes:
            break
        result = _read_one(followed, reading, broker)
        if result is not None:
            reading.results[followed] = result
    return reading


async def _read(session: ReplicaFetchSession, max_bytes: int, context: FollowerFetchContext) -> FollowerRead:
    """Read every partition with news, until the response is full; the rest is read first the next time."""
    reading = FollowerRead(max_bytes)
    turn = TimeSlice(context)
    epoch = session.epoch
    for followed in list(session.ready):
        if followed not in session.ready:  # forgotten while other work ran
            continue
        if reading.left_bytes <= 0 and reading.bytes:
            break
        result = _read_one(followed, reading, context.broker)
        if result is not None:
            reading.results[followed] = result
        if turn.is_over():
            await turn.next()
            if session.epoch != epoch:
                break
    return reading


def _read_one(followed: SessionPartition, reading: FollowerRead, broker: FollowerFetchHost) -> PartitionResult | None:
    """The response for one partition; None if there is no news."""
    session = followed.session
    del session.ready[followed]
    partition = followed.partition
    try:
        _check(followed, partition, broker)
        assert partition is not None
        return _read_partition(followed, partition, reading, broker)
    except KafkaError as error:
        reading.is_urgent = True
        broker.traffic.failed_fetches += 1
        followed.sent_high_watermark = NO_OFFSET
        return PartitionResult(
            partition_index=followed.key[1],
            error_code=int(error.code),
            high_watermark=NO_OFFSET,
            log_start_offset=partition.log.start_offset if isinstance(error, OffsetOutOfRange) and partition else -1,
            records=b"",
        )


def _check(followed: SessionPartition, partition: Partition | None, broker: FollowerFetchHost) -> None:
    if partition is None:
        image = broker.partitions.image
        if TopicId(followed.key[0]) not in image.topics_by_id:
            raise UnknownTopicId("Unknown topic id.")
        raise NotLeaderOrFollower("This broker has no replica of the partition.")
    if partition.topic_id != followed.key[0] or not partition.role.is_leader:
        raise NotLeaderOrFollower(f"This broker does not lead {partition.name}.")
    if followed.leader_epoch == NO_EPOCH:
        raise FencedLeaderEpoch("A follower must send its leader epoch.")
    partition.role.check_epoch(followed.leader_epoch)
    if partition.role.leading is None:
        raise NotLeaderOrFollower(f"{partition.name} has only one replica.")


def _read_partition(
    followed: SessionPartition, partition: Partition, reading: FollowerRead, broker: FollowerFetchHost
) -> PartitionResult | None:
    log, leading, offset = partition.log, partition.role.leading, followed.offset
    assert leading is not None
    if not followed.is_counted:
        diverging = find_divergence(log, followed.last_fetched_epoch, offset)
        if diverging is not None:
            reading.is_urgent = True
            return _diverging(followed, partition, *diverging)
        if not log.start_offset <= offset <= log.end_offset:
            raise OffsetOutOfRange(f"{partition.name} has offsets {log.start_offset} to {log.end_offset}.")
        leading.fetched(followed)
    records: FileSlice | None = None
    if offset >= log.end_offset:
        followed.was_at_end = True
    else:
        delay_ms = broker.replicas.throttles.leader_delay_ms(followed, leading)
        if delay_ms > 0:
            followed.session.hold_back(followed, delay_ms)
        else:
            records = _slice(followed, partition, reading)
            broker.replicas.throttles.sent(followed, leading, 0 if records is None else records.length)
    return _result(followed, partition, records)


def _slice(followed: SessionPartition, partition: Partition, reading: FollowerRead) -> FileSlice | None:
    max_bytes = max(0, min(followed.max_bytes, reading.left_bytes))
    end_offset = partition.log.end_offset
    records = partition.read(followed.offset, max_bytes, end_offset, at_least_one=not reading.bytes)
    if records is None:
        followed.session.ready[followed] = None  # there was no room for it
        return None
    if followed.sent_offset == followed.offset:
        partition.corruption.check_batch(partition.log, followed.offset)  # it was sent this batch and fetches it again
    followed.sent_offset = followed.offset
    reading.bytes += records.length
    reading.left_bytes -= records.length
    partition.traffic.replication_bytes_out += records.length
    return records


def _result(followed: SessionPartition, partition: Partition, records: FileSlice | None) -> PartitionResult | None:
    high_watermark, start_offset = partition.high_watermark, partition.log.start_offset
    if records is None and (followed.sent_high_watermark, followed.sent_start_offset) == (high_watermark, start_offset):
        return None
    followed.sent_high_watermark = high_watermark
    followed.sent_start_offset = start_offset
    return PartitionResult(
        partition_index=followed.key[1],
        high_watermark=high_watermark,
        log_start_offset=start_offset,
        records=b"" if records is None else records,
    )


def _diverging(followed: SessionPartition, partition: Partition, epoch: int, end_offset: int) -> PartitionResult:
    followed.sent_high_watermark = NO_OFFSET
    return PartitionResult(
        partition_index=followed.key[1],
        high_watermark=partition.high_watermark,
        log_start_offset=partition.log.start_offset,
        diverging_epoch=FetchResponse.EpochEndOffset(epoch=epoch, end_offset=end_offset),
        records=b"",
    )


def is_warm(reading: FollowerRead) -> bool:
    """Whether everything is in the page cache, as recent writes are: a send must not block on the disk."""
    return all(
        followed.was_at_end
        or not isinstance(records := result.records, FileSlice)
        or records.file.is_cached(records.length, records.position)
        for followed, result in reading.results.items()
    )


async def warm(reading: FollowerRead, executor: Executor) -> None:
    """Read what is not in the page cache in the executor first."""
    for result in reading.results.values():
        records = result.records
        if isinstance(records, FileSlice) and not records.file.is_cached(records.length, records.position):
            await executor.run(records.read)


def group_by_topic(reading: FollowerRead) -> dict[bytes, list[PartitionResult]]:
    """The responses by topic."""
    topics: dict[bytes, list[PartitionResult]] = {}
    for followed, result in reading.results.items():
        topics.setdefault(followed.key[0], []).append(result)
    return topics


def response(session_id: int, topics: dict[bytes, list[PartitionResult]]) -> FetchResponse:
    return FetchResponse(
        session_id=session_id,
        responses=[TopicResult(topic_id=topic_id, partitions=results) for topic_id, results in topics.items()],
    )

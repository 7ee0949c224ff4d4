"""Fetch: batches from an offset on, straight from the log's files; waits a little when there is nothing yet."""

import asyncio
from typing import Any, Final

from moldau.broker.access import Operation
from moldau.broker.fetch import follower_fetch
from moldau.broker.fetch.metadata_fetch import fetch_metadata
from moldau.broker.fetch.replica_selector import select_preferred_replica
from moldau.broker.fetch.sessions import Fetching, Key, Wanted
from moldau.broker.partitions.partition import Partition
from moldau.broker.partitions.waiters import DelayedFetch
from moldau.broker.requests.context import RequestContext
from moldau.broker.requests.leader_hints import FETCH_FROM, LeaderHints
from moldau.broker.runtime.time_slice import ALONE, TimeSlice
from moldau.model.errors import (
    ErrorCode,
    KafkaError,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    TopicAuthorizationFailed,
    UnknownTopicId,
)
from moldau.model.ids import NO_EPOCH, NO_OFFSET, TopicId
from moldau.model.ports import FileSlice
from moldau.model.units import SECOND_MS, KiB
from moldau.wire.messages import FetchRequest, FetchResponse

READ_COMMITTED: Final = 1
TOPIC_IDS_FROM: Final = 13
SESSIONS_FROM: Final = 7
FOLLOWERS_FROM: Final = 11  # from here on consumers know that they may be sent to a follower, and may ask one
PROBED_AT_ONE_PLACE_BYTES: Final = 64 * KiB  # the kernel reads ahead, so a short slice is there as a whole or not
WAIT_MS_MAX: Final = 300_000
PARTITIONS_PER_WEIGHT: Final = 64  # a fetch that waits on many is heavy to carry
SURE_MS_MAX: Final = 1.0 * SECOND_MS  # so long may it take to find out whether this broker still leads

PartitionAnswer = FetchResponse.PartitionData
TopicAnswer = FetchResponse.FetchableTopicResponse
Aborted = FetchResponse.AbortedTransaction


class _Reading:
    """What one pass over the wanted partitions found."""

    __slots__ = ("answers", "beyond", "bytes", "has_error", "partitions", "was_interrupted")

    def __init__(self) -> None:
        self.answers: dict[Key, Any] = {}
        self.beyond: dict[Key, Partition] = {}  # those of which more is wanted than there is
        self.bytes = 0
        self.has_error = False
        self.partitions: list[Partition] = []
        self.was_interrupted = False

    def lacks(self, min_bytes: int) -> bool:
        """Whether there is too little to answer with, and something to wait for."""
        return self.bytes < min_bytes and not self.has_error and bool(self.partitions)

    def has_missed_something(self) -> bool:
        """Whether a partition has grown since it was read; without a pause between them none can have."""
        return self.was_interrupted and any(
            partition.high_watermark != answer.high_watermark
            for partition, answer in zip(self.partitions, self.answers.values(), strict=True)
        )


async def handle(request: FetchRequest, context: RequestContext) -> FetchResponse:
    """Answers at once when there is enough, an error, or no wish to wait; otherwise when enough has come."""
    if context.is_from_controllers:
        return await fetch_metadata(request, context)
    if follower_fetch.replica_of(request) >= 0:
        return await follower_fetch.handle(request, context)
    sessions = context.broker.fetch_sessions
    fetching = sessions.begin(request, uses_topic_ids=context.api_version >= TOPIC_IDS_FROM, now_ms=context.started_ms)
    reading = await _read(request, fetching, context)
    if request.max_wait_ms > 0 and reading.lacks(request.min_bytes):
        reading = await _wait_for_more(request, fetching, context, reading)
    if reading.beyond:
        await _make_sure(reading, fetching, context)
    for answer in reading.answers.values():
        if isinstance(answer.records, FileSlice) and not _is_at_hand(answer.records):
            await context.broker.executor.run(answer.records.read)
    return _response(fetching, reading, context)


async def _wait_for_more(
    request: FetchRequest, fetching: Fetching, context: RequestContext, reading: _Reading
) -> _Reading:
    """Until enough has come, or the time is up."""
    context.weight = min(ALONE, 1 + len(reading.partitions) // PARTITIONS_PER_WEIGHT)
    clock = context.broker.clock
    deadline_ms = clock.monotonic_ms() + min(request.max_wait_ms, WAIT_MS_MAX)
    while True:
        wait = DelayedFetch(request.min_bytes - reading.bytes)
        if _is_held_back(request, reading):
            wait = DelayedFetch(1)  # the marker that ends a transaction is small, and sets free all that came before
        wait.watch(reading.partitions)
        if reading.has_missed_something():
            wait.wake()
        with fetching.waits(wait):
            await wait.for_at_most(deadline_ms - clock.monotonic_ms())
        reading = await _read(request, fetching, context)
        # What came may belong to an open transaction: whoever reads what is committed has nothing of it yet.
        is_enough = request.isolation_level != READ_COMMITTED or not reading.lacks(request.min_bytes)
        if is_enough or wait.was_disturbed or clock.monotonic_ms() >= deadline_ms:
            return reading


def _is_held_back(request: FetchRequest, reading: _Reading) -> bool:
    """Whether there may be enough already, but a transaction that is open keeps it from being read."""
    return request.isolation_level == READ_COMMITTED and any(
        answer.last_stable_offset < answer.high_watermark for answer in reading.answers.values()
    )


async def _make_sure(reading: _Reading, fetching: Fetching, context: RequestContext) -> None:
    """Whoever wants more than there is may have read it from another leader, of which this broker has not heard.

    Told that its offset is out of range, a consumer would begin anew somewhere else. It is told so only if it is sure.
    """
    questions = {key: _question(fetching.wanted[key], each, context) for key, each in reading.beyond.items()}
    for key, question in questions.items():
        is_sure = question if isinstance(question, bool) else await question
        if not is_sure:
            error = NotLeaderOrFollower(f"Another broker may lead {reading.beyond[key].name}, and have more of it.")
            reading.answers[key] = _refused(fetching.wanted[key], error, context)


def _question(wanted: Wanted, partition: Partition, context: RequestContext) -> asyncio.Future[bool] | bool:
    """Whether what is here is all there is. A follower lags; whoever knows of epochs asks the leader next."""
    leading = partition.leading
    if leading is None:
        return partition.is_leader or wanted.leader_epoch != NO_EPOCH
    if leading.machine.is_under_min_isr:  # whoever may lead instead need not follow
        return context.broker.controller.is_in_touch
    return leading.questions.ask(SURE_MS_MAX)


def _is_at_hand(records: FileSlice) -> bool:
    """Whether sending the slice will find it in the page cache; a send must not wait for the disk."""
    probed_bytes = 1 if records.length < PROBED_AT_ONE_PLACE_BYTES else records.length
    return records.file.is_cached(probed_bytes, records.position)


async def _read(request: FetchRequest, fetching: Fetching, context: RequestContext) -> _Reading:
    reading = _Reading()
    left_bytes = min(request.max_bytes, context.broker.settings.fetch_max_bytes)
    turn = TimeSlice(context) if len(fetching.wanted) > PARTITIONS_PER_WEIGHT else None
    for key, wanted in fetching.wanted.items():
        answer = _read_one(request, key, wanted, context, reading, left_bytes)
        left_bytes -= len(answer.records)
        reading.answers[key] = answer
        if turn is not None and turn.is_over():
            reading.was_interrupted = True
            await turn.next()
    return reading


def _read_one(
    request: FetchRequest, key: Key, wanted: Wanted, context: RequestContext, reading: _Reading, left_bytes: int
) -> Any:
    try:
        partition = _find(wanted, context)
        partition.check_epoch(wanted.leader_epoch)
        preferred = select_preferred_replica(request, wanted.offset, partition, context)
        if preferred is not None:
            reading.has_error = True  # so it is not held back
            return _elsewhere(wanted, partition, preferred)
        answer = _read_partition(request, key, wanted, partition, reading, left_bytes)
    except KafkaError as error:
        reading.has_error = True
        traffic = context.broker.traffic
        traffic.failed_fetches += 1
        context.broker.partitions.traffic.get(wanted.topic, traffic).fetches += 1
        return _refused(wanted, error, context)
    reading.partitions.append(partition)
    return answer


def _find(wanted: Wanted, context: RequestContext) -> Partition:
    name = wanted.topic
    if not name:
        topic = context.broker.image.topics_by_id.get(TopicId(wanted.topic_id))
        if topic is None:
            raise UnknownTopicId("There is no topic with this id.")
        name = topic.name
    if not context.may(Operation.READ, name):
        raise TopicAuthorizationFailed
    partitions = context.broker.partitions
    if context.api_version < FOLLOWERS_FROM:
        return partitions.get(name, wanted.index)
    return partitions.get_replica(name, wanted.index, wanted.topic_id)


def _read_partition(
    request: FetchRequest, key: Key, wanted: Wanted, partition: Partition, reading: _Reading, left_bytes: int
) -> Any:
    log = partition.log
    offset = wanted.offset
    high_watermark = partition.high_watermark
    last_stable_offset = partition.last_stable_offset
    is_committed_only = request.isolation_level == READ_COMMITTED
    until_offset = last_stable_offset if is_committed_only else high_watermark
    if not log.start_offset <= offset <= log.end_offset:
        if offset > log.end_offset:
            reading.beyond[key] = partition
        raise OffsetOutOfRange(f"{partition.name} holds offsets {log.start_offset} to {high_watermark}.")
    records: FileSlice | None = None
    if offset < until_offset and (left_bytes > 0 or not reading.bytes):
        max_bytes = max(0, min(wanted.max_bytes, left_bytes))
        records = partition.read(offset, max_bytes, until_offset, at_least_one=not reading.bytes)
    traffic = partition.traffic
    traffic.fetches += 1
    if records is not None:
        reading.bytes += records.length
        traffic.bytes_out += records.length
    aborted = None
    if is_committed_only:
        aborted = [] if records is None else _aborted(partition, records, offset, until_offset)
    return PartitionAnswer(
        partition_index=wanted.index,
        high_watermark=high_watermark,
        last_stable_offset=last_stable_offset,
        log_start_offset=log.start_offset,
        aborted_transactions=aborted,
        records=b"" if records is None else records,
    )


def _aborted(partition: Partition, records: FileSlice, offset: int, until_offset: int) -> list[Any]:
    return [
        Aborted(producer_id=each.producer_id, first_offset=each.first_offset)
        for each in partition.log.aborted_in(records, offset, until_offset)
    ]


def _elsewhere(wanted: Wanted, partition: Partition, replica: int) -> Any:
    return PartitionAnswer(
        partition_index=wanted.index,
        high_watermark=partition.high_watermark,
        last_stable_offset=partition.last_stable_offset,
        log_start_offset=partition.log.start_offset,
        preferred_read_replica=replica,
        records=b"",
    )


def _refused(wanted: Wanted, error: KafkaError, context: RequestContext) -> Any:
    answer = PartitionAnswer(
        partition_index=wanted.index,
        error_code=int(error.code),
        high_watermark=NO_OFFSET,
        last_stable_offset=NO_OFFSET,
        log_start_offset=NO_OFFSET,
        records=b"",
    )
    if context.api_version >= FETCH_FROM:
        if context.leader_hints is None:
            context.leader_hints = LeaderHints(context.broker.partitions, context.listener, FetchResponse)
        name = wanted.topic or context.broker.image.topic_name(wanted.topic_id) or ""
        context.leader_hints.mark(answer, name, wanted.index, error)
    return answer


def _response(fetching: Fetching, reading: _Reading, context: RequestContext) -> FetchResponse:
    topics: dict[str | bytes, list[Any]] = {}
    responses = []
    for key, answer in reading.answers.items():
        wanted = fetching.wanted[key]
        if not fetching.is_worth_telling(key, wanted, answer):
            continue
        partitions = topics.get(key[0])
        if partitions is None:
            partitions = topics[key[0]] = []
            responses.append(TopicAnswer(topic=wanted.topic, topic_id=wanted.topic_id, partitions=partitions))
        partitions.append(answer)
    endpoints = () if context.leader_hints is None else list(context.leader_hints.endpoints.values())
    return FetchResponse(session_id=fetching.session_id, responses=responses, node_endpoints=endpoints)


def refuse(request: FetchRequest, error: KafkaError, version: int) -> FetchResponse:
    """The whole fetch failed: its session is unknown, or out of step, or whoever asks may not."""
    code = int(error.code or ErrorCode.UNKNOWN_SERVER_ERROR)
    if version >= SESSIONS_FROM:
        return FetchResponse(error_code=code, responses=[])
    topics = [
        TopicAnswer(
            topic=topic.topic,
            partitions=[
                PartitionAnswer(partition_index=each.partition, error_code=code, high_watermark=NO_OFFSET, records=b"")
                for each in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return FetchResponse(responses=topics)

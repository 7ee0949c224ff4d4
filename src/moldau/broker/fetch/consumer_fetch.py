"""Fetch for consumers: read batches from an offset on, straight from the log's files; wait if there are too few."""

import asyncio
from typing import Final

from moldau.broker.access import Operation
from moldau.broker.fetch.cold_reads import is_ready, prepare
from moldau.broker.fetch.contexts import ConsumerFetchContext
from moldau.broker.fetch.replica_selector import may_redirect, select_preferred_replica
from moldau.broker.fetch.sessions import CachedPartition, FetchContext
from moldau.broker.partitions.partition import Partition
from moldau.broker.partitions.waiters import DelayedFetch
from moldau.broker.requests.leader_hints import LeaderHints
from moldau.broker.runtime.time_slice import ALONE, TimeSlice
from moldau.model.errors import (
    KafkaError,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    StorageFailed,
    TopicAuthorizationFailed,
    UnknownTopicId,
)
from moldau.model.ids import NO_EPOCH, NO_OFFSET, TopicId
from moldau.model.ports import FileSlice
from moldau.model.protocol import (
    FETCH_FROM_FOLLOWERS_FROM,
    FETCH_LEADER_HINTS_FROM,
    FETCH_TOPIC_IDS_FROM,
    READ_COMMITTED,
)
from moldau.model.units import SECOND_MS
from moldau.storage.aborted_transactions import UnverifiedTransactionIndex
from moldau.storage.segment import Segment
from moldau.wire.messages import FetchRequest, FetchResponse

PREPARE_ATTEMPTS: Final = 5  # each finds another corrupt range
VERIFY_ATTEMPTS: Final = 5  # each verifies the transaction index of another segment
WAIT_MS_MAX: Final = 300_000
PARTITIONS_PER_WEIGHT: Final = 64  # a fetch that waits on many partitions weighs more
LEADERSHIP_CHECK_MS_MAX: Final = 1.0 * SECOND_MS  # limit of the leadership check

PartitionResult = FetchResponse.PartitionData
TopicResult = FetchResponse.FetchableTopicResponse
Aborted = FetchResponse.AbortedTransaction


class _ReadResult:
    """The result of one pass over the requested partitions."""

    __slots__ = ("beyond_end", "bytes", "has_error", "partitions", "results", "unverified", "was_interrupted")

    def __init__(self) -> None:
        self.results: dict[CachedPartition, PartitionResult] = {}
        self.beyond_end: dict[CachedPartition, Partition] = {}  # whose fetch offset is beyond the log end offset
        self.bytes = 0
        self.has_error = False
        self.partitions: list[Partition] = []
        self.unverified: tuple[tuple[Partition, Segment], ...] = ()  # transaction indexes to verify first
        self.was_interrupted = False

    def needs_more(self, min_bytes: int) -> bool:
        """Whether the response is too small, and nothing in it is urgent."""
        return self.bytes < min_bytes and not self.has_error

    def has_missed_growth(self) -> bool:
        """Whether a partition has grown since it was read, which takes an await in between."""
        return self.was_interrupted and any(
            partition.high_watermark != result.high_watermark
            for partition, result in zip(self.partitions, self.results.values(), strict=True)
        )


async def handle(request: FetchRequest, context: ConsumerFetchContext) -> FetchResponse:
    """Respond at once if there are enough bytes, an error, or no wait time; otherwise once enough bytes arrive."""
    sessions = context.broker.fetch_sessions
    usage = context.usage
    if usage is not None:
        request.max_bytes = min(request.max_bytes, usage.fetch_bytes_max())
        request.min_bytes = min(request.min_bytes, request.max_bytes)
        if not request.session_id and usage.must_pause():
            return FetchResponse(responses=[])
    fetch_context = sessions.begin(
        request, uses_topic_ids=context.api_version >= FETCH_TOPIC_IDS_FROM, now_ms=context.started_ms
    )
    if usage is not None and request.session_id and usage.must_pause():
        return FetchResponse(session_id=fetch_context.session_id, responses=[])
    session = fetch_context.session
    if session is None:
        return await _fetch(request, fetch_context, context)
    session.authorized_by(_authorization(context))
    try:
        return await _fetch(request, fetch_context, context)
    except BaseException:
        session.read_all()  # what was read is not sent
        raise


def _authorization(context: ConsumerFetchContext) -> object:
    """The inputs of the authorization of topics; None if each fetch must decide, because it is audited."""
    broker = context.broker
    if broker.allows_all:
        return True
    if broker.audit_log.records_allowed:
        return None
    return context.principal, context.peer, broker.authorizer.generation


async def _fetch(request: FetchRequest, fetch_context: FetchContext, context: ConsumerFetchContext) -> FetchResponse:
    read = await _read(request, fetch_context, context)
    if request.max_wait_ms > 0 and read.needs_more(request.min_bytes) and not fetch_context.is_empty:
        read = await _wait_for_more(request, fetch_context, context, read)
    if read.beyond_end:
        await _check_leadership(read, context)
    for wanted, result in read.results.items():
        if isinstance(result.records, FileSlice) and not is_ready(result.records):
            read.results[wanted] = await _prepare(request, wanted, context, result)
    if context.usage is not None:
        context.usage.fetched(read.bytes)
    return _response(request, fetch_context, read, context)


async def _wait_for_more(
    request: FetchRequest, fetch_context: FetchContext, context: ConsumerFetchContext, read: _ReadResult
) -> _ReadResult:
    """Wait until enough bytes have arrived, or until the deadline."""
    context.weight = min(ALONE, 1 + len(read.partitions) // PARTITIONS_PER_WEIGHT)
    clock = context.broker.clock
    deadline_ms = clock.monotonic_ms() + min(request.max_wait_ms, WAIT_MS_MAX)
    while True:
        wait = DelayedFetch(request.min_bytes - read.bytes)
        if _is_blocked_by_transaction(request, read):
            wait = DelayedFetch(1)  # a small transaction marker can release everything before it
        if fetch_context.session is None:
            wait.watch(each.waiters for each in read.partitions)
            if read.has_missed_growth():
                wait.wake()
        with fetch_context.register_wait(wait):
            await wait.wait_at_most(deadline_ms - clock.monotonic_ms())
        fetch_context.restore(read.results)
        read = await _read(request, fetch_context, context)
        # The new records may belong to an open transaction, which a read_committed consumer must not see yet.
        is_enough = request.isolation_level != READ_COMMITTED or not read.needs_more(request.min_bytes)
        if is_enough or wait.was_disturbed or clock.monotonic_ms() >= deadline_ms:
            return read


def _is_blocked_by_transaction(request: FetchRequest, read: _ReadResult) -> bool:
    """Whether enough bytes may be there already, hidden from read_committed by an open transaction."""
    return request.isolation_level == READ_COMMITTED and any(
        result.last_stable_offset < result.high_watermark for result in read.results.values()
    )


async def _check_leadership(read: _ReadResult, context: ConsumerFetchContext) -> None:
    """Check the leadership before responding OFFSET_OUT_OF_RANGE to a fetch beyond the log end offset.

    The consumer may have read those offsets from a newer leader that this broker does not know of yet, and would reset
    its position on that error. Unless the leadership is confirmed, respond NOT_LEADER_OR_FOLLOWER instead.
    """
    checks = {wanted: _confirm_leadership(wanted, each, context) for wanted, each in read.beyond_end.items()}
    for wanted, check in checks.items():
        is_leader = check if isinstance(check, bool) else await check
        if not is_leader:
            name = read.beyond_end[wanted].name
            error = NotLeaderOrFollower(f"Another broker may lead {name} and have a longer log.")
            read.results[wanted] = _error_result(wanted, error, context)


def _confirm_leadership(
    wanted: CachedPartition, partition: Partition, context: ConsumerFetchContext
) -> asyncio.Future[bool] | bool:
    """Whether this log is complete. A follower may lag, but an epoch-aware consumer then checks with the leader."""
    leading = partition.role.leading
    if leading is None:
        return partition.role.is_leader or wanted.leader_epoch != NO_EPOCH
    if leading.machine.is_under_min_isr:  # a new leader need not be in this ISR
        return context.broker.controller.is_in_touch
    return leading.leadership_check.confirm(LEADERSHIP_CHECK_MS_MAX)


async def _prepare(
    request: FetchRequest, wanted: CachedPartition, context: ConsumerFetchContext, result: PartitionResult
) -> PartitionResult:
    """Read and verify batches before they are sent. If some are corrupt, only those before them are sent."""
    broker = context.broker
    for _ in range(PREPARE_ATTEMPTS):
        records = result.records
        if not isinstance(records, FileSlice) or is_ready(records):
            return result
        try:
            if await prepare(records, _find(wanted, context), broker.executor, broker.log_scrubber):
                return result
        except KafkaError as error:
            return _error_result(wanted, error, context)
        result = _read_one(request, wanted, context, _ReadResult(), len(records))
    return _error_result(wanted, StorageFailed("The batches could not be verified."), context)


async def _read(
    request: FetchRequest, fetch_context: FetchContext, context: ConsumerFetchContext, attempts: int = VERIFY_ATTEMPTS
) -> _ReadResult:
    read = _ReadResult()
    left_bytes = min(request.max_bytes, context.broker.settings.fetch_max_bytes)
    taken = fetch_context.take()
    turn = TimeSlice(context) if len(taken) > PARTITIONS_PER_WEIGHT else None
    for wanted in taken:
        result = _read_one(request, wanted, context, read, left_bytes)
        left_bytes -= len(result.records)
        read.results[wanted] = result
        if turn is not None and turn.is_over():
            read.was_interrupted = True
            await turn.next()
    if read.unverified and attempts:
        for partition, segment in read.unverified:
            await context.broker.log_scrubber.verify_transactions(partition, segment)
        fetch_context.restore(read.results)
        return await _read(request, fetch_context, context, attempts - 1)
    return read


def _read_one(
    request: FetchRequest,
    wanted: CachedPartition,
    context: ConsumerFetchContext,
    read: _ReadResult,
    left_bytes: int,
) -> PartitionResult:
    try:
        partition = _find(wanted, context)
        wanted.watch(partition.waiters)
        partition.role.check_epoch(wanted.leader_epoch)
        preferred = select_preferred_replica(request, wanted.offset, partition, context)
        if preferred is not None:
            read.has_error = True  # so that the response is not delayed
            return _redirect(wanted, partition, preferred)
        result = _read_partition(request, wanted, partition, read, left_bytes)
    except UnverifiedTransactionIndex as unverified:
        read.has_error = True
        read.unverified += ((partition, unverified.segment),)
        return _error_result(wanted, StorageFailed(f"{partition.name}: {unverified}."), context)
    except KafkaError as error:
        read.has_error = True
        traffic = context.broker.traffic
        traffic.failed_fetches += 1
        context.broker.partitions.traffic.get(wanted.topic, traffic).fetches += 1
        return _error_result(wanted, error, context)
    read.partitions.append(partition)
    return result


def _find(wanted: CachedPartition, context: ConsumerFetchContext) -> Partition:
    name = wanted.topic
    if not name:
        topic = context.broker.image.topics_by_id.get(TopicId(wanted.topic_id))
        if topic is None:
            raise UnknownTopicId("Unknown topic id.")
        name = topic.name
    if not context.may(Operation.READ, name):
        raise TopicAuthorizationFailed
    partitions = context.broker.partitions
    if context.api_version < FETCH_FROM_FOLLOWERS_FROM:
        return partitions.get(name, wanted.index)
    return partitions.get_replica(name, wanted.index, wanted.topic_id)


def _read_partition(
    request: FetchRequest, wanted: CachedPartition, partition: Partition, read: _ReadResult, left_bytes: int
) -> PartitionResult:
    log = partition.log
    offset = wanted.offset
    high_watermark = partition.high_watermark
    last_stable_offset = partition.last_stable_offset
    is_committed_only = request.isolation_level == READ_COMMITTED
    until_offset = last_stable_offset if is_committed_only else high_watermark
    if not log.start_offset <= offset <= log.end_offset:
        if offset > log.end_offset:
            read.beyond_end[wanted] = partition
        raise OffsetOutOfRange(f"{partition.name} has offsets {log.start_offset} to {high_watermark}.")
    records: FileSlice | None = None
    if offset < until_offset and (left_bytes > 0 or not read.bytes):
        max_bytes = max(0, min(wanted.max_bytes, left_bytes))
        records = partition.read(offset, max_bytes, until_offset, at_least_one=not read.bytes)
    aborted = None
    if is_committed_only:
        aborted = [] if records is None else _aborted(partition, records, offset, until_offset)
    traffic = partition.traffic
    traffic.fetches += 1
    if records is not None:
        read.bytes += records.length
        traffic.bytes_out += records.length
    return PartitionResult(
        partition_index=wanted.index,
        high_watermark=high_watermark,
        last_stable_offset=last_stable_offset,
        log_start_offset=log.start_offset,
        aborted_transactions=aborted,
        records=b"" if records is None else records,
    )


def _aborted(partition: Partition, records: FileSlice, offset: int, until_offset: int) -> list[Aborted]:
    return [
        Aborted(producer_id=each.producer_id, first_offset=each.first_offset)
        for each in partition.log.aborted_in(records, offset, until_offset)
    ]


def _redirect(wanted: CachedPartition, partition: Partition, replica: int) -> PartitionResult:
    return PartitionResult(
        partition_index=wanted.index,
        high_watermark=partition.high_watermark,
        last_stable_offset=partition.last_stable_offset,
        log_start_offset=partition.log.start_offset,
        preferred_read_replica=replica,
        records=b"",
    )


def _error_result(wanted: CachedPartition, error: KafkaError, context: ConsumerFetchContext) -> PartitionResult:
    result = PartitionResult(
        partition_index=wanted.index,
        error_code=int(error.code),
        high_watermark=NO_OFFSET,
        last_stable_offset=NO_OFFSET,
        log_start_offset=NO_OFFSET,
        records=b"",
    )
    if context.api_version >= FETCH_LEADER_HINTS_FROM:
        if context.leader_hints is None:
            context.leader_hints = LeaderHints(context.broker.partitions, context.listener, FetchResponse)
        name = wanted.topic or context.broker.image.topic_name(wanted.topic_id) or ""
        context.leader_hints.mark(result, name, wanted.index, error)
    return result


def _response(
    request: FetchRequest, fetch_context: FetchContext, read: _ReadResult, context: ConsumerFetchContext
) -> FetchResponse:
    topics: dict[str | bytes, list[PartitionResult]] = {}
    responses = []
    for wanted, result in read.results.items():
        if not fetch_context.must_include(wanted, result):
            continue
        topic = wanted.topic or wanted.topic_id
        partitions = topics.get(topic)
        if partitions is None:
            partitions = topics[topic] = []
            responses.append(TopicResult(topic=wanted.topic, topic_id=wanted.topic_id, partitions=partitions))
        partitions.append(result)
    fetch_context.restore(_not_idle(request, read, context))
    endpoints = () if context.leader_hints is None else list(context.leader_hints.endpoints.values())
    return FetchResponse(session_id=fetch_context.session_id, responses=responses, node_endpoints=endpoints)


def _not_idle(request: FetchRequest, read: _ReadResult, context: ConsumerFetchContext) -> list[CachedPartition]:
    """The partitions that the session's next fetch must read even without news; those with records sent come last."""
    if may_redirect(request, context):  # the positions of followers decide: they make no news
        return list(read.results)
    busy = [
        wanted for wanted, result in read.results.items() if result.error_code or wanted.offset < result.high_watermark
    ]
    return sorted(busy, key=lambda each: len(read.results[each].records) > 0)

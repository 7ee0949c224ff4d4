"""ShareFetch: acknowledge what a member of a share group has processed, and acquire more records for it (KIP-932)."""

from collections.abc import Mapping
from functools import partial
from typing import Final

from moldau.broker.access import Operation
from moldau.broker.fetch.acknowledgements import (
    PendingAcknowledgements,
    batches_of,
    member_of,
    partitions_of,
)
from moldau.broker.fetch.share_fetch import ShareFetch, ShareFetchContext, ShareFetchLimits, acquired_bytes
from moldau.broker.fetch.share_response import ResponsePartitions
from moldau.machines.groups.share.settings import ShareGroupConfig
from moldau.machines.shares.sessions import FetchedPartition
from moldau.model.errors import InvalidRequest, KafkaError
from moldau.model.ids import TopicId
from moldau.model.protocol import FINAL_SESSION_EPOCH, INITIAL_SESSION_EPOCH
from moldau.wire.messages import ShareFetchRequest, ShareFetchResponse

MAX_RECORDS_DEFAULT: Final = 500  # Kafka's default of max.poll.records
RECORD_LIMIT: Final = 1  # the share.acquire.mode of strict limits (KIP-1206)
ACQUIRE_MODES: Final = (0, RECORD_LIMIT)

PartitionResult = partial(ShareFetchResponse.PartitionData, records=b"")
TopicResult = ShareFetchResponse.ShareFetchableTopicResponse
AcquiredRecords = ShareFetchResponse.AcquiredRecords


async def handle(request: ShareFetchRequest, context: ShareFetchContext) -> ShareFetchResponse:
    """Apply the acknowledgements, acquire records, and respond when the acknowledgements are durable."""
    shares = context.broker.shares
    context.authorize_group(Operation.READ, request.group_id or "")
    member = member_of(request.group_id, request.member_id)
    _check(request)
    config = shares.config(member.group_id)
    batches = batches_of(request.topics)
    if request.share_session_epoch == INITIAL_SESSION_EPOCH and batches:
        raise InvalidRequest("The first request of a share session must not acknowledge records.")
    is_last = request.share_session_epoch == FINAL_SESSION_EPOCH
    wanted = [] if is_last else partitions_of(request.topics)
    session = shares.begin(member, request.share_session_epoch, wanted, _forgotten(request), context.connection)
    acknowledged = PendingAcknowledgements()
    fetch = ShareFetch(session, _limits(request, config, context), config, context)
    try:
        acknowledged.apply(member, batches, config, context, may_renew=request.is_renew_ack)
        if is_last:
            shares.close_session(member)
        elif not request.is_renew_ack and not (context.usage is not None and context.usage.must_pause()):
            await fetch.run()
        results = await acknowledged.results()
    finally:
        acknowledged.cancel()
    if context.usage is not None:
        context.usage.fetched(acquired_bytes(fetch.acquired))
    return _response(fetch, results, config.record_lock_duration_ms, context)


def _check(request: ShareFetchRequest) -> None:
    """Renewing locks takes its own requests: a fetch could last longer than the lock (KIP-1222)."""
    if request.share_acquire_mode not in ACQUIRE_MODES:
        raise InvalidRequest(f"Unknown share acquire mode {request.share_acquire_mode}.")
    limits = (request.max_bytes, request.min_bytes, request.max_records, request.max_wait_ms)
    if request.is_renew_ack and any(limits):
        raise InvalidRequest("A request that renews locks must not fetch: its limits must be 0.")


def _limits(request: ShareFetchRequest, config: ShareGroupConfig, context: ShareFetchContext) -> ShareFetchLimits:
    max_bytes = max(0, min(request.max_bytes, context.broker.settings.fetch_max_bytes))
    if context.usage is not None:
        max_bytes = min(max_bytes, context.usage.fetch_bytes_max())
    max_records = request.max_records if request.max_records > 0 else MAX_RECORDS_DEFAULT
    return ShareFetchLimits(
        max_wait_ms=max(0, request.max_wait_ms),
        min_bytes=min(request.min_bytes, max_bytes),
        max_bytes=max_bytes,
        max_records=max_records,
        batch_size=request.batch_size if request.batch_size > 0 else max_records,
        is_strict=config.is_record_limited or request.share_acquire_mode == RECORD_LIMIT,
    )


def _forgotten(request: ShareFetchRequest) -> list[FetchedPartition]:
    return [
        FetchedPartition(TopicId(topic.topic_id), index)
        for topic in request.forgotten_topics_data
        for index in topic.partitions
    ]


def _response(
    fetch: ShareFetch,
    results: Mapping[FetchedPartition, KafkaError | None],
    lock_duration_ms: int,
    context: ShareFetchContext,
) -> ShareFetchResponse:
    """Only the partitions with records, errors or acknowledgements are in the response."""
    partitions = ResponsePartitions(ShareFetchResponse, TopicResult, PartitionResult, context)
    for fetched, error in results.items():
        result = partitions.get(fetched)
        if error is not None:
            result.acknowledge_error_code = int(error.code)
            result.acknowledge_error_message = error.message
            partitions.hint(result, fetched, error)
    for fetched, failure in fetch.errors.items():
        partitions.fail(fetched, failure)
    for fetched, acquired in fetch.acquired.items():
        result = partitions.get(fetched)
        result.records = acquired.records
        result.acquired_records = [
            AcquiredRecords(first_offset=first, last_offset=last, delivery_count=count)
            for first, last, count in acquired.ranges
        ]
    return ShareFetchResponse(
        acquisition_lock_timeout_ms=lock_duration_ms,
        responses=partitions.topics(),
        node_endpoints=partitions.endpoints(),
    )


def error_response(request: ShareFetchRequest, error: KafkaError, version: int) -> ShareFetchResponse:  # noqa: ARG001
    """The whole request failed: the session is unknown, or the client is not authorized."""
    return ShareFetchResponse(error_code=int(error.code), error_message=error.message, responses=[])

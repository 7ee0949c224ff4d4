"""Fetch: read batches, as a consumer, a follower or a controller; `broker.fetch` has one module for each."""

from collections.abc import Coroutine
from typing import Any

from moldau.broker.fetch import consumer_fetch, follower_fetch, metadata_fetch
from moldau.broker.fetch.contexts import FetchContext
from moldau.model.errors import ErrorCode, KafkaError
from moldau.model.ids import NO_OFFSET
from moldau.model.protocol import FETCH_SESSIONS_FROM
from moldau.wire.messages import FetchRequest, FetchResponse

PartitionResult = FetchResponse.PartitionData
TopicResult = FetchResponse.FetchableTopicResponse


def handle(request: FetchRequest, context: FetchContext) -> Coroutine[Any, Any, FetchResponse]:
    if context.is_from_controllers:
        return metadata_fetch.handle(request, context)
    if follower_fetch.replica_of(request) >= 0:
        return follower_fetch.handle(request, context)
    return consumer_fetch.handle(request, context)


def error_response(request: FetchRequest, error: KafkaError, version: int) -> FetchResponse:
    """The whole fetch failed: its session is unknown or at another epoch, or the client is not authorized."""
    code = int(error.code or ErrorCode.UNKNOWN_SERVER_ERROR)
    if version >= FETCH_SESSIONS_FROM:
        return FetchResponse(error_code=code, responses=[])
    topics = [
        TopicResult(
            topic=topic.topic,
            partitions=[
                PartitionResult(partition_index=each.partition, error_code=code, high_watermark=NO_OFFSET, records=b"")
                for each in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return FetchResponse(responses=topics)

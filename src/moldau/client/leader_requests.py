"""Requests to partition leaders: usable versions, and errors in responses."""

from collections.abc import Iterator
from typing import Any, Final

from moldau.model.errors import ErrorCode
from moldau.model.ids import NO_TOPIC_ID
from moldau.model.protocol import ACKS_ALL

PRODUCE: Final = 0
FETCH: Final = 1
LIST_OFFSETS: Final = 2
DELETE_RECORDS: Final = 21
OFFSET_FOR_LEADER_EPOCH: Final = 23

# Where responses have their partitions.
_PLACES: Final = {
    PRODUCE: ("responses", "partition_responses"),
    FETCH: ("responses", "partitions"),
    LIST_OFFSETS: ("topics", "partitions"),
    DELETE_RECORDS: ("topics", "partitions"),
    OFFSET_FOR_LEADER_EPOCH: ("topics", "partitions"),
}
# A leader may fail with these after its append; the next leader may have the batch.
AFTER_APPEND: Final = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
_LAST_WITH_NAMES: Final = {PRODUCE: ("topic_data", 12), FETCH: ("topics", 12)}


def version_limit(request: Any) -> int | None:
    """Newer versions of Produce and Fetch have only topic ids: without one, limit the version."""
    if request.API_KEY not in _LAST_WITH_NAMES:
        return None
    topic_partition, version = _LAST_WITH_NAMES[request.API_KEY]
    has_ids = all(each.topic_id != NO_TOPIC_ID for each in getattr(request, topic_partition))
    return None if has_ids else version


def may_be_stored(request: Any, code: int) -> bool:
    """Return whether records rejected with this code may be appended nevertheless."""
    return request.API_KEY == PRODUCE and request.acks == ACKS_ALL and code in AFTER_APPEND


def partitions_of(response: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each (topic, partition) of a response."""
    topics, partitions = _PLACES[response.API_KEY]
    for topic in getattr(response, topics) or ():
        for partition in getattr(topic, partitions) or ():
            yield topic, partition


def first_error(response: Any) -> tuple[int, str | None]:
    """Return the first error code of a response, and the broker's message if there is one."""
    if response is None or response.API_KEY not in _PLACES:
        return ErrorCode.NONE, None
    if getattr(response, "error_code", ErrorCode.NONE) != ErrorCode.NONE:
        return response.error_code, None
    for _, partition in partitions_of(response):
        if partition.error_code != ErrorCode.NONE:
            return partition.error_code, getattr(partition, "error_message", None)
    return ErrorCode.NONE, None

"""Offsets of many partitions with one ListOffsets request per leader, for lists of topics and pages of records.

A partition without a leader, or whose leader has just changed, has no result: the pages show it as unknown.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from moldau.client.async_client import AsyncClient
from moldau.client.brokers import REQUEST_FAILURES
from moldau.client.errors import STALE_METADATA
from moldau.client.metadata import TopicView
from moldau.client.types import EARLIEST, LATEST, Isolation
from moldau.model.errors import ErrorCode
from moldau.model.ids import NodeId, TopicPartition
from moldau.wire import messages

PARTITIONS_PER_REQUEST: Final = 2_000


async def look_up_offsets(
    client: AsyncClient,
    topics: Mapping[str, TopicView],
    times: Mapping[TopicPartition, int],
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
) -> dict[TopicPartition, int]:
    """Return the offsets at these times (or EARLIEST, LATEST); -1 if no record is as new."""
    by_leader: dict[NodeId, list[TopicPartition]] = {}
    for place in times:
        view = topics.get(place.topic)
        partition = view.partition(place.partition) if view else None
        if partition is not None and partition.leader in client.metadata.brokers:
            by_leader.setdefault(partition.leader, []).append(place)
    requests = [
        _look_up_at(client, leader, chunk, times, isolation)
        for leader, places in by_leader.items()
        for chunk in _chunks(places)
    ]
    found: dict[TopicPartition, int] = {}
    for result in await asyncio.gather(*requests):
        found.update(result)
    return found


async def look_up_extents(
    client: AsyncClient,
    topics: Mapping[str, TopicView],
    places: Iterable[TopicPartition],
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
) -> dict[TopicPartition, tuple[int, int]]:
    """Return log start and end offset of the partitions that have a leader."""
    wanted = list(places)
    starts, ends = await asyncio.gather(
        look_up_offsets(client, topics, dict.fromkeys(wanted, EARLIEST), isolation),
        look_up_offsets(client, topics, dict.fromkeys(wanted, LATEST), isolation),
    )
    return {place: (starts[place], ends[place]) for place in wanted if place in starts and place in ends}


def places_of(topics: Iterable[TopicView]) -> list[TopicPartition]:
    return [TopicPartition(topic.name, each.index) for topic in topics for each in topic.partitions]


async def _look_up_at(
    client: AsyncClient,
    leader: NodeId,
    places: Sequence[TopicPartition],
    times: Mapping[TopicPartition, int],
    isolation: Isolation,
) -> dict[TopicPartition, int]:
    try:
        response = await client.send(_request(places, times, isolation), node=leader)
    except REQUEST_FAILURES:
        for topic in {each.topic for each in places}:
            client.invalidate_topic(topic, is_stale=True)
        return {}
    return dict(_offsets_in(client, response))


def _request(places: Sequence[TopicPartition], times: Mapping[TopicPartition, int], isolation: Isolation) -> Any:
    request = messages.ListOffsetsRequest
    topics: dict[str, list[Any]] = {}
    for place in places:
        part = request.ListOffsetsPartition(
            partition_index=place.partition, current_leader_epoch=-1, timestamp=times[place]
        )
        topics.setdefault(place.topic, []).append(part)
    return request(
        replica_id=-1,
        isolation_level=isolation,
        topics=[request.ListOffsetsTopic(name=name, partitions=parts) for name, parts in topics.items()],
    )


def _offsets_in(client: AsyncClient, response: Any) -> Iterator[tuple[TopicPartition, int]]:
    for topic in response.topics:
        for each in topic.partitions:
            if each.error_code == ErrorCode.NONE:
                yield TopicPartition(topic.name, each.partition_index), each.offset
            elif each.error_code in STALE_METADATA:
                client.invalidate_topic(topic.name, is_stale=True)


def _chunks(places: Sequence[TopicPartition]) -> Iterator[Sequence[TopicPartition]]:
    for first in range(0, len(places), PARTITIONS_PER_REQUEST):
        yield places[first : first + PARTITIONS_PER_REQUEST]

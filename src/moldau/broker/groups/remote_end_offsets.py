"""End offsets of partitions that this broker has no replica of, requested from their leaders."""

import asyncio
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Final

from moldau.broker.coordinators.host import PeerHost
from moldau.model.errors import ErrorCode, KafkaError
from moldau.model.ids import TopicPartition
from moldau.model.units import SECOND_MS
from moldau.wire.messages import ListOffsetsRequest, ListOffsetsResponse

if TYPE_CHECKING:
    from moldau.model.ids import Address

PARTITIONS_PER_REQUEST: Final = 2_000
TIMEOUT_MS: Final = 1 * SECOND_MS  # the metrics page must not be delayed for long
PURPOSE: Final = "lag"
_LATEST: Final = -1

Ends = dict[TopicPartition, int]


async def fetch_end_offsets(broker: PeerHost, partitions: Iterable[TopicPartition]) -> Ends:
    """Return the high watermarks from the leaders; those of leaders that do not respond in time are omitted."""
    requests = list(_requests_by_leader(broker, partitions))
    responses = await asyncio.gather(*(_list_offsets(broker, address, wanted) for address, wanted in requests))
    return {name: offset for each in responses for name, offset in each.items()}


def _requests_by_leader(
    broker: PeerHost, partitions: Iterable[TopicPartition]
) -> Iterator[tuple["Address", list[TopicPartition]]]:
    image = broker.image
    led: dict[int, list[TopicPartition]] = {}
    for name in sorted(partitions):
        found = image.partition(*name)
        if found is not None and found.leader != broker.node_id:
            led.setdefault(found.leader, []).append(name)
    for leader, led_partitions in led.items():
        registered = image.brokers.get(leader)
        address = None if registered is None else registered.address(broker.inter_broker_listener)
        if address is not None:
            for wanted in range(0, len(led_partitions), PARTITIONS_PER_REQUEST):
                yield address, led_partitions[wanted : wanted + PARTITIONS_PER_REQUEST]


async def _list_offsets(broker: PeerHost, address: "Address", partitions: list[TopicPartition]) -> Ends:
    try:
        response = await broker.peers.ask(address, _request(partitions), timeout_ms=TIMEOUT_MS, purpose=PURPOSE)
    except (OSError, KafkaError):
        return {}
    return _end_offsets(response)


def _request(partitions: list[TopicPartition]) -> ListOffsetsRequest:
    topic, partition = ListOffsetsRequest.ListOffsetsTopic, ListOffsetsRequest.ListOffsetsPartition
    return ListOffsetsRequest(
        replica_id=-1,
        topics=[
            topic(
                name=name,
                partitions=[partition(partition_index=each.partition, timestamp=_LATEST) for each in led_partitions],
            )
            for name, led_partitions in groupby(partitions, key=lambda each: each.topic)
        ],
    )


def _end_offsets(response: ListOffsetsResponse) -> Ends:
    return {
        TopicPartition(topic.name, each.partition_index): each.offset
        for topic in response.topics
        for each in topic.partitions
        if each.error_code == ErrorCode.NONE
    }

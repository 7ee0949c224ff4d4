"""Where partitions end that this broker has no replica of: nobody but their leaders can tell, so they are asked."""

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
ASK_MS: Final = 1 * SECOND_MS  # whoever reads the metrics page does not wait for long
PURPOSE: Final = "lag"
_LATEST: Final = -1

Ends = dict[TopicPartition, int]


async def ends_elsewhere(broker: PeerHost, places: Iterable[TopicPartition]) -> Ends:
    """High watermarks as leaders tell them. Those of leaders that do not answer at once are left out."""
    questions = list(_questions(broker, places))
    answers = await asyncio.gather(*(_ask(broker, address, asked) for address, asked in questions))
    return {place: offset for each in answers for place, offset in each.items()}


def _questions(broker: PeerHost, places: Iterable[TopicPartition]) -> Iterator[tuple["Address", list[TopicPartition]]]:
    image = broker.image
    led: dict[int, list[TopicPartition]] = {}
    for place in sorted(places):
        found = image.partition(*place)
        if found is not None and found.leader != broker.node_id:
            led.setdefault(found.leader, []).append(place)
    for leader, theirs in led.items():
        registered = image.brokers.get(leader)
        address = None if registered is None else registered.address(broker.inter_broker_listener)
        if address is not None:
            for asked in range(0, len(theirs), PARTITIONS_PER_REQUEST):
                yield address, theirs[asked : asked + PARTITIONS_PER_REQUEST]


async def _ask(broker: PeerHost, address: "Address", places: list[TopicPartition]) -> Ends:
    try:
        answer = await broker.peers.ask(address, _request(places), timeout_ms=ASK_MS, purpose=PURPOSE)
    except (OSError, KafkaError):
        return {}
    return _told(answer)


def _request(places: list[TopicPartition]) -> ListOffsetsRequest:
    topic, partition = ListOffsetsRequest.ListOffsetsTopic, ListOffsetsRequest.ListOffsetsPartition
    return ListOffsetsRequest(
        replica_id=-1,
        topics=[
            topic(
                name=name, partitions=[partition(partition_index=each.partition, timestamp=_LATEST) for each in theirs]
            )
            for name, theirs in groupby(places, key=lambda each: each.topic)
        ],
    )


def _told(answer: ListOffsetsResponse) -> Ends:
    return {
        TopicPartition(topic.name, each.partition_index): each.offset
        for topic in answer.topics
        for each in topic.partitions
        if each.error_code == ErrorCode.NONE
    }

"""Publishes the record of a tick to the leader of its partition, until it is appended or can never be."""

import asyncio
import logging
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final

from moldau.broker.coordinators.host import CoordinatorHost
from moldau.client.errors import RETRIABLE, check
from moldau.machines.schedules import Publication
from moldau.model.errors import (
    DuplicateSequence,
    KafkaError,
    OutOfOrderSequence,
    UnknownTopicOrPartition,
)
from moldau.model.units import SECOND_MS
from moldau.records.builder import build_batch
from moldau.wire import messages

logger = logging.getLogger(__name__)

CONNECTION: Final = "schedules"
TIMEOUT_MS: Final = 10 * SECOND_MS
RETRY_FIRST_S: Final = 0.05
RETRY_LONGEST_S: Final = 1.0
MISSING_TOPIC_S: Final = 30.0  # a topic without metadata may be new; then the tick is given up
ALL_REPLICAS: Final = -1
NAME_HEADER: Final = "moldau-schedule"
TICK_HEADER: Final = "moldau-tick"


class Outcome(Enum):
    """The result of a publication."""

    PUBLISHED = "published"
    GIVEN_UP = "given up"
    OUT_OF_ORDER = "out of order"  # the partition expects another sequence of this producer


class SchedulePublisher:
    """Retries under the same identity: the leader drops a duplicate by its producer id and sequence."""

    def __init__(self, broker: CoordinatorHost) -> None:
        self._broker = broker

    async def publish(self, publication: Publication) -> Outcome:
        retry_s, missing_s = RETRY_FIRST_S, 0.0
        while True:
            try:
                await self._produce(publication)
                return Outcome.PUBLISHED
            except DuplicateSequence:
                return Outcome.PUBLISHED
            except OutOfOrderSequence:
                return Outcome.OUT_OF_ORDER
            except UnknownTopicOrPartition as error:
                missing_s += retry_s
                if missing_s >= MISSING_TOPIC_S:
                    return _give_up(publication, error)
            except KafkaError as error:
                if error.code not in RETRIABLE:
                    return _give_up(publication, error)
            except OSError as error:
                logger.debug("schedule %s: %s, will retry", publication.schedule.name, error)
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, RETRY_LONGEST_S)

    async def _produce(self, publication: Publication) -> None:
        """Raise the error of the partition."""
        broker = self._broker
        where = broker.image.partition(publication.topic, publication.partition)
        if where is None:
            raise UnknownTopicOrPartition(f"{publication.topic}-{publication.partition} does not exist.")
        request = _request(publication, broker.image.topics[publication.topic].topic_id)
        if where.leader == broker.node_id:
            response = await broker.local.handle(request)
        else:
            registered = broker.image.brokers.get(where.leader)
            address = None if registered is None else registered.address(broker.inter_broker_listener)
            if address is None:
                raise ConnectionError(f"no leader of {publication.topic}-{publication.partition}")
            response = await broker.peers.ask(address, request, timeout_ms=TIMEOUT_MS, purpose=CONNECTION)
        check_produced(response)


def check_produced(response: Any) -> None:
    """Raise the error of the only partition of a produce response."""
    (topic,) = response.responses
    (partition,) = topic.partition_responses
    check(partition.error_code, partition.error_message)


def _batch(publication: Publication) -> memoryview:
    """One record with the time of the tick, and headers that name the schedule and the tick.

    Each attempt needs a batch of its own, because the append writes offset and epoch into it.
    """
    schedule = publication.schedule
    tick = datetime.fromtimestamp(publication.tick_ms / 1000, UTC).isoformat()
    headers = ((NAME_HEADER, schedule.name.encode()), (TICK_HEADER, tick.encode()))
    key = None if schedule.key is None else schedule.key.encode()
    value = None if schedule.value is None else schedule.value.encode()
    return memoryview(
        build_batch(
            [(publication.tick_ms, key, value, headers)],
            producer_id=publication.producer_id,
            producer_epoch=0,
            base_sequence=publication.sequence,
        )
    )


def _request(publication: Publication, topic_id: bytes) -> Any:
    request = messages.ProduceRequest
    partition = request.PartitionProduceData(index=publication.partition, records=_batch(publication))
    topic = request.TopicProduceData(name=publication.topic, topic_id=topic_id, partition_data=[partition])
    return request(transactional_id=None, acks=ALL_REPLICAS, timeout_ms=int(TIMEOUT_MS), topic_data=[topic])


def _give_up(publication: Publication, error: KafkaError) -> Outcome:
    logger.error(
        "schedule %s: tick %d not published to %s: %s; the next one is due at its time",
        publication.schedule.name,
        publication.tick_ms,
        publication.topic,
        error.message,
    )
    return Outcome.GIVEN_UP

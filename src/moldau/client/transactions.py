"""Transactions from outside: which are open, since when, and ending those that nobody ends any more."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from moldau.client.async_client import AsyncClient
from moldau.client.broadcast import ask_everybody
from moldau.client.coordinators import TRANSACTION_KEY, Coordinator
from moldau.client.errors import check
from moldau.client.metadata import TopicView
from moldau.client.transactional_producer import TransactionalProducer, by_topic
from moldau.client.types import ProducerIdentity
from moldau.model.errors import BrokerNotAvailable, ErrorCode, InvalidTxnState
from moldau.model.ids import NO_OFFSET, NO_PRODUCER_ID, NO_TIMESTAMP, TopicPartition
from moldau.wire import messages

OPEN_STATES: Final = ("Ongoing", "PrepareCommit", "PrepareAbort")
PARTITIONS_PER_REQUEST_MAX: Final = 1_000
# The first versions of ListTransactions with these filters: an older broker would list everything.
LIST_BY_DURATION: Final = 1
LIST_BY_PATTERN: Final = 2
TAKE_OVER_TIMEOUT_MS: Final = 1_000  # of a transaction that never begins: no more than any cluster allows


@dataclass(frozen=True, slots=True)
class ListedTransaction:
    """A transactional id as its coordinator lists it."""

    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class DescribedTransaction:
    """A transactional id with all that its coordinator knows. It has partitions only while a transaction is open."""

    transactional_id: str
    coordinator: int
    identity: ProducerIdentity
    state: str
    timeout_ms: int
    start_ms: int | None
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class ActiveProducer:
    """What a partition's leader remembers of a producer."""

    place: TopicPartition
    identity: ProducerIdentity
    last_sequence: int
    last_timestamp_ms: int | None
    coordinator_epoch: int
    transaction_start_offset: int | None  # None: it has no transaction open here


@dataclass(frozen=True, slots=True)
class HangingTransaction:
    """A transaction that is open on a partition, and that no coordinator will ever end."""

    producer: ActiveProducer
    transactional_id: str | None  # the one its producer id belongs to now


class Transactions:
    """What a client may ask about transactions."""

    def __init__(self, client: AsyncClient) -> None:
        self.client = client

    async def all(self, **filters: Any) -> list[ListedTransaction]:
        """From every broker, because each knows only those it coordinates; the filters are those of `told`."""
        found, silent = await self.told(**filters)
        for error in silent.values():
            raise error
        return found

    async def told(
        self,
        patience_ms: float | None = None,
        *,
        states: Sequence[str] = (),
        producer_ids: Sequence[int] = (),
        open_for_ms: int | None = None,
        pattern: str | None = None,
    ) -> tuple[list[ListedTransaction], dict[int, Exception]]:
        """Those of the brokers that answer in time, and the brokers that do not."""
        request = messages.ListTransactionsRequest(
            state_filters=list(states),
            producer_id_filters=list(producer_ids),
            duration_filter=-1 if open_for_ms is None else open_for_ms,
            transactional_id_pattern=pattern,
        )
        at_least = LIST_BY_PATTERN if pattern is not None else 0 if open_for_ms is None else LIST_BY_DURATION
        heard = await ask_everybody(self.client, request, patience_ms=patience_ms, version_at_least=at_least)
        found: dict[str, ListedTransaction] = {}
        for node, answer in heard.answers.items():
            if answer.unknown_state_filters:
                raise InvalidTxnState(f"There is no state {', '.join(answer.unknown_state_filters)}.")
            for each in answer.transaction_states:
                listed = ListedTransaction(each.transactional_id, node, each.producer_id, each.transaction_state)
                found[each.transactional_id] = listed
        return [found[name] for name in sorted(found)], heard.silent

    async def describe(self, transactional_id: str) -> DescribedTransaction:
        """`TransactionalIdNotFound` if there is no such id."""
        coordinator = Coordinator(self.client, transactional_id, TRANSACTION_KEY)
        request = messages.DescribeTransactionsRequest(transactional_ids=[transactional_id])
        answer = await coordinator.ask(request, lambda told: [each.error_code for each in told.transaction_states])
        (told,) = answer.transaction_states
        places = (TopicPartition(each.topic, index) for each in told.topics for index in each.partitions)
        return DescribedTransaction(
            transactional_id,
            await coordinator.find(),
            ProducerIdentity(told.producer_id, told.producer_epoch),
            told.transaction_state,
            told.transaction_timeout_ms,
            None if told.transaction_start_time_ms < 0 else told.transaction_start_time_ms,
            tuple(sorted(places)),
        )

    async def terminate(self, transactional_id: str) -> ProducerIdentity:
        """Fence whoever has this id, and abort what it has open."""
        return await TransactionalProducer(self.client, transactional_id, timeout_ms=TAKE_OVER_TIMEOUT_MS).initialise()

    async def producers(self, places: Iterable[TopicPartition]) -> list[ActiveProducer]:
        """Who writes to these partitions, as their leaders know it."""
        wanted = sorted(places)

        async def ask() -> list[ActiveProducer]:
            by_leader: dict[int, list[TopicPartition]] = {}
            for place in wanted:
                view = await self.client.topic(place.topic)
                leader = self.client.metadata.leader_in(view, place.partition).leader
                by_leader.setdefault(leader, []).append(place)
            found: list[ActiveProducer] = []
            for node, chosen in sorted(by_leader.items()):
                for first in range(0, len(chosen), PARTITIONS_PER_REQUEST_MAX):
                    found += await self._producers_at(node, chosen[first : first + PARTITIONS_PER_REQUEST_MAX])
            return found

        found = await self.client.persist(ask, about={each.topic for each in wanted})
        return sorted(found, key=lambda each: (each.place, each.identity))

    async def abort(self, producer: ActiveProducer) -> None:
        """Write an abort marker on this partition alone. The coordinator is not asked: only for hanging ones."""
        request = messages.WriteTxnMarkersRequest
        place = producer.place
        marker = request.WritableTxnMarker(
            producer_id=producer.identity.producer_id,
            producer_epoch=producer.identity.epoch,
            transaction_result=False,
            topics=[request.WritableTxnMarkerTopic(name=place.topic, partition_indexes=[place.partition])],
            coordinator_epoch=max(producer.coordinator_epoch, 0),
        )

        async def ask() -> None:
            view = await self.client.topic(place.topic)
            leader = self.client.metadata.leader_in(view, place.partition).leader
            answer = await self.client.send(request(markers=[marker]), node=leader)
            for topic in answer.markers[0].topics:
                for each in topic.partitions:
                    check(each.error_code)

        await self.client.persist(ask, about=place.topic)

    async def open_at(self, place: TopicPartition, start_offset: int) -> ActiveProducer | None:
        """Who has a transaction open that begins here."""
        found = await self.producers([place])
        return next((each for each in found if each.transaction_start_offset == start_offset), None)

    async def hanging(
        self, now_ms: int, older_than_ms: int, *, broker: int | None = None, topic: str | None = None
    ) -> list[HangingTransaction]:
        """Those that are open longer than any may be, and of which their coordinator knows nothing.

        Refused for a topic or broker that is not there: nobody is to take that for good news.
        """
        if broker is not None and all(each.node_id != broker for each in await self.client.brokers()):
            raise BrokerNotAvailable(f"there is no broker {broker}")
        views = await self.client.describe_topics() if topic is None else [await self.client.describe_topic(topic)]
        producers = await self.producers(_led(views, broker))
        suspects = [each for each in producers if _is_old(each, now_ms - older_than_ms)]
        if not suspects:
            return []
        owners = await self._owners([each.identity.producer_id for each in suspects])
        hanging = []
        for each in suspects:
            owner = owners.get(each.identity.producer_id)
            if owner is None or not _is_known(each, owner):
                hanging.append(HangingTransaction(each, owner.transactional_id if owner else None))
        return hanging

    async def _owners(self, producer_ids: Sequence[int]) -> dict[int, DescribedTransaction]:
        listed = await self.all(producer_ids=list(dict.fromkeys(producer_ids)))
        return {each.producer_id: await self.describe(each.transactional_id) for each in listed}

    async def _producers_at(self, leader: int, places: Sequence[TopicPartition]) -> list[ActiveProducer]:
        request = messages.DescribeProducersRequest
        topics = [
            request.TopicRequest(name=topic, partition_indexes=[each.partition for each in chosen])
            for topic, chosen in by_topic(places)
        ]
        answer = await self.client.send(request(topics=topics), node=leader)
        found = []
        for topic in answer.topics:
            for part in topic.partitions:
                if part.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    continue  # deleted meanwhile
                check(part.error_code, part.error_message)
                place = TopicPartition(topic.name, part.partition_index)
                found += [_producer(place, each) for each in part.active_producers]
        return found


def _producer(place: TopicPartition, told: Any) -> ActiveProducer:
    return ActiveProducer(
        place,
        ProducerIdentity(told.producer_id, told.producer_epoch),
        told.last_sequence,
        None if told.last_timestamp == NO_TIMESTAMP else told.last_timestamp,
        told.coordinator_epoch,
        None if told.current_txn_start_offset == NO_OFFSET else told.current_txn_start_offset,
    )


def _led(views: Iterable[TopicView], broker: int | None) -> list[TopicPartition]:
    """Partitions that somebody leads, or this broker alone."""
    return [
        TopicPartition(view.name, each.index)
        for view in views
        if view.error is None
        for each in view.partitions
        if each.leader >= 0 and broker in (None, each.leader)
    ]


def _is_old(producer: ActiveProducer, before_ms: int) -> bool:
    if producer.transaction_start_offset is None or producer.identity.producer_id == NO_PRODUCER_ID:
        return False
    return producer.last_timestamp_ms is None or producer.last_timestamp_ms < before_ms


def _is_known(producer: ActiveProducer, owner: DescribedTransaction) -> bool:
    """Whether the coordinator will end it: it has this partition in a transaction of this producer."""
    return owner.state in OPEN_STATES and producer.place in owner.partitions

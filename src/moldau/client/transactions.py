"""Administration of transactions: listing, producers, aborting hanging ones."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from moldau.client.async_client import AsyncClient
from moldau.client.broadcast import broadcast
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
# The first versions of ListTransactions with these filters: an older broker would ignore them.
LIST_BY_DURATION: Final = 1
LIST_BY_PATTERN: Final = 2
TAKE_OVER_TIMEOUT_MS: Final = 1_000  # for a transaction that never starts: small enough for any cluster


@dataclass(frozen=True, slots=True)
class ListedTransaction:
    """A transactional id as its coordinator lists it."""

    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class DescribedTransaction:
    """The state of a transactional id at its coordinator. It has partitions only while a transaction is open."""

    transactional_id: str
    coordinator: int
    identity: ProducerIdentity
    state: str
    timeout_ms: int
    start_ms: int | None
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class ActiveProducer:
    """The state of a producer at a partition leader."""

    topic_partition: TopicPartition
    identity: ProducerIdentity
    last_sequence: int
    last_timestamp_ms: int | None
    coordinator_epoch: int
    transaction_start_offset: int | None  # None: it has no transaction open here


@dataclass(frozen=True, slots=True)
class HangingTransaction:
    """A transaction that is open on a partition but unknown to its coordinator, which will never end it."""

    producer: ActiveProducer
    transactional_id: str | None  # the one its producer id belongs to now


class Transactions:
    """Administers transactions."""

    def __init__(self, client: AsyncClient) -> None:
        self.client = client

    async def all(self, **filters: Any) -> list[ListedTransaction]:
        """List the transactions of all brokers: each lists only those it coordinates. Filters: see `list_reachable`."""
        found, failures = await self.list_reachable(**filters)
        for error in failures.values():
            raise error
        return found

    async def list_reachable(
        self,
        timeout_ms: float | None = None,
        *,
        states: Sequence[str] = (),
        producer_ids: Sequence[int] = (),
        open_for_ms: int | None = None,
        pattern: str | None = None,
    ) -> tuple[list[ListedTransaction], dict[int, Exception]]:
        """List the transactions of the brokers that respond in time; return the failures of the others."""
        request = messages.ListTransactionsRequest(
            state_filters=list(states),
            producer_id_filters=list(producer_ids),
            duration_filter=-1 if open_for_ms is None else open_for_ms,
            transactional_id_pattern=pattern,
        )
        at_least = LIST_BY_PATTERN if pattern is not None else 0 if open_for_ms is None else LIST_BY_DURATION
        result = await broadcast(self.client, request, timeout_ms=timeout_ms, version_at_least=at_least)
        found: dict[str, ListedTransaction] = {}
        for node, response in result.responses.items():
            if response.unknown_state_filters:
                raise InvalidTxnState(f"Unknown state: {', '.join(response.unknown_state_filters)}.")
            for each in response.transaction_states:
                listed = ListedTransaction(each.transactional_id, node, each.producer_id, each.transaction_state)
                found[each.transactional_id] = listed
        return [found[name] for name in sorted(found)], result.failures

    async def describe(self, transactional_id: str) -> DescribedTransaction:
        """Describe a transactional id; `TransactionalIdNotFound` if it does not exist."""
        coordinator = Coordinator(self.client, transactional_id, TRANSACTION_KEY)
        request = messages.DescribeTransactionsRequest(transactional_ids=[transactional_id])
        response = await coordinator.send(request, lambda state: [each.error_code for each in state.transaction_states])
        (state,) = response.transaction_states
        topic_partitions = (TopicPartition(each.topic, index) for each in state.topics for index in each.partitions)
        return DescribedTransaction(
            transactional_id,
            await coordinator.find(),
            ProducerIdentity(state.producer_id, state.producer_epoch),
            state.transaction_state,
            state.transaction_timeout_ms,
            None if state.transaction_start_time_ms < 0 else state.transaction_start_time_ms,
            tuple(sorted(topic_partitions)),
        )

    async def terminate(self, transactional_id: str) -> ProducerIdentity:
        """Fence the owner of this id and abort its open transaction."""
        return await TransactionalProducer(self.client, transactional_id, timeout_ms=TAKE_OVER_TIMEOUT_MS).initialise()

    async def producers(self, topic_partitions: Iterable[TopicPartition]) -> list[ActiveProducer]:
        """Return the active producers of these partitions, as their leaders know them."""
        wanted = sorted(topic_partitions)

        async def attempt() -> list[ActiveProducer]:
            by_leader: dict[int, list[TopicPartition]] = {}
            for topic_partition in wanted:
                view = await self.client.topic(topic_partition.topic)
                leader = self.client.metadata.leader_in(view, topic_partition.partition).leader
                by_leader.setdefault(leader, []).append(topic_partition)
            found: list[ActiveProducer] = []
            for node, chosen in sorted(by_leader.items()):
                for first in range(0, len(chosen), PARTITIONS_PER_REQUEST_MAX):
                    found += await self._producers_at(node, chosen[first : first + PARTITIONS_PER_REQUEST_MAX])
            return found

        found = await self.client.retry(attempt, about={each.topic for each in wanted})
        return sorted(found, key=lambda each: (each.topic_partition, each.identity))

    async def abort(self, producer: ActiveProducer) -> None:
        """Write an abort marker on this partition only, bypassing the coordinator: for hanging transactions."""
        request = messages.WriteTxnMarkersRequest
        topic_partition = producer.topic_partition
        marker = request.WritableTxnMarker(
            producer_id=producer.identity.producer_id,
            producer_epoch=producer.identity.epoch,
            transaction_result=False,
            topics=[
                request.WritableTxnMarkerTopic(
                    name=topic_partition.topic, partition_indexes=[topic_partition.partition]
                )
            ],
            coordinator_epoch=max(producer.coordinator_epoch, 0),
        )

        async def attempt() -> None:
            view = await self.client.topic(topic_partition.topic)
            leader = self.client.metadata.leader_in(view, topic_partition.partition).leader
            response = await self.client.send(request(markers=[marker]), node=leader)
            for topic in response.markers[0].topics:
                for each in topic.partitions:
                    check(each.error_code)

        await self.client.retry(attempt, about=topic_partition.topic)

    async def open_at(self, topic_partition: TopicPartition, start_offset: int) -> ActiveProducer | None:
        """Return the producer whose open transaction starts at this offset."""
        found = await self.producers([topic_partition])
        return next((each for each in found if each.transaction_start_offset == start_offset), None)

    async def hanging(
        self, now_ms: int, older_than_ms: int, *, broker: int | None = None, topic: str | None = None
    ) -> list[HangingTransaction]:
        """Return transactions that are open longer than allowed and unknown to their coordinator.

        A topic or broker that does not exist is an error, so that an empty result always means that none hang.
        """
        if broker is not None and all(each.node_id != broker for each in await self.client.brokers()):
            raise BrokerNotAvailable(f"broker {broker} does not exist")
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

    async def _producers_at(self, leader: int, topic_partitions: Sequence[TopicPartition]) -> list[ActiveProducer]:
        request = messages.DescribeProducersRequest
        topics = [
            request.TopicRequest(name=topic, partition_indexes=[each.partition for each in chosen])
            for topic, chosen in by_topic(topic_partitions)
        ]
        response = await self.client.send(request(topics=topics), node=leader)
        found = []
        for topic in response.topics:
            for part in topic.partitions:
                if part.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    continue  # deleted meanwhile
                check(part.error_code, part.error_message)
                topic_partition = TopicPartition(topic.name, part.partition_index)
                found += [_producer(topic_partition, each) for each in part.active_producers]
        return found


def _producer(
    topic_partition: TopicPartition, state: "messages.DescribeProducersResponse.ProducerState"
) -> ActiveProducer:
    return ActiveProducer(
        topic_partition,
        ProducerIdentity(state.producer_id, state.producer_epoch),
        state.last_sequence,
        None if state.last_timestamp == NO_TIMESTAMP else state.last_timestamp,
        state.coordinator_epoch,
        None if state.current_txn_start_offset == NO_OFFSET else state.current_txn_start_offset,
    )


def _led(views: Iterable[TopicView], broker: int | None) -> list[TopicPartition]:
    """Return the partitions that have a leader, or that this broker leads."""
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
    """Return whether the coordinator will end it: the partition is in an open transaction of this producer."""
    return owner.state in OPEN_STATES and producer.topic_partition in owner.partitions

"""What partitions ask of coordinators: is this partition part of that transaction, or let it be from now on (KIP-890).

Nothing of a transaction is written before its coordinator knows the partition: otherwise no marker would ever come, and
readers of what is committed would wait for ever.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from moldau.broker.coordinators.host import PeerHost
from moldau.broker.internal_topics import STATE_TOPIC, partition_for
from moldau.model.errors import CoordinatorNotAvailable, ErrorCode, KafkaError
from moldau.model.ids import NO_NODE, TopicPartition
from moldau.model.units import SECOND_MS
from moldau.wire.messages import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse

ASK_MS: Final = 10 * SECOND_MS
PURPOSE: Final = "enrolment"
VERSION: Final = 5  # of AddPartitionsToTxn, in which brokers ask for many transactions at once
TRANSACTIONS_PER_REQUEST: Final = 1_000

Codes = Mapping[TopicPartition, ErrorCode]


class Wish(NamedTuple):
    """Whose transaction it is, and which partitions of it are led here."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    verify_only: bool
    partitions: Sequence[TopicPartition]


class _Round:
    """What goes to one coordinator in one request; no transactional id is in it twice."""

    __slots__ = ("answered", "wishes")

    def __init__(self) -> None:
        self.wishes: dict[str, Wish] = {}
        self.answered: asyncio.Future[dict[str, Codes]] = asyncio.get_running_loop().create_future()


class Enrolment:
    """Asks coordinators; what is asked of one on another broker in the same turn of the loop goes in one request."""

    def __init__(self, broker: PeerHost) -> None:
        self._broker = broker
        self._next: dict[int, _Round] = {}  # by coordinator; sent when the turn ends
        self._tasks: set[asyncio.Task[None]] = set()

    async def ask(self, wish: Wish) -> Codes:
        """What the coordinator says of each partition. Where it cannot be reached, that is said of all of them."""
        try:
            node_id = self._coordinator_of(wish.transactional_id)
        except KafkaError as refusal:
            return dict.fromkeys(wish.partitions, refusal.code)
        if node_id == self._broker.node_id:
            found = await self._answers(node_id, {wish.transactional_id: wish})
        else:
            found = await asyncio.shield(self._join(node_id, wish).answered)
        codes = found.get(wish.transactional_id, {})
        return {each: codes.get(each, ErrorCode.UNKNOWN_SERVER_ERROR) for each in wish.partitions}

    def _coordinator_of(self, transactional_id: str) -> int:
        topic = self._broker.image.topics.get(STATE_TOPIC)
        if topic is None:
            raise CoordinatorNotAvailable("There are no transactions yet.")
        leader = topic.partitions[partition_for(transactional_id, len(topic.partitions))].leader
        if leader == NO_NODE:
            raise CoordinatorNotAvailable(f"Nobody coordinates {transactional_id} at the moment.")
        return leader

    def _join(self, node_id: int, wish: Wish) -> _Round:
        current = self._next.get(node_id)
        if (
            current is None
            or wish.transactional_id in current.wishes
            or len(current.wishes) >= TRANSACTIONS_PER_REQUEST
        ):
            current = self._next[node_id] = _Round()
            task = asyncio.get_running_loop().create_task(self._send(node_id, current))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        current.wishes[wish.transactional_id] = wish
        return current

    async def _send(self, node_id: int, current: _Round) -> None:
        """A task begins in the next turn of the loop: until then others may join."""
        if self._next.get(node_id) is current:
            del self._next[node_id]
        try:
            current.answered.set_result(await self._answers(node_id, current.wishes))
        except BaseException as error:
            current.answered.set_exception(error if isinstance(error, Exception) else CoordinatorNotAvailable())
            current.answered.exception()  # nobody may be left to hear it
            if not isinstance(error, Exception):
                raise

    async def _answers(self, node_id: int, wishes: Mapping[str, Wish]) -> dict[str, Codes]:
        try:
            return _codes(await self._ask(node_id, _request(wishes.values())), wishes)
        except KafkaError as refusal:
            return _same(wishes, refusal.code)
        except OSError:
            return _same(wishes, ErrorCode.NETWORK_EXCEPTION)

    async def _ask(self, node_id: int, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        broker = self._broker
        answer: AddPartitionsToTxnResponse
        if node_id == broker.node_id:
            answer = await broker.local.handle(request, version=VERSION)
            return answer
        registered = broker.image.brokers.get(node_id)
        address = None if registered is None else registered.address(broker.inter_broker_listener)
        if address is None:
            raise CoordinatorNotAvailable(f"Broker {node_id} cannot be reached.")
        answer = await broker.peers.ask(address, request, timeout_ms=ASK_MS, purpose=PURPOSE, version_at_most=VERSION)
        return answer

    async def close(self) -> None:
        """Whoever waits for an answer hears that there is nobody to ask."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _request(wishes: Any) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
                transactional_id=wish.transactional_id,
                producer_id=wish.producer_id,
                producer_epoch=wish.producer_epoch,
                verify_only=wish.verify_only,
                topics=_topics(wish.partitions),
            )
            for wish in wishes
        ]
    )


def _topics(partitions: Sequence[TopicPartition]) -> list[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic]:
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    return [
        AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=name, partitions=indexes)
        for name, indexes in topics.items()
    ]


def _codes(answer: AddPartitionsToTxnResponse, wishes: Mapping[str, Wish]) -> dict[str, Codes]:
    if answer.error_code:
        return _same(wishes, ErrorCode(answer.error_code))
    return {
        result.transactional_id: {
            TopicPartition(topic.name, each.partition_index): ErrorCode(each.partition_error_code)
            for topic in result.topic_results
            for each in topic.results_by_partition
        }
        for result in answer.results_by_transaction
    }


def _same(wishes: Mapping[str, Wish], code: ErrorCode) -> dict[str, Codes]:
    return {key: dict.fromkeys(wish.partitions, code) for key, wish in wishes.items()}

"""AddPartitionsToTxn requests (KIP-890): verify that a partition is in a transaction, or add it.

A partition appends no batch of a transaction before the coordinator knows the partition. Otherwise the transaction
would end without a marker for it (a hanging transaction), and its last stable offset would never advance.
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

TIMEOUT_MS: Final = 10 * SECOND_MS
CONNECTION: Final = "add-partitions"
VERSION: Final = 5  # of AddPartitionsToTxn; the batched form, for brokers only
TRANSACTIONS_PER_REQUEST: Final = 1_000

Codes = Mapping[TopicPartition, ErrorCode]


class PartitionsOfTransaction(NamedTuple):
    """A transaction, and the partitions of it to verify or to add."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    verify_only: bool
    partitions: Sequence[TopicPartition]


class _Batch:
    """One request to one coordinator; it has each transactional id at most once."""

    __slots__ = ("codes", "transactions")

    def __init__(self) -> None:
        self.transactions: dict[str, PartitionsOfTransaction] = {}
        self.codes: asyncio.Future[dict[str, Codes]] = asyncio.get_running_loop().create_future()


class AddPartitionsChannel:
    """Sends requests to coordinators; those of one turn of the event loop to one broker are batched."""

    def __init__(self, broker: PeerHost) -> None:
        self._broker = broker
        self._next: dict[int, _Batch] = {}  # by coordinator; sent when the turn ends
        self._tasks: set[asyncio.Task[None]] = set()

    async def request(self, transaction: PartitionsOfTransaction) -> Codes:
        """Return an error code per partition; if the coordinator cannot be reached, all get the same one."""
        try:
            node_id = self._coordinator_of(transaction.transactional_id)
        except KafkaError as error:
            return dict.fromkeys(transaction.partitions, error.code)
        if node_id == self._broker.node_id:
            results = await self._codes_from(node_id, {transaction.transactional_id: transaction})
        else:
            results = await asyncio.shield(self._join(node_id, transaction).codes)
        codes = results.get(transaction.transactional_id, {})
        return {each: codes.get(each, ErrorCode.UNKNOWN_SERVER_ERROR) for each in transaction.partitions}

    def _coordinator_of(self, transactional_id: str) -> int:
        topic = self._broker.image.topics.get(STATE_TOPIC)
        if topic is None:
            raise CoordinatorNotAvailable(f"Topic {STATE_TOPIC} does not exist yet.")
        leader = topic.partitions[partition_for(transactional_id, len(topic.partitions))].leader
        if leader == NO_NODE:
            raise CoordinatorNotAvailable(f"The coordinator's partition of {STATE_TOPIC} has no leader.")
        return leader

    def _join(self, node_id: int, transaction: PartitionsOfTransaction) -> _Batch:
        current = self._next.get(node_id)
        if (
            current is None
            or transaction.transactional_id in current.transactions
            or len(current.transactions) >= TRANSACTIONS_PER_REQUEST
        ):
            current = self._next[node_id] = _Batch()
            task = asyncio.get_running_loop().create_task(self._send(node_id, current))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        current.transactions[transaction.transactional_id] = transaction
        return current

    async def _send(self, node_id: int, current: _Batch) -> None:
        """The task starts in the next turn of the loop; until then transactions may be added to the batch."""
        if self._next.get(node_id) is current:
            del self._next[node_id]
        try:
            current.codes.set_result(await self._codes_from(node_id, current.transactions))
        except BaseException as error:
            current.codes.set_exception(error if isinstance(error, Exception) else CoordinatorNotAvailable())
            current.codes.exception()  # mark it as retrieved: all waiters may be cancelled
            if not isinstance(error, Exception):
                raise

    async def _codes_from(self, node_id: int, transactions: Mapping[str, PartitionsOfTransaction]) -> dict[str, Codes]:
        try:
            return _codes(await self._send_request(node_id, _request(transactions.values())), transactions)
        except KafkaError as error:
            return _same(transactions, error.code)
        except OSError:
            return _same(transactions, ErrorCode.NETWORK_EXCEPTION)

    async def _send_request(self, node_id: int, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        broker = self._broker
        response: AddPartitionsToTxnResponse
        if node_id == broker.node_id:
            response = await broker.local.handle(request, version=VERSION)
            return response
        registered = broker.image.brokers.get(node_id)
        address = None if registered is None else registered.address(broker.inter_broker_listener)
        if address is None:
            raise CoordinatorNotAvailable(f"Broker {node_id} has no address on the inter-broker listener.")
        response = await broker.peers.ask(
            address, request, timeout_ms=TIMEOUT_MS, purpose=CONNECTION, version_at_most=VERSION
        )
        return response

    async def close(self) -> None:
        """Cancel the requests; their waiters get COORDINATOR_NOT_AVAILABLE."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _request(transactions: Any) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
                transactional_id=transaction.transactional_id,
                producer_id=transaction.producer_id,
                producer_epoch=transaction.producer_epoch,
                verify_only=transaction.verify_only,
                topics=_topics(transaction.partitions),
            )
            for transaction in transactions
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


def _codes(
    response: AddPartitionsToTxnResponse, transactions: Mapping[str, PartitionsOfTransaction]
) -> dict[str, Codes]:
    if response.error_code:
        return _same(transactions, ErrorCode(response.error_code))
    return {
        result.transactional_id: {
            TopicPartition(topic.name, each.partition_index): ErrorCode(each.partition_error_code)
            for topic in result.topic_results
            for each in topic.results_by_partition
        }
        for result in response.results_by_transaction
    }


def _same(transactions: Mapping[str, PartitionsOfTransaction], code: ErrorCode) -> dict[str, Codes]:
    return {key: dict.fromkeys(transaction.partitions, code) for key, transaction in transactions.items()}

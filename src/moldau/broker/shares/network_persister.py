"""The persister of share-partition leaders and group coordinators: finds the share coordinator, and retries.

A request for a share partition goes to the leader of its partition of `__share_group_state`: directly if that is this
node, else over the inter-broker listener. Retriable errors and lost connections are retried with a backoff. Repeating a
request is harmless: an initialization with the same state epoch changes nothing, and a write that was lost or applied
before leads to the same state.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

from moldau.broker.coordinators.host import PeerHost
from moldau.broker.shares.persister import SharePartitionKey
from moldau.broker.shares.share_coordinator import ShareCoordinator
from moldau.client.errors import check
from moldau.machines.share_state.machine import Summary
from moldau.machines.shares.state import UNINITIALIZED_START_OFFSET, ShareState, StateBatch, StateWrite
from moldau.model.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    KafkaError,
    NotCoordinator,
    UnknownTopicOrPartition,
)
from moldau.model.ids import TopicId
from moldau.model.ports import Clock
from moldau.model.units import SECOND_MS
from moldau.wire import messages

TIMEOUT_MS: Final = 10 * SECOND_MS  # of one request
RETRY_MS_MAX: Final = 30 * SECOND_MS  # of all attempts together
NEW_TOPIC_MS_MAX: Final = 3 * SECOND_MS  # the coordinator may learn of a new topic later than this node
BACKOFF_FIRST_S: Final = 0.05
BACKOFF_LONGEST_S: Final = 1.0
CONCURRENT_REQUESTS_MAX: Final = 100  # of one initialization or deletion
CONNECTION: Final = "share-state"

RETRIABLE: Final = (CoordinatorLoadInProgress, CoordinatorNotAvailable, NotCoordinator)


class PersisterHost(PeerHost, Protocol):
    """The parts of the broker that the persister uses."""

    @property
    def clock(self) -> Clock: ...


class NetworkPersister:
    """Implements `SharePersister`, and requests for many share partitions at once."""

    def __init__(self, broker: PersisterHost, coordinator: ShareCoordinator) -> None:
        self._broker = broker
        self._coordinator = coordinator

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        await self._retry(
            key,
            lambda: self._coordinator.initialize(key, state_epoch, start_offset),
            lambda: _initialize_request(key, state_epoch, start_offset),
        )

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> ShareState:
        found = await self._retry(
            key, lambda: self._coordinator.read(key, leader_epoch), lambda: _read_request(key, leader_epoch)
        )
        return found if isinstance(found, ShareState) else _share_state(found)

    async def write(self, key: SharePartitionKey, state_epoch: int, leader_epoch: int, state: StateWrite) -> None:
        await self._retry(
            key,
            lambda: self._coordinator.write(key, state_epoch, leader_epoch, state),
            lambda: _write_request(key, state_epoch, leader_epoch, state),
        )

    async def delete(self, key: SharePartitionKey) -> None:
        await self._retry(key, lambda: self._coordinator.delete(key), lambda: _delete_request(key))

    async def summary(self, key: SharePartitionKey) -> Summary:
        """ReadShareGroupStateSummary."""
        found = await self._retry(key, lambda: self._coordinator.summary(key), lambda: _summary_request(key))
        if isinstance(found, Summary):
            return found
        return Summary(found.state_epoch, found.leader_epoch, found.start_offset, found.delivery_complete_count)

    # Many share partitions

    async def initialize_all(
        self, group_id: str, state_epoch: int, partitions: Mapping[TopicId, frozenset[int]]
    ) -> Mapping[TopicId, frozenset[int]]:
        """Initialize the states of a group's new share partitions; return those that succeeded."""

        async def initialize(key: SharePartitionKey) -> None:
            await self.initialize(key, state_epoch, UNINITIALIZED_START_OFFSET)

        return await self._for_each(group_id, partitions, initialize)

    async def delete_all(
        self, group_id: str, partitions: Mapping[TopicId, frozenset[int]]
    ) -> Mapping[TopicId, frozenset[int]]:
        """Delete the states of a group's share partitions; return those that are deleted."""
        return await self._for_each(group_id, partitions, self.delete)

    async def _for_each(
        self,
        group_id: str,
        partitions: Mapping[TopicId, frozenset[int]],
        request: Callable[[SharePartitionKey], Awaitable[None]],
    ) -> Mapping[TopicId, frozenset[int]]:
        limit = asyncio.Semaphore(CONCURRENT_REQUESTS_MAX)
        done: dict[TopicId, set[int]] = {}

        async def run(key: SharePartitionKey) -> None:
            async with limit:
                try:
                    await request(key)
                except (KafkaError, OSError):
                    return
            done.setdefault(key.topic_id, set()).add(key.partition)

        keys = [
            SharePartitionKey(group_id, topic_id, index)
            for topic_id, indexes in partitions.items()
            for index in sorted(indexes)
        ]
        await asyncio.gather(*map(run, keys))
        return {topic_id: frozenset(indexes) for topic_id, indexes in done.items()}

    # Requests

    async def _retry(
        self, key: SharePartitionKey, locally: Callable[[], Awaitable[Any]], request: Callable[[], Any]
    ) -> Any:
        """Return the local result or the partition's result in the response; raise its error."""
        started_ms = self._broker.clock.monotonic_ms()
        backoff_s = BACKOFF_FIRST_S
        while True:
            try:
                node_id = await self._coordinator.coordinator_of(key)
                if node_id == self._broker.node_id:
                    return await locally()
                return await self._send(node_id, request())
            except UnknownTopicOrPartition:
                if self._broker.clock.monotonic_ms() - started_ms >= NEW_TOPIC_MS_MAX:
                    raise
            except RETRIABLE:
                if self._broker.clock.monotonic_ms() - started_ms >= RETRY_MS_MAX:
                    raise
            except OSError as error:
                if self._broker.clock.monotonic_ms() - started_ms >= RETRY_MS_MAX:
                    raise CoordinatorNotAvailable(f"The share coordinator is unreachable: {error}") from None
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, BACKOFF_LONGEST_S)

    async def _send(self, node_id: int, request: Any) -> Any:
        broker = self._broker
        registered = broker.image.brokers.get(node_id)
        address = None if registered is None else registered.address(broker.inter_broker_listener)
        if address is None:
            raise CoordinatorNotAvailable(f"Broker {node_id} has no address on the inter-broker listener.")
        response = await broker.peers.ask(address, request, timeout_ms=TIMEOUT_MS, purpose=CONNECTION)
        if len(response.results) != 1 or len(response.results[0].partitions) != 1:
            raise CoordinatorNotAvailable("The share coordinator sent a response for other partitions.")
        result = response.results[0].partitions[0]
        check(result.error_code, result.error_message)
        return result


def _initialize_request(
    key: SharePartitionKey, state_epoch: int, start_offset: int
) -> "messages.InitializeShareGroupStateRequest":
    request = messages.InitializeShareGroupStateRequest
    partition = request.PartitionData(partition=key.partition, state_epoch=state_epoch, start_offset=start_offset)
    topic = request.InitializeStateData(topic_id=key.topic_id, partitions=[partition])
    return request(group_id=key.group_id, topics=[topic])


def _read_request(key: SharePartitionKey, leader_epoch: int) -> "messages.ReadShareGroupStateRequest":
    request = messages.ReadShareGroupStateRequest
    partition = request.PartitionData(partition=key.partition, leader_epoch=leader_epoch)
    return request(group_id=key.group_id, topics=[request.ReadStateData(topic_id=key.topic_id, partitions=[partition])])


def _write_request(
    key: SharePartitionKey, state_epoch: int, leader_epoch: int, state: StateWrite
) -> "messages.WriteShareGroupStateRequest":
    request = messages.WriteShareGroupStateRequest
    partition = request.PartitionData(
        partition=key.partition,
        state_epoch=state_epoch,
        leader_epoch=leader_epoch,
        start_offset=state.start_offset,
        delivery_complete_count=state.delivery_complete_count,
        state_batches=[
            request.StateBatch(
                first_offset=each.first_offset,
                last_offset=each.last_offset,
                delivery_state=each.delivery_state,
                delivery_count=each.delivery_count,
            )
            for each in state.batches
        ],
    )
    return request(
        group_id=key.group_id, topics=[request.WriteStateData(topic_id=key.topic_id, partitions=[partition])]
    )


def _delete_request(key: SharePartitionKey) -> "messages.DeleteShareGroupStateRequest":
    request = messages.DeleteShareGroupStateRequest
    partition = request.PartitionData(partition=key.partition)
    return request(
        group_id=key.group_id, topics=[request.DeleteStateData(topic_id=key.topic_id, partitions=[partition])]
    )


def _summary_request(key: SharePartitionKey) -> "messages.ReadShareGroupStateSummaryRequest":
    request = messages.ReadShareGroupStateSummaryRequest
    partition = request.PartitionData(partition=key.partition, leader_epoch=-1)
    return request(
        group_id=key.group_id, topics=[request.ReadStateSummaryData(topic_id=key.topic_id, partitions=[partition])]
    )


def _share_state(result: "messages.ReadShareGroupStateResponse.PartitionResult") -> ShareState:
    return ShareState(
        result.state_epoch,
        result.start_offset,
        tuple(
            StateBatch(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
            for each in result.state_batches
        ),
    )

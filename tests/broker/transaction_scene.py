"""Transactional producers, and partitions that record the markers they get."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import pytest
from broker_scene import Scene, Talker

from moldau.broker.handlers import write_txn_markers
from moldau.broker.requests.context import RequestContext
from moldau.broker.requests.router import Api
from moldau.model.errors import ErrorCode
from moldau.model.ids import TopicPartition
from moldau.node.node import Node
from moldau.wire.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
TRANSACTION = 1
TIMEOUT_MS = 60_000
PASSING = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
)
FEW_PARTITIONS = ("transaction.state.log.num.partitions=3",)


class Reach(Protocol):
    """Connects to the coordinator of a transactional id."""

    async def __call__(self, transactional_id: str) -> Talker: ...


class Producer:
    """A transactional producer; `ask` finds the coordinator and retries passing errors."""

    def __init__(self, reach: Reach, transactional_id: str = "t", version: int = 2) -> None:
        self.reach = reach
        self.transactional_id = transactional_id
        self.producer_id = self.epoch = -1
        self.version = version  # of transactions

    async def ask(self, version: int, request: Any, passing: Sequence[ErrorCode] = PASSING) -> Any:
        while True:
            talker = await self.reach(self.transactional_id)
            response = await talker.ask(version, request)
            talker.connection.close()
            if code_of(response) not in passing:
                return response
            await asyncio.sleep(0.05)

    async def init(self, *, timeout_ms: int = TIMEOUT_MS, version: int = 5, again: bool = False) -> ErrorCode:
        known: dict[str, Any] = {"producer_id": self.producer_id, "producer_epoch": self.epoch} if again else {}
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id, transaction_timeout_ms=timeout_ms, **known
        )
        response = await self.ask(version, request)
        if not response.error_code:
            self.producer_id, self.epoch = response.producer_id, response.producer_epoch
        return ErrorCode(response.error_code)

    def add_request(self, *partitions: tuple[str, int]) -> AddPartitionsToTxnRequest:
        return AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=_topics(partitions),
        )

    async def add(self, *partitions: tuple[str, int], version: int = 3) -> ErrorCode:
        return code_of(await self.ask(version, self.add_request(*partitions)))

    async def add_offsets(self, group_id: str, version: int = 3) -> ErrorCode:
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            group_id=group_id,
        )
        return code_of(await self.ask(version, request))

    def end_request(self, *, is_commit: bool = True) -> EndTxnRequest:
        return EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=is_commit,
        )

    async def end(self, *, is_commit: bool = True, version: int | None = None) -> ErrorCode:
        if version is None:
            version = 5 if self.version == 2 else 4
        response = await self.ask(version, self.end_request(is_commit=is_commit))
        if not response.error_code and version >= 5:
            self.producer_id, self.epoch = response.producer_id, response.producer_epoch
        return ErrorCode(response.error_code)

    async def described(self) -> Any:
        request = DescribeTransactionsRequest(transactional_ids=[self.transactional_id])
        return (await self.ask(0, request)).transaction_states[0]

    async def until(self, state: str, virtual_s_max: float = 60.0) -> Any:
        """Wait until the transaction is in this state."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + virtual_s_max
        while (described := await self.described()).transaction_state != state:
            assert loop.time() < deadline_s, described
            await asyncio.sleep(0.01)
        return described


def _topics(partitions: Sequence[tuple[str, int]]) -> list[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic]:
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    return [AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=name, partitions=topics[name]) for name in topics]


def code_of(response: Any) -> ErrorCode:
    """Return the relevant error code of a response."""
    for topic in getattr(response, "results_by_topic_v3_and_below", None) or ():
        return ErrorCode(topic.results_by_partition[0].partition_error_code)
    for state in getattr(response, "transaction_states", None) or ():
        return ErrorCode(getattr(state, "error_code", 0))
    return ErrorCode(getattr(response, "error_code", 0))


def producer_of(scene: Scene, transactional_id: str = "t", version: int = 2) -> Producer:
    """Return a producer of the single broker."""

    async def reach(transactional_id: str) -> Talker:  # noqa: ARG001 - there is one broker
        return await scene.connect()

    return Producer(reach, transactional_id, version)


async def ready(scene: Scene) -> "Sink":
    """Create partitions whose markers are recorded, and a coordinator."""
    await scene.create("t", partitions=2)
    talker = await scene.connect()
    assert (await find(talker, "t")).error_code == 0
    return Sink(scene.node)


async def find(talker: Talker, transactional_id: str, version: int = 4) -> Any:
    request = FindCoordinatorRequest(key_type=TRANSACTION, key=transactional_id, coordinator_keys=[transactional_id])
    response = await talker.ask(version, request)
    return response.coordinators[0] if version >= 4 else response


class Marked(NamedTuple):
    """A marker that reached a partition."""

    producer_id: int
    epoch: int
    is_commit: bool
    partition: TopicPartition
    coordinator_epoch: int
    version: int


class Sink:
    """Replaces the partitions of a node: records markers and returns prepared codes."""

    def __init__(self, node: Node | None = None) -> None:
        self.came: list[Marked] = []
        self.codes: dict[TopicPartition, ErrorCode] = {}  # other than NONE
        self.requests = 0
        self.is_open = asyncio.Event()  # responses wait for it
        self.is_open.set()
        if node is not None:
            apis: Any = node.routers.broker.apis
            key = WriteTxnMarkersRequest.API_KEY
            apis[key] = Api(key, "WriteTxnMarkers", 1, 2, self.handle, self.error_response)

    @contextmanager
    def of_nodes_to_come(self) -> Iterator[None]:
        """Replace the partitions of every node that is started meanwhile, from its start on."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(write_txn_markers, "handle", self.handle)
            yield

    async def handle(self, request: WriteTxnMarkersRequest, context: RequestContext[Any]) -> WriteTxnMarkersResponse:  # noqa: ARG002
        self.requests += 1
        await self.is_open.wait()
        return WriteTxnMarkersResponse(markers=[self._respond(marker) for marker in request.markers])

    def _respond(self, marker: Any) -> WriteTxnMarkersResponse.WritableTxnMarkerResult:
        topics = []
        for topic in marker.topics:
            partitions = []
            for index in topic.partition_indexes:
                where = TopicPartition(topic.name, index)
                self.came.append(
                    Marked(
                        marker.producer_id,
                        marker.producer_epoch,
                        marker.transaction_result,
                        where,
                        marker.coordinator_epoch,
                        marker.transaction_version,
                    )
                )
                partitions.append(
                    WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult(
                        partition_index=index, error_code=int(self.codes.get(where, ErrorCode.NONE))
                    )
                )
            topics.append(WriteTxnMarkersResponse.WritableTxnMarkerTopicResult(name=topic.name, partitions=partitions))
        return WriteTxnMarkersResponse.WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics)

    def error_response(self, request: Any, error: Exception, version: int) -> Any:
        raise NotImplementedError

"""A whole node on simulated ports, and a client that sends any request in any version."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from moldau.broker.access import Authorizer, Client, Operation, Resource, ResourceKind
from moldau.machines.metadata.image import MetadataImage
from moldau.model.ids import Address
from moldau.model.ports import Connection, Piece, Ports
from moldau.node.configuration import load_configuration
from moldau.node.node import Node
from moldau.records.builder import build_batch
from moldau.wire.codec import decode_response
from moldau.wire.framing import RequestHeader, frame_request, parse_response_header
from moldau.wire.messages import (
    CreateTopicsRequest,
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ProduceRequest,
    ProduceResponse,
)
from moldau_dev.simulation.simulation import Host, Simulation

BROKER = Address("broker", 9092)
CONTROLLER = Address("broker", 9093)
WITH_CONTROLLER = ("listeners=PLAINTEXT://broker:9092,CONTROLLER://broker:9093", "controller.listener.names=CONTROLLER")
FRAME_BYTES_MAX = 100 * 1024 * 1024


class ScriptedAuthorizer:
    """Authorizes as its subclass decides, whatever the ACLs are."""

    generation = 0

    def is_allowed(self, client: Client, operation: Operation, resource: Resource) -> bool:
        raise NotImplementedError

    def allows_any(self, client: Client, operation: Operation, kind: ResourceKind) -> bool:  # noqa: ARG002
        return False

    def follow(self, image: MetadataImage, *, is_caught_up: bool) -> None:
        """ACLs do not matter."""


class Talker:
    """One connection; requests may be pipelined."""

    def __init__(self) -> None:
        self._requested: list[tuple[int, int, asyncio.Future[Any]]] = []
        self.is_lost = asyncio.Event()
        self._correlation_id = 0
        self.connection: Connection

    def connected(self, connection: Connection) -> None:
        self.connection = connection

    def frame_received(self, frame: memoryview) -> None:
        api_key, version, future = self._requested.pop(0)
        _, position = parse_response_header(api_key, version, frame)
        future.set_result(decode_response(api_key, version, memoryview(bytes(frame[position:]))))

    def drained(self) -> None: ...

    def disconnected(self, reason: str) -> None:  # noqa: ARG002
        self.is_lost.set()
        for _, _, future in self._requested:
            if not future.done():
                future.set_exception(ConnectionResetError("closed by the broker"))

    def begin(self, version: int, request: Any, *, has_response: bool = True) -> "asyncio.Future[Any]":
        future = asyncio.get_running_loop().create_future()
        if has_response:
            self._requested.append((request.API_KEY, version, future))
        self._correlation_id += 1
        header = RequestHeader(request.API_KEY, version, self._correlation_id, "scene")
        self.connection.send(frame_request(header, request))
        return future

    async def ask(self, version: int, request: Any) -> Any:
        async with asyncio.timeout(60):
            return await self.begin(version, request)

    def send(self, pieces: Sequence[Piece]) -> None:
        self.connection.send(pieces)


class Scene:
    """A running broker and its clients."""

    def __init__(self, simulation: Simulation, host: Host, node: Node) -> None:
        self.simulation = simulation
        self.host = host
        self.node = node

    async def connect(self, address: Address = BROKER) -> Talker:
        talker = Talker()
        network = self.simulation.network.host("client")
        await network.connect(address, talker, FRAME_BYTES_MAX)
        return talker

    async def restart(self) -> None:
        self.node = await self.host.restart()

    async def restart_after_crash(self) -> None:
        self.host.crash()
        await self.restart()

    async def create(self, name: str, partitions: int = 1, **configs: object) -> None:
        talker = await self.connect()
        topic = CreateTopicsRequest.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=1,
            configs=[
                CreateTopicsRequest.CreatableTopicConfig(name=key.replace("_", "."), value=str(value))
                for key, value in configs.items()
            ],
        )
        response = await talker.ask(7, CreateTopicsRequest(topics=[topic]))
        assert response.topics[0].error_code == 0, response
        talker.connection.close()


def on_broker(
    script: Callable[[Scene], Coroutine[Any, Any, None]],
    *,
    settings: Sequence[str] = (),
    authorizer: Authorizer | None = None,
) -> None:
    """Run a script against a new broker, on virtual time."""

    async def play(simulation: Simulation) -> None:
        host = simulation.host("broker")

        async def program(ports: Ports) -> Node:
            overrides = ["listeners=PLAINTEXT://broker:9092", "moldau.metrics.listener=", "log.dirs=/data", *settings]
            node = Node(
                load_configuration(overrides=overrides),
                ports,
                on_failure=simulation.fail,
                authorizer=authorizer,
            )
            await node.start()
            return node

        scene = Scene(simulation, host, await host.start(program))
        await script(scene)
        await host.stop()

    Simulation(seed=1).run(play)


def batch(*values: bytes, timestamp: int = 1_700_000_000_000, key: bytes | None = None, **fields: Any) -> bytearray:
    return build_batch([(timestamp, key, value, ()) for value in values], **fields)


def produce_request(
    topic: str, records: Any, *, partition: int = 0, acks: int = -1, timeout_ms: int = 30_000
) -> ProduceRequest:
    data = ProduceRequest.PartitionProduceData(index=partition, records=records)
    topic_data = ProduceRequest.TopicProduceData(name=topic, partition_data=[data])
    return ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=[topic_data])


async def produce(talker: Talker, topic: str, records: Any, version: int = 9, **options: Any) -> Any:
    """Produce to one partition; return its response."""
    response: ProduceResponse = await talker.ask(version, produce_request(topic, records, **options))
    return response.responses[0].partition_responses[0]


def fetch_request(
    topic: str,
    offset: int,
    *,
    partition: int = 0,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    **fields: Any,
) -> FetchRequest:
    wanted = FetchRequest.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes)
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        topics=[FetchRequest.FetchTopic(topic=topic, partitions=[wanted])],
        **fields,
    )


async def fetch(talker: Talker, topic: str, offset: int, version: int = 11, **options: Any) -> Any:
    """Fetch from one partition; return its response."""
    response: FetchResponse = await talker.ask(version, fetch_request(topic, offset, **options))
    return response.responses[0].partitions[0]


async def list_offset(talker: Talker, topic: str, timestamp: int, version: int = 7) -> Any:
    requested = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    topics = [ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[requested])]
    response = await talker.ask(version, ListOffsetsRequest(replica_id=-1, topics=topics))
    return response.topics[0].partitions[0]

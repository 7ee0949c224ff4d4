"""Scripted brokers on a simulated network, for tests of the asyncio client."""

import random
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from moldau.client.async_client import AsyncClient
from moldau.client.settings import ClientSettings
from moldau.model.errors import ErrorCode
from moldau.model.ids import Address
from moldau.model.ports import Connection
from moldau.records.builder import build_batch
from moldau.testing.clock import SimulatedClock
from moldau.testing.network import SimulatedNetwork
from moldau.wire import codec, framing, messages
from moldau_dev.simulation.loop import SimulatedLoop

TOPIC_ID = bytes(range(16))
Response = Callable[[Any], Any]
APIS = (0, 1, 2, 3, 8, 9, 10, 15, 16, 18, 19, 20, 22, 32, 35, 42, 43, 44, 45, 46, 47, 55, 60, 64, 69)


class Script:
    """The scripted responses of brokers, and the requests they received."""

    def __init__(self, brokers: int = 2) -> None:
        self.brokers = brokers
        self.controller = 2
        self.leader = 1
        self.leader_epoch = 5
        self.topics = {"t": TOPIC_ID}
        self.responses: dict[tuple[int, int], Response] = {}
        self.requested: Counter[tuple[int, str]] = Counter()
        self.versions: dict[int, tuple[int, int]] = {}
        self.last: Any = None

    def on(self, node: int, api: str, response: Response) -> None:
        (key,) = (each for each in APIS if codec.api_name(each) == api)
        self.responses[node, key] = response

    def response(self, node: int, request: Any) -> Any:
        self.requested[node, codec.api_name(request.API_KEY)] += 1
        self.last = request
        scripted = self.responses.get((node, request.API_KEY))
        if scripted is not None:
            return scripted(request)
        if request.API_KEY == 22:
            return messages.InitProducerIdResponse(producer_id=4, producer_epoch=0)
        return self.metadata(request) if request.API_KEY == 3 else self.api_versions()

    def api_versions(self) -> Any:
        response = messages.ApiVersionsResponse
        ranges = {key: self.versions.get(key) or codec.versions(key) or (0, 0) for key in APIS}
        return response(
            api_keys=[
                response.ApiVersion(api_key=key, min_version=low, max_version=high)
                for key, (low, high) in ranges.items()
            ]
        )

    def metadata(self, request: Any) -> Any:
        response = messages.MetadataResponse
        wanted = list(self.topics) if request.topics is None else [each.name for each in request.topics]
        return response(
            cluster_id="scripted",
            controller_id=self.controller,
            brokers=[
                response.MetadataResponseBroker(node_id=node, host=f"b{node}", port=9092)
                for node in range(1, self.brokers + 1)
            ],
            topics=[self._topic(name) for name in wanted],
        )

    def _topic(self, name: str) -> Any:
        response = messages.MetadataResponse
        if name not in self.topics:
            return response.MetadataResponseTopic(name=name, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        partition = response.MetadataResponsePartition(
            partition_index=0, leader_id=self.leader, leader_epoch=self.leader_epoch, replica_nodes=[1, 2]
        )
        return response.MetadataResponseTopic(name=name, topic_id=self.topics[name], partitions=[partition])


class Peer:
    """The broker's side of a connection. A response of None is none at all; an exception closes the connection."""

    def __init__(self, script: Script, node: int) -> None:
        self.script, self.node = script, node
        self.connection: Connection | None = None

    def connected(self, connection: Connection) -> None:
        self.connection = connection

    def frame_received(self, frame: memoryview) -> None:
        assert self.connection is not None
        header, position = framing.parse_request_header(frame)
        request = codec.decode_request(header.api_key, header.api_version, memoryview(bytes(frame[position:])))
        try:
            response = self.script.response(self.node, request)
        except ConnectionResetError:
            self.connection.abort()
            return
        if response is not None:
            self.connection.send(
                framing.frame_response(header.api_key, header.api_version, header.correlation_id, response)
            )

    def drained(self) -> None: ...

    def disconnected(self, reason: str) -> None: ...


class World:
    """A loop, a network, the scripted brokers and one client."""

    def __init__(self, script: Script, bootstrap: str = "b1:9092,b2:9092", **settings: Any) -> None:
        self.script = script
        self.loop = SimulatedLoop()
        self.network = SimulatedNetwork(self.loop, 3)
        self.settings = ClientSettings(**settings)
        self.bootstrap = bootstrap

    async def serve(self, node: int) -> None:
        host = self.network.host(f"b{node}")
        await host.listen(Address(f"b{node}", 9092), lambda: Peer(self.script, node), 10_000_000)

    def client(self) -> AsyncClient:
        ports = (self.network.host("c"), SimulatedClock(self.loop.now_ms), random.Random(1))
        return AsyncClient(*ports, self.bootstrap, settings=self.settings)

    def run(self, act: Callable[[AsyncClient], Coroutine[Any, Any, Any]]) -> Any:
        async def main() -> Any:
            for node in range(1, self.script.brokers + 1):
                await self.serve(node)
            async with self.client() as client:
                return await act(client)

        return self.loop.run(main())


def produced(code: int = 0, base_offset: int = 7, message: str | None = None) -> Any:
    response = messages.ProduceResponse
    part = response.PartitionProduceResponse(index=0, error_code=code, base_offset=base_offset, error_message=message)
    return response(responses=[response.TopicProduceResponse(name="t", topic_id=TOPIC_ID, partition_responses=[part])])


def batch(producer_id: int = -1) -> bytearray:
    sequence = 0 if producer_id >= 0 else -1
    return build_batch([(0, b"k", b"v", ())], producer_id=producer_id, producer_epoch=sequence, base_sequence=sequence)

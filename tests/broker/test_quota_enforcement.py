"""Quotas on a broker: clients over them are throttled, by their responses and muted connections; others are not."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from broker_scene import BROKER, FRAME_BYTES_MAX, Scene, Talker, batch, fetch_request, on_broker, produce_request
from test_client_quota_apis import alter

from moldau.broker.fastpath.produce import ProduceFastPath
from moldau.model.errors import ErrorCode
from moldau.model.ids import NO_TOPIC_ID
from moldau.wire import messages as m
from moldau.wire.framing import RequestHeader, frame_request

pytestmark = pytest.mark.proves("P4", part="quotas")

SECONDS = 30
QUOTA = 100_000  # bytes per second


class Client(Talker):
    """A talker with a client id of its own."""

    def __init__(self, client_id: str) -> None:
        super().__init__()
        self.client_id = client_id

    def begin(self, version: int, request: Any, *, has_response: bool = True) -> "asyncio.Future[Any]":
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if has_response:
            self._requested.append((request.API_KEY, version, future))
        self._correlation_id += 1
        header = RequestHeader(request.API_KEY, version, self._correlation_id, self.client_id)
        self.connection.send(frame_request(header, request))
        return future


async def connect(scene: Scene, client_id: str) -> Client:
    client = Client(client_id)
    await scene.simulation.network.host("client").connect(BROKER, client, FRAME_BYTES_MAX)
    return client


def now_s() -> float:
    return asyncio.get_running_loop().time()


def frame_bytes(client: Client, request: m.ProduceRequest) -> int:
    pieces = frame_request(RequestHeader(request.API_KEY, 9, 0, client.client_id), request)
    return sum(len(piece) for piece in pieces) - 4  # without its own length


async def produce_for(
    client: Client, topic: str, seconds: float, record_bytes: int, bytes_per_second: float
) -> tuple[int, float, int]:
    """Send requests one after the other: the bytes sent, the longest response time, the longest throttle time."""
    records = batch(b"x" * record_bytes)
    request_bytes = frame_bytes(client, produce_request(topic, records))
    start_s, sent, slowest_s, throttle_ms = now_s(), 0, 0.0, 0
    while now_s() - start_s < seconds:
        requested_s = now_s()
        response = await client.ask(9, produce_request(topic, records))
        assert response.responses[0].partition_responses[0].error_code == ErrorCode.NONE
        sent += request_bytes
        slowest_s = max(slowest_s, now_s() - requested_s)
        throttle_ms = max(throttle_ms, response.throttle_time_ms)
        await asyncio.sleep(max(0.0, start_s + sent / bytes_per_second - now_s()))
    return sent, slowest_s, throttle_ms


def with_quotas(script: Callable[[Scene, Talker], Coroutine[Any, Any, None]], *settings: str) -> None:
    async def play(scene: Scene) -> None:
        await scene.create("t", segment_bytes=1 << 20)
        await script(scene, await scene.connect())

    on_broker(play, settings=settings)


@pytest.mark.parametrize("record_bytes", [2_000, 10_000])
def test_producer_at_ten_times_its_quota_is_held_to_it_and_its_neighbour_is_not(record_bytes: int) -> None:
    async def script(scene: Scene, talker: Talker) -> None:
        await alter(talker, {"client-id": "fast"}, producer_byte_rate=QUOTA)
        fast, neighbour = await connect(scene, "fast"), await connect(scene, "neighbour")
        (sent, _, throttle_ms), (_, slowest_s, neighbours_ms) = await asyncio.gather(
            produce_for(fast, "t", SECONDS, record_bytes, 10 * QUOTA),
            produce_for(neighbour, "t", SECONDS, 1_000, QUOTA / 10),
        )
        assert sent == pytest.approx(QUOTA * SECONDS, rel=0.05)
        assert throttle_ms > 0
        assert neighbours_ms == 0
        assert slowest_s < 0.2

    with_quotas(script)


def test_connections_of_one_entity_share_its_quota() -> None:
    async def script(scene: Scene, talker: Talker) -> None:
        await alter(talker, {"user": "ANONYMOUS"}, producer_byte_rate=QUOTA)
        clients = [await connect(scene, name) for name in ("a", "b", "b")]
        results = await asyncio.gather(*(produce_for(each, "t", SECONDS, 2_000, 2 * QUOTA) for each in clients))
        assert sum(sent for sent, _, _ in results) == pytest.approx(QUOTA * SECONDS, rel=0.05)
        assert all(sent > QUOTA * SECONDS / 10 for sent, _, _ in results)

    with_quotas(script)


def test_pipelined_producer_is_held_to_its_quota() -> None:
    async def script(scene: Scene, talker: Talker) -> None:
        await alter(talker, {"client-id": None}, producer_byte_rate=QUOTA)
        client, records = await connect(scene, "pipelined"), batch(b"x" * 5_000)
        start_s, sent = now_s(), 0
        pending: list[asyncio.Future[Any]] = []
        while now_s() - start_s < SECONDS:
            pending.append(client.begin(9, produce_request("t", records)))
            if len(pending) == 5:
                await pending.pop(0)
                sent += frame_bytes(client, produce_request("t", records))
        assert sent == pytest.approx(QUOTA * SECONDS, rel=0.05)

    with_quotas(script)


def test_fast_path_handles_producers_within_their_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    handled: list[bool] = []
    original = ProduceFastPath.try_handle

    def try_handle(fast_path: ProduceFastPath, frame: memoryview) -> bool:
        handled.append(original(fast_path, frame))
        return handled[-1]

    monkeypatch.setattr(ProduceFastPath, "try_handle", try_handle)

    async def script(scene: Scene, talker: Talker) -> None:
        await alter(talker, {"client-id": "p"}, producer_byte_rate=QUOTA)
        client = await connect(scene, "p")
        sent, _, throttle_ms = await produce_for(client, "t", 10, 1_000, QUOTA / 2)
        assert throttle_ms == 0
        assert handled.count(True) > 0.9 * sent / 1_200
        metrics = scene.node.broker.client_quotas
        (entity,) = metrics._entities.values()
        assert entity.rate.per_second(scene.node.broker.clock.monotonic_ms()) == pytest.approx(QUOTA / 2, rel=0.15)

    with_quotas(script)


def test_quota_that_is_removed_no_longer_throttles() -> None:
    async def script(scene: Scene, talker: Talker) -> None:
        await alter(talker, {"client-id": "p"}, producer_byte_rate=1_000)
        client = await connect(scene, "p")
        _, _, throttle_ms = await produce_for(client, "t", 3, 1_000, QUOTA)
        assert throttle_ms > 500
        await alter(talker, {"client-id": "p"}, producer_byte_rate=None)
        await asyncio.sleep(3)
        sent, _, throttle_ms = await produce_for(client, "t", 3, 1_000, QUOTA)
        assert throttle_ms == 0
        assert sent > 2 * QUOTA

    with_quotas(script)


def test_removed_quota_no_longer_throttles_beside_other_quotas() -> None:
    """The connection stays open, and quotas are still in use: those of another client."""

    async def script(scene: Scene, talker: Talker) -> None:
        await alter(talker, {"client-id": "other"}, producer_byte_rate=1_000)
        await alter(talker, {"client-id": "p"}, producer_byte_rate=1_000)
        client = await connect(scene, "p")
        assert (await produce_for(client, "t", 3, 1_000, QUOTA))[2] > 500
        await alter(talker, {"client-id": "p"}, producer_byte_rate=None)
        await asyncio.sleep(3)
        sent, _, throttle_ms = await produce_for(client, "t", 3, 1_000, QUOTA)
        assert (throttle_ms, sent > 2 * QUOTA) == (0, True)
        assert (await produce_for(await connect(scene, "other"), "t", 3, 1_000, QUOTA))[2] > 500

    with_quotas(script)


def test_quota_applies_to_connections_that_were_open_before() -> None:
    async def script(scene: Scene, talker: Talker) -> None:
        client = await connect(scene, "p")
        assert (await produce_for(client, "t", 1, 1_000, QUOTA))[2] == 0
        await alter(talker, {"client-id": "p"}, producer_byte_rate=QUOTA // 10)
        sent, _, throttle_ms = await produce_for(client, "t", SECONDS, 1_000, QUOTA)
        assert throttle_ms > 0
        assert sent == pytest.approx(QUOTA // 10 * SECONDS, rel=0.05)

    with_quotas(script)


def test_requests_of_two_client_ids_on_one_connection_are_charged_to_each() -> None:
    async def script(scene: Scene, talker: Talker) -> None:
        await alter(talker, {"client-id": "limited"}, producer_byte_rate=QUOTA)
        client, records = await connect(scene, "limited"), batch(b"x" * 10_000)
        for client_id in ["free", "limited"] * 5:
            client.client_id = client_id
            assert (await client.ask(9, produce_request("t", records))).throttle_time_ms == 0
        client.client_id = "free"
        for _ in range(40):  # far more than the quota of the other
            assert (await client.ask(9, produce_request("t", records))).throttle_time_ms == 0

    with_quotas(script)


@pytest.mark.parametrize("version", [4, 12])
def test_consumer_at_ten_times_its_quota_is_held_to_it(version: int) -> None:
    async def script(scene: Scene, talker: Talker) -> None:
        producer = await connect(scene, "producer")
        for _ in range(100):
            await producer.ask(9, produce_request("t", batch(b"x" * 10_000)))
        await alter(talker, {"user": None, "client-id": "reader"}, consumer_byte_rate=QUOTA)
        reader = await connect(scene, "reader")
        start_s, fetched, throttled = now_s(), 0, 0
        while now_s() - start_s < SECONDS:
            request = fetch_request("t", 0, max_wait_ms=100, max_bytes=50_000)
            response = await reader.ask(version, request)
            throttled += response.throttle_time_ms > 0
            for topic in response.responses:
                fetched += len(topic.partitions[0].records)
        assert fetched == pytest.approx(QUOTA * SECONDS, rel=0.05)
        assert throttled

    with_quotas(script)


def test_batch_larger_than_the_quota_is_fetched_nevertheless() -> None:
    async def script(scene: Scene, talker: Talker) -> None:
        producer = await connect(scene, "producer")
        await producer.ask(9, produce_request("t", batch(b"x" * 50_000)))
        await alter(talker, {"client-id": "reader"}, consumer_byte_rate=10_000)
        reader = await connect(scene, "reader")
        response = await reader.ask(12, fetch_request("t", 0))
        assert len(response.responses[0].partitions[0].records) > 50_000
        assert response.throttle_time_ms == pytest.approx(4_000, rel=0.1)
        other = await connect(scene, "reader")
        response = await other.ask(12, fetch_request("t", 0))  # its entity is over the quota
        assert (list(response.responses), response.error_code) == ([], 0)
        assert response.throttle_time_ms > 3_000

    with_quotas(script)


def topics_request(*topics: tuple[str, int], validate_only: bool = False) -> m.CreateTopicsRequest:
    return m.CreateTopicsRequest(
        topics=[
            m.CreateTopicsRequest.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
            for name, partitions in topics
        ],
        validate_only=validate_only,
    )


def test_mutations_beyond_the_quota_are_rejected_topic_by_topic() -> None:
    async def script(scene: Scene, talker: Talker) -> None:
        await alter(talker, {"user": "ANONYMOUS"}, controller_mutation_rate=1)  # 11 at once
        response = await talker.ask(7, topics_request(("a", 15), ("b", 1)))
        assert [each.error_code for each in response.topics] == [0, ErrorCode.THROTTLING_QUOTA_EXCEEDED]
        assert 3_000 <= response.throttle_time_ms <= 4_000
        grow = m.CreatePartitionsRequest(
            topics=[m.CreatePartitionsRequest.CreatePartitionsTopic(name="t", count=2, assignments=None)]
        )
        other = await scene.connect()  # the first connection is muted
        response = await other.ask(3, grow)
        assert response.results[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert response.throttle_time_ms > 0
        third = await scene.connect()
        delete = m.DeleteTopicsRequest(topics=[m.DeleteTopicsRequest.DeleteTopicState(name="a", topic_id=NO_TOPIC_ID)])
        response = await third.ask(6, delete)
        assert response.responses[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        await asyncio.sleep(5)
        response = await talker.ask(6, delete)
        assert response.responses[0].error_code == ErrorCode.NONE

    with_quotas(script)


def test_old_versions_are_throttled_but_not_rejected_for_mutations() -> None:
    async def script(_: Scene, talker: Talker) -> None:
        await alter(talker, {"user": "ANONYMOUS"}, controller_mutation_rate=1)
        response = await talker.ask(5, topics_request(("a", 15), ("b", 1)))
        assert [each.error_code for each in response.topics] == [0, 0]
        assert response.throttle_time_ms >= 4_000
        started_s = now_s()
        await talker.ask(9, m.MetadataRequest(topics=[]))
        assert now_s() - started_s >= 3.9

    with_quotas(script)


def test_connections_beyond_the_rate_of_an_address_are_closed() -> None:
    async def script(scene: Scene, talker: Talker) -> None:
        await alter(talker, {"ip": None}, connection_creation_rate=5)
        clients = [await connect(scene, "c") for _ in range(20)]
        await asyncio.sleep(2)
        closed = [each for each in clients if each.is_lost.is_set()]
        assert 14 <= len(closed) <= 16
        still_open = next(each for each in clients if not each.is_lost.is_set())
        assert (await still_open.ask(9, m.MetadataRequest(topics=[]))).brokers
        await alter(talker, {"ip": "10.1.2.3"}, connection_creation_rate=1000)
        await alter(talker, {"ip": None}, connection_creation_rate=None)
        more = [await connect(scene, "c") for _ in range(20)]
        await asyncio.sleep(2)
        assert not any(each.is_lost.is_set() for each in more)

    with_quotas(script)


def test_connections_beyond_the_broker_s_rate_are_served_later() -> None:
    async def script(scene: Scene, _: Talker) -> None:
        started_s = now_s()
        clients = [await connect(scene, "c") for _ in range(30)]
        await asyncio.gather(*(each.ask(9, m.MetadataRequest(topics=[])) for each in clients))
        assert 4 <= now_s() - started_s <= 6  # 30 connections at 5 per second, less one window

    with_quotas(script, "max.connection.creation.rate=5")

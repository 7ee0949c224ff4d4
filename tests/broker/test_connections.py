"""Connections: request order, bounds, back-pressure, timeouts, and the log lines for rejected peers."""

import asyncio
import struct
from collections.abc import Callable
from typing import Any

import pytest
from broker_scene import Scene, batch, fetch_request, on_broker, produce_request
from raw_peers import raw_peer

from moldau.broker.network.response_queue import QUEUED_MEMORY_BYTES_MAX, REQUESTS_IN_FLIGHT_MAX
from moldau.broker.requests.context import RequestContext
from moldau.broker.runtime.time_slice import ALONE
from moldau.model.errors import ErrorCode
from moldau.wire.codec import decode_response
from moldau.wire.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataRequest,
)

API_VERSIONS, DESCRIBE_CLUSTER = 18, 60
PING = ApiVersionsRequest()
RESPONSE_BYTES = 20_000


class ControlledHandler:
    """Replaces a handler: records when a request starts, and responds on demand."""

    def __init__(self, scene: Scene, api_key: int, response: Callable[[], Any], weight: int = 1) -> None:
        self.begun: list[int] = []
        self._go: dict[int, asyncio.Event] = {}
        self._response = response
        self._weight = weight
        api = scene.node.routers.broker.api(api_key)
        assert api is not None
        api.handle = self.handle

    async def handle(self, request: Any, context: RequestContext[Any]) -> Any:  # noqa: ARG002
        self.begun.append(context.correlation_id)
        context.weight = self._weight
        go = self._go[context.correlation_id] = asyncio.Event()
        await go.wait()
        return self._response()

    def response(self, correlation_id: int) -> None:
        self._go[correlation_id].set()


def responses_in_order(futures: list[Any]) -> list[int]:
    """Return the list to which response numbers are appended in order of arrival."""
    order: list[int] = []
    for number, future in enumerate(futures):
        future.add_done_callback(lambda _, number=number: order.append(number))
    return order


def test_requests_start_in_order_and_responses_keep_it() -> None:
    async def script(scene: Scene) -> None:
        held = ControlledHandler(scene, DESCRIBE_CLUSTER, DescribeClusterResponse)
        talker = await scene.connect()
        order = responses_in_order([talker.begin(0, DescribeClusterRequest()) for _ in range(4)])
        await asyncio.sleep(1)
        assert held.begun == [1, 2, 3, 4]
        for correlation_id in (4, 2, 3):
            held.response(correlation_id)
        await asyncio.sleep(1)
        assert order == []
        held.response(1)
        await asyncio.sleep(1)
        assert order == [0, 1, 2, 3]

    on_broker(script)


@pytest.mark.proves("P4")
def test_requests_in_flight_are_bounded() -> None:
    async def script(scene: Scene) -> None:
        held = ControlledHandler(scene, DESCRIBE_CLUSTER, DescribeClusterResponse)
        talker = await scene.connect()
        requested = [talker.begin(0, DescribeClusterRequest()) for _ in range(REQUESTS_IN_FLIGHT_MAX + 50)]
        await asyncio.sleep(5)
        assert len(held.begun) == REQUESTS_IN_FLIGHT_MAX
        for correlation_id in range(1, 31):
            held.response(correlation_id)
        await asyncio.sleep(5)
        assert len(held.begun) == REQUESTS_IN_FLIGHT_MAX + 30
        for correlation_id in range(31, len(requested) + 1):
            while correlation_id not in held.begun:
                await asyncio.sleep(0.01)
            held.response(correlation_id)
        await asyncio.gather(*requested)

    on_broker(script)


def test_heavy_request_blocks_only_its_own_connection() -> None:
    async def script(scene: Scene) -> None:
        held = ControlledHandler(scene, DESCRIBE_CLUSTER, DescribeClusterResponse, weight=ALONE)
        talker, other = await scene.connect(), await scene.connect()
        requested = [talker.begin(0, DescribeClusterRequest()) for _ in range(3)]
        await asyncio.sleep(1)
        assert held.begun == [1]
        assert (await other.ask(0, PING)).error_code == 0
        for correlation_id in (1, 2, 3):
            assert held.begun[-1] == correlation_id
            held.response(correlation_id)
            await asyncio.sleep(1)
        await asyncio.gather(*requested)

    on_broker(script)


def test_queued_responses_weigh_by_their_size() -> None:
    async def script(scene: Scene) -> None:
        held = ControlledHandler(scene, DESCRIBE_CLUSTER, DescribeClusterResponse)
        begun = large_responses(scene)
        talker = await scene.connect()
        first = talker.begin(0, DescribeClusterRequest())
        rest = [talker.begin(0, PING) for _ in range(120)]
        await asyncio.sleep(5)
        assert len(begun) * RESPONSE_BYTES < QUEUED_MEMORY_BYTES_MAX + 3 * RESPONSE_BYTES
        held.response(1)
        await first
        await asyncio.gather(*rest)
        assert len(begun) == 120

    on_broker(script)


def large_responses(scene: Scene) -> list[int]:
    """Make ApiVersions return 20 kB; the list grows as requests start."""
    begun: list[int] = []

    async def handle(request: ApiVersionsRequest, context: RequestContext[Any]) -> ApiVersionsResponse:  # noqa: ARG001
        begun.append(context.correlation_id)
        return ApiVersionsResponse(api_keys=[ApiVersionsResponse.ApiVersion()] * (RESPONSE_BYTES // 6))

    api = scene.node.routers.broker.api(API_VERSIONS)
    assert api is not None
    api.handle = handle
    return begun


@pytest.mark.proves("P4")
def test_peer_that_does_not_read_is_paused_and_gets_everything_later() -> None:
    async def script(scene: Scene) -> None:
        begun = large_responses(scene)
        talker = await scene.connect()
        talker.connection.pause_reading()
        requested = [talker.begin(0, PING) for _ in range(120)]
        await asyncio.sleep(10)
        window = 256 * 1024
        assert len(begun) * RESPONSE_BYTES < window + QUEUED_MEMORY_BYTES_MAX + 3 * RESPONSE_BYTES
        talker.connection.resume_reading()
        await asyncio.gather(*requested)
        assert len(begun) == 120

    on_broker(script)


def test_peer_that_never_reads_is_closed_after_the_idle_timeout(caplog: pytest.LogCaptureFixture) -> None:
    async def script(scene: Scene) -> None:
        large_responses(scene)
        talker = await scene.connect()
        talker.connection.pause_reading()
        requested = [talker.begin(0, PING) for _ in range(120)]
        await asyncio.sleep(100)
        assert len(scene.node._listeners.limits) == 0
        talker.connection.abort()
        await asyncio.gather(*requested, return_exceptions=True)

    on_broker(script, settings=["connections.max.idle.ms=10000"])
    assert "the peer does not read its responses" in caplog.text


def test_throttled_connection_is_read_again_after_the_throttle_time() -> None:
    async def script(scene: Scene) -> None:
        throttles = iter((3000, 1000, 0))

        async def handle(request: Any, context: RequestContext[Any]) -> ApiVersionsResponse:  # noqa: ARG001
            context.throttle_ms = next(throttles)
            return ApiVersionsResponse()

        api = scene.node.routers.broker.api(API_VERSIONS)
        assert api is not None
        api.handle = handle
        talker = await scene.connect()
        began_s = scene.simulation.now_s
        requested = [talker.begin(0, PING) for _ in range(3)]
        await requested[0]
        assert scene.simulation.now_s - began_s < 0.5  # the response itself is not delayed
        await requested[1]
        assert 3 <= scene.simulation.now_s - began_s < 3.5
        await requested[2]
        assert 4 <= scene.simulation.now_s - began_s < 4.5

    on_broker(script)


def test_longest_throttle_wins() -> None:
    async def script(scene: Scene) -> None:
        throttles = {1: (1, 5000), 2: (2, 1000)}  # by correlation id: response after n seconds, throttle time
        begun: list[float] = []

        async def handle(request: Any, context: RequestContext[Any]) -> ApiVersionsResponse:  # noqa: ARG001
            begun.append(scene.simulation.now_s)
            wait_s, context.throttle_ms = throttles.get(context.correlation_id, (0, 0))
            await asyncio.sleep(wait_s)
            return ApiVersionsResponse()

        api = scene.node.routers.broker.api(API_VERSIONS)
        assert api is not None
        api.handle = handle
        talker = await scene.connect()
        await asyncio.gather(*[talker.begin(0, PING) for _ in range(2)])
        await talker.ask(0, PING)
        assert 6 <= begun[2] - begun[0] < 6.5

    on_broker(script)


# Rejected requests


def test_unsupported_api_versions_version_gets_a_version_0_response() -> None:
    async def script(scene: Scene) -> None:
        peer = await raw_peer(scene)
        header = struct.pack(">hhi", API_VERSIONS, 9, 77) + struct.pack(">h", 2) + b"me" + b"\0"
        body = header + b"\x09whatever\x05" + b"\0" * 7
        peer.connection.send([struct.pack(">i", len(body)) + body])
        await asyncio.sleep(1)
        assert struct.unpack(">i", peer.frames[0][:4]) == (77,)
        response = decode_response(API_VERSIONS, 0, memoryview(peer.frames[0][4:]))
        assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert [(each.api_key, each.min_version, each.max_version) for each in response.api_keys] == [(18, 0, 4)]
        assert not peer.is_lost.is_set()

    on_broker(script)


GARBAGE = (
    (struct.pack(">hhih", 999, 0, 1, -1), "API 999 version 0 is not supported"),
    (struct.pack(">hhih", -5, 0, 1, -1), "API -5 version 0 is not supported"),
    (struct.pack(">hhih", 3, 99, 1, -1), "API 3 version 99 is not supported"),
    (struct.pack(">hhih", 0, 2, 1, -1), "API 0 version 2 is not supported"),
    (b"", "malformed request header"),
    (struct.pack(">hhih", 3, 1, 1, 500) + b"short", "malformed request header"),
    (struct.pack(">hhih", 3, 1, 1, 2) + b"\xff\xfe", "malformed Metadata request (version 1)"),
    (struct.pack(">hhih", 3, 1, 1, -1) + b"\x7f\xff\xff\xff", "malformed Metadata request (version 1)"),
    (struct.pack(">hhih", 3, 1, 1, -1), "malformed Metadata request (version 1)"),
)


@pytest.mark.parametrize(("frame", "words"), GARBAGE)
def test_malformed_request_closes_the_connection_and_is_logged(
    caplog: pytest.LogCaptureFixture, frame: bytes, words: str
) -> None:
    async def script(scene: Scene) -> None:
        peer = await raw_peer(scene)
        peer.connection.send([struct.pack(">i", len(frame)) + frame])
        async with asyncio.timeout(5):
            await peer.is_lost.wait()
        assert peer.frames == []

    on_broker(script)
    assert words in caplog.text
    assert "Closing the connection from client:" in caplog.text


FOREIGN = (
    (b"GET / HTTP/1.1\r\n\r\n", "look like HTTP"),
    (b"PRI * HTTP/2.0\r\n\r\n", "look like HTTP/2"),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "look like TLS"),
    (b"SSH-2.0-OpenSSH_9.6\r\n", "look like SSH"),
    (struct.pack(">i", -1) + b"x", "frame of -1 bytes"),
    (struct.pack(">i", 104_857_601) + b"x", "frame of 104857601 bytes exceeds the limit of 104857600"),
)


@pytest.mark.parametrize(("sent", "words"), FOREIGN)
def test_other_protocol_is_named_in_the_log(caplog: pytest.LogCaptureFixture, sent: bytes, words: str) -> None:
    async def script(scene: Scene) -> None:
        peer = await raw_peer(scene)
        peer.connection.send([sent])
        async with asyncio.timeout(5):
            await peer.is_lost.wait()

    on_broker(script)
    assert words in caplog.text


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (lambda _: struct.pack(">ihhih", 10, 3, 99, 1, -1), "version 99 is not supported"),
        (lambda number: struct.pack(">i", -1 - number), "exceeds the limit"),
    ],
)
def test_flood_of_rejections_is_logged_at_a_limited_rate(
    caplog: pytest.LogCaptureFixture, frame: Callable[[int], bytes], words: str
) -> None:
    async def script(scene: Scene) -> None:
        for count in range(500):
            peer = await raw_peer(scene)
            peer.connection.send([frame(count)])
            await peer.is_lost.wait()
            if count == 400:
                await asyncio.sleep(100)

    on_broker(script)
    lines = [line for line in caplog.text.splitlines() if words in line]
    assert 10 < len(lines) <= 21
    assert any("similar lines suppressed" in line for line in lines)


def test_peer_cannot_inject_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        name = "x\n2026-01-01 INFO all is well\x1b[2J" + "y" * 5000
        talker.begin(9, produce_request(name, batch(b"a"), acks=0), has_response=False)
        await talker.is_lost.wait()

    on_broker(script)
    (line,) = [each.getMessage() for each in caplog.records if "acks=0" in each.getMessage()]
    assert "\n" not in line
    assert "\x1b" not in line
    assert len(line) < 600


def test_handler_bug_is_reported_and_the_connection_survives(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(scene: Scene) -> None:
        reported: list[str] = []
        monkeypatch.setattr(scene.node.broker, "report_bug", lambda where, _: reported.append(where))
        api = scene.node.routers.broker.api(DESCRIBE_CLUSTER)
        assert api is not None

        async def at_once(*_: Any) -> Any:
            raise ZeroDivisionError

        async def later(*_: Any) -> Any:
            await asyncio.sleep(1)
            raise ZeroDivisionError

        talker = await scene.connect()
        for handle in (at_once, later):
            api.handle = handle
            assert (await talker.ask(0, DescribeClusterRequest())).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert reported == ["DescribeCluster version 0 from client"] * 2
        assert (await talker.ask(0, PING)).error_code == 0

    on_broker(script)


def test_unencodable_response_closes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(scene: Scene) -> None:
        reported: list[str] = []
        monkeypatch.setattr(scene.node.broker, "report_bug", lambda where, _: reported.append(where))
        held = ControlledHandler(scene, DESCRIBE_CLUSTER, lambda: DescribeClusterResponse(cluster_id="x" * 40_000))
        talker = await scene.connect()
        requested = talker.begin(0, DescribeClusterRequest())
        await asyncio.sleep(1)
        held.response(1)
        with pytest.raises(ConnectionResetError):
            await requested
        assert len(reported) == 1

    on_broker(script)


def test_closed_connection_cancels_its_waiting_requests() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        requested = talker.begin(11, fetch_request("t", 0, max_wait_ms=300_000))
        await asyncio.sleep(1)
        partition = scene.node.broker.partitions.get("t", 0)
        assert partition.waiters.watchers
        talker.connection.close()
        await asyncio.sleep(1)
        assert not partition.waiters.watchers
        await asyncio.gather(requested, return_exceptions=True)

    on_broker(script)


def test_metadata_rejects_a_topic_name_that_is_too_long() -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        topic = MetadataRequest.MetadataRequestTopic(name="x" * 32_767)
        response = await talker.ask(9, MetadataRequest(topics=[topic]))
        assert response.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert response.topics[0].name == "x" * 32_767

    on_broker(script)

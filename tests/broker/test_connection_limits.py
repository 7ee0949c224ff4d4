"""Connection limits: their number, their idle time, and the time to receive a frame."""

import asyncio
import struct

import pytest
from broker_scene import Scene, batch, fetch_request, on_broker, produce_request
from raw_peers import raw_peer

from moldau.broker.network.connection import FRAME_MS_MAX
from moldau.wire.framing import RequestHeader, frame_request
from moldau.wire.messages import ApiVersionsRequest, IncrementalAlterConfigsRequest

PING = ApiVersionsRequest()


def test_connections_beyond_the_limit_are_rejected(caplog: pytest.LogCaptureFixture) -> None:
    async def script(scene: Scene) -> None:
        talkers = [await scene.connect() for _ in range(2)]
        rejected = await raw_peer(scene)
        await rejected.is_lost.wait()
        talkers[0].connection.close()
        await asyncio.sleep(1)
        assert (await (await scene.connect()).ask(0, PING)).error_code == 0
        assert scene.node._listeners.limits.rejected == 1

    on_broker(script, settings=["max.connections=2"])
    assert "there are 2 connections already (max.connections)" in caplog.text


def test_addresses_have_limits_of_their_own() -> None:
    async def script(scene: Scene) -> None:
        peers = [await raw_peer(scene, "client") for _ in range(3)]
        others = [await raw_peer(scene, "busy") for _ in range(5)]
        await asyncio.sleep(1)
        assert [peer.is_lost.is_set() for peer in peers] == [False, False, True]
        assert [peer.is_lost.is_set() for peer in others] == [False, False, False, False, True]

    on_broker(script, settings=["max.connections.per.ip=2", "max.connections.per.ip.overrides=busy:4"])


def test_limit_changes_while_the_broker_runs() -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        config = IncrementalAlterConfigsRequest.AlterableConfig(name="max.connections", config_operation=0, value="1")
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=4, resource_name="", configs=[config]
        )
        response = await talker.ask(1, IncrementalAlterConfigsRequest(resources=[resource]))
        assert response.responses[0].error_code == 0
        rejected = await raw_peer(scene)
        await rejected.is_lost.wait()

    on_broker(script)


def test_idle_connection_is_closed_and_a_waiting_one_is_not() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        silent, waiting, busy = [await scene.connect() for _ in range(3)]
        fetched = waiting.begin(11, fetch_request("t", 0, max_wait_ms=60_000))
        for _ in range(20):
            await busy.ask(0, PING)
            await asyncio.sleep(1)
        assert [each.is_lost.is_set() for each in (silent, waiting, busy)] == [True, False, False]
        await busy.ask(9, produce_request("t", batch(b"a")))
        await fetched

    on_broker(script, settings=["connections.max.idle.ms=10000"])


def test_idle_timeout_can_be_disabled() -> None:
    async def script(scene: Scene) -> None:
        silent = await scene.connect()
        await asyncio.sleep(2_000)
        assert (await silent.ask(0, PING)).error_code == 0

    on_broker(script, settings=["connections.max.idle.ms=-1"])


@pytest.mark.parametrize("idle_ms", [-1, 600_000])
def test_connection_with_an_endless_frame_is_closed(caplog: pytest.LogCaptureFixture, idle_ms: int) -> None:
    async def script(scene: Scene) -> None:
        peer = await raw_peer(scene)
        await asyncio.sleep(200)  # idle time before a frame does not count
        peer.connection.send([struct.pack(">i", 1_000_000)])
        began_s = scene.simulation.now_s
        while not peer.is_lost.is_set():
            peer.connection.send([b"x"])
            await asyncio.sleep(1)
        assert FRAME_MS_MAX / 1000 <= scene.simulation.now_s - began_s < FRAME_MS_MAX / 1000 + 15

    on_broker(script, settings=[f"connections.max.idle.ms={idle_ms}"])
    assert "no complete request within 60 seconds" in caplog.text


def test_consecutive_slow_frames_are_accepted() -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        whole = b"".join(bytes(piece) for piece in frame_request(RequestHeader(18, 0, 1, "slow"), PING))  # type: ignore[arg-type]
        for _ in range(5):
            pending = talker.begin(0, PING)
            talker.connection.send([whole[:6]])
            await pending
            await asyncio.sleep(FRAME_MS_MAX / 1000 - 15)
            talker._requested.append((18, 0, asyncio.get_running_loop().create_future()))
            talker.connection.send([whole[6:]])
            await asyncio.sleep(1)
        assert not talker.is_lost.is_set()

    on_broker(script)

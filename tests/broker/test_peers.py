"""Connections between nodes: pooled, reopened, limited in time and number; detection of dead peers."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from broker_scene import BROKER, Scene, batch, on_broker, produce

from moldau.broker.cluster.peers import BACKOFF_LONGEST_MS, LINKS_MAX, Peers
from moldau.client.errors import ConnectionLost, ResponseTimeout, Unreachable
from moldau.model.ids import Address
from moldau.wire.messages import ApiVersionsRequest, DescribeClusterRequest, FetchRequest


def with_peers(script: Callable[[Scene, Peers], Coroutine[Any, Any, None]]) -> None:
    """Run a script with a node, and another node's connections to it."""

    async def play(scene: Scene) -> None:
        peers = Peers(scene.simulation.network.host("peer"), scene.host.clock, "peer-2")
        try:
            await script(scene, peers)
        finally:
            await peers.close()
            if not scene.host.is_up:
                await scene.restart()

    on_broker(play)


async def cluster_id(peers: Peers, **options: Any) -> str:
    response = await peers.ask(BROKER, DescribeClusterRequest(), **{"timeout_ms": 5000, **options})
    return str(response.cluster_id)


def connections_of(scene: Scene) -> int:
    return sum(each.local.host == "peer" for each in scene.simulation.network._connections)


def test_requests_of_one_purpose_share_a_connection() -> None:
    async def script(scene: Scene, peers: Peers) -> None:
        responses = await asyncio.gather(*(cluster_id(peers) for _ in range(20)))
        assert set(responses) == {scene.node.cluster_id}
        assert connections_of(scene) == 1
        await cluster_id(peers, purpose="another")
        assert connections_of(scene) == 2

    with_peers(script)


def test_restarted_peer_is_reached_over_a_new_connection() -> None:
    async def script(scene: Scene, peers: Peers) -> None:
        lost: list[tuple[Address, str]] = []
        peers.on_lost.append(lambda address, reason: lost.append((address, reason)))
        await cluster_id(peers)
        scene.host.crash()
        await asyncio.sleep(0.1)
        assert [address for address, _ in lost] == [BROKER]
        with pytest.raises(Unreachable):
            await cluster_id(peers)
        await scene.restart()
        assert await cluster_id(peers) == scene.node.cluster_id

    with_peers(script)


@pytest.mark.proves("H6")
def test_reconnects_to_a_dead_peer_back_off() -> None:
    async def script(scene: Scene, peers: Peers) -> None:
        scene.host.crash()
        began_s, tries = scene.simulation.now_s, 0
        while scene.simulation.now_s < began_s + 10:
            tries += 1
            with pytest.raises(OSError, match=r"refused|in time"):
                await cluster_id(peers)
        assert 10_000 / BACKOFF_LONGEST_MS <= tries < 2 * 10_000 / BACKOFF_LONGEST_MS

    with_peers(script)


@pytest.mark.proves("H3")
def test_request_to_a_silent_peer_times_out() -> None:
    async def script(scene: Scene, peers: Peers) -> None:
        await cluster_id(peers)
        scene.simulation.network.cut_both("peer", "broker")
        for purpose in ("", "another"):
            began_s = scene.simulation.now_s
            with pytest.raises(ResponseTimeout):
                await cluster_id(peers, timeout_ms=300, purpose=purpose)
            assert 0.29 < scene.simulation.now_s - began_s < 0.35
        assert not await peers.is_refused(BROKER)

    with_peers(script)


def test_only_a_port_without_a_listener_counts_as_refused() -> None:
    async def script(scene: Scene, peers: Peers) -> None:
        assert not await peers.is_refused(BROKER)
        assert await peers.is_refused(Address("broker", 9))
        scene.host.crash()
        assert await peers.is_refused(BROKER)

    with_peers(script)


def test_waiting_requests_fail_when_the_connection_closes() -> None:
    async def script(scene: Scene, peers: Peers) -> None:
        await cluster_id(peers)
        scene.simulation.network.cut_both("peer", "broker")
        asking = [
            asyncio.get_running_loop().create_task(cluster_id(peers, purpose=purpose)) for purpose in ("", "another")
        ]
        await asyncio.sleep(0.01)
        lost: list[str] = []
        peers.on_lost.append(lambda _, reason: lost.append(reason))
        await peers.close()
        for task in asking:
            with pytest.raises(ConnectionLost):
                await task
        assert not lost
        with pytest.raises(ConnectionLost):
            await cluster_id(peers)

    with_peers(script)


def fetch_of(topic_id: bytes, offset: int = 0) -> FetchRequest:
    wanted = FetchRequest.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    return FetchRequest(topics=[FetchRequest.FetchTopic(topic_id=topic_id, partitions=[wanted])])


@pytest.mark.proves("H1", part="the ISR")
def test_borrowed_response_is_valid_and_its_callback_can_send_again() -> None:
    async def script(scene: Scene, peers: Peers) -> None:
        await scene.create("t")
        talker = await scene.connect()
        await produce(talker, "t", batch(b"x" * 1000))
        request = fetch_of(scene.node.broker.image.topics["t"].topic_id)
        link = await peers.connect(BROKER, "", 5000)
        assert peers.link_to(BROKER, "") is link
        received: list[bytes] = []
        owners: list[object] = []
        all_received = asyncio.get_running_loop().create_future()

        def receive(response: Any) -> None:
            records = response.responses[0].partitions[0].records
            received.append(bytes(records))
            owners.append(records.obj)
            if len(received) < 3:
                link.send_borrowing(request, timeout_ms=5000, on_response=receive, on_error=all_received.set_exception)
            else:
                all_received.set_result(None)

        link.send_borrowing(request, timeout_ms=5000, on_response=receive, on_error=all_received.set_exception)
        copied = link.send(request)  # its response comes before that of the second borrowed one
        await all_received
        assert received == [bytes((await copied).responses[0].partitions[0].records)] * 3
        assert not any(isinstance(each, bytes) for each in owners)  # the connection's own buffer

    with_peers(script)


def test_borrower_is_notified_when_no_response_will_come() -> None:
    async def script(scene: Scene, peers: Peers) -> None:
        link = await peers.connect(BROKER, "", 5000)
        await link.send(ApiVersionsRequest())
        failures: list[Exception] = []

        def borrow() -> None:
            link.send_borrowing(
                ApiVersionsRequest(), timeout_ms=5000, on_response=lambda _: failures.clear(), on_error=failures.append
            )

        borrow()
        scene.host.crash()
        await asyncio.sleep(0.1)
        assert [type(each) for each in failures] == [ConnectionLost]
        assert peers.link_to(BROKER, "") is None
        borrow()  # of a closed link: at once
        assert [type(each) for each in failures] == [ConnectionLost] * 2

    with_peers(script)


def test_connections_are_bounded_and_the_least_recently_used_is_closed() -> None:
    async def script(scene: Scene, peers: Peers) -> None:
        await cluster_id(peers, purpose="old")
        for number in range(LINKS_MAX - 1):
            peers._route(Address("nowhere", number), "")
        assert peers.is_connected(BROKER, "old")
        await cluster_id(peers, purpose="new")
        assert not peers.is_connected(BROKER, "old")
        assert peers.is_connected(BROKER, "new")
        assert await cluster_id(peers, purpose="old") == scene.node.cluster_id

    with_peers(script)

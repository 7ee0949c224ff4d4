"""The Produce fast path on a replicated partition: acknowledged in order, once the batches are committed."""

import asyncio
from typing import Any

import pytest
from broker_scene import Talker, batch, produce_request
from cluster_scene import BROKER, ONE_CONTROLLER, Cluster, on_cluster
from replica_scene import are_same, contents, copy_of, create, elect_preferred, send, values, where
from test_append_coalescing import in_one_piece

from moldau.broker.fastpath.produce import ProduceFastPath
from moldau.broker.partitions import waiters
from moldau.broker.partitions.leader_role import IN_FLIGHT_MS
from moldau.model.errors import ErrorCode

LOOKED_FROM = 16
QUICK = ("replica.lag.time.max.ms=1000", "broker.session.timeout.ms=60000")


@pytest.fixture(autouse=True)
def handled(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return an entry for each request that the fast path handles."""
    done: list[bool] = []
    original = ProduceFastPath.try_handle

    def try_handle(fast_path: ProduceFastPath, frame: memoryview) -> bool:
        is_handled = original(fast_path, frame)
        done.extend([True] * is_handled)
        return is_handled

    monkeypatch.setattr(ProduceFastPath, "try_handle", try_handle)
    return done


def sent(talker: Talker, *values_: bytes, version: int = 10, **options: Any) -> "list[asyncio.Future[Any]]":
    return [talker.begin(version, produce_request("t", batch(each), **options)) for each in values_]


async def responses(requested: "list[asyncio.Future[Any]]") -> list[tuple[int, int]]:
    async with asyncio.timeout(60):
        found = [(await each).responses[0].partition_responses[0] for each in requested]
    return [(each.error_code, each.base_offset) for each in found]


@pytest.mark.proves("H1")
@pytest.mark.parametrize("version", [7, 10])
def test_acks_all_waits_for_every_in_sync_replica(version: int, handled: list[bool]) -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster)
        talker = await cluster.connect(2)
        produced = [b"%d" % number for number in range(40)]
        assert await responses(sent(talker, *produced, version=version)) == [(0, number) for number in range(40)]
        for node_id in (1, 2, 3):
            assert values(contents(copy_of(cluster, node_id))) == produced
        assert len(handled) >= 39

    on_cluster(script)


def test_acks_one_does_not_wait_for_followers(handled: list[bool]) -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster)
        talker = await cluster.connect(2)
        await responses(sent(talker, b"a", acks=1))
        cluster.host(3).pause()
        assert await responses(sent(talker, b"b", b"c", acks=1)) == [(0, 1), (0, 2)]
        waiting = sent(talker, b"d")
        cluster.host(3).resume()
        assert await responses(waiting) == [(0, 3)]
        assert len(handled) == 2

    on_cluster(script, settings=QUICK)


@pytest.mark.proves("H2")
def test_fast_path_rejects_when_isr_is_below_the_minimum(handled: list[bool]) -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, min_insync_replicas=3)
        talker = await cluster.connect(2)
        assert await responses(sent(talker, b"a", b"b")) == [(0, 0), (0, 1)]
        cluster.kill(3)
        await cluster.until(lambda: where(cluster).isr == (2, 1), 5.0)
        await asyncio.sleep(0.1)
        rejected = (ErrorCode.NOT_ENOUGH_REPLICAS, -1)
        assert await responses(sent(talker, b"c", b"d")) == [rejected, rejected]
        assert copy_of(cluster, 2).log.end_offset == 2
        assert handled

    on_cluster(script)


def test_unreplicated_batches_time_out(handled: list[bool]) -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster)
        talker = await cluster.connect(2)
        await responses(sent(talker, b"a", timeout_ms=300))
        cluster.host(3).pause()
        late = (ErrorCode.REQUEST_TIMED_OUT, -1)
        assert await responses(sent(talker, b"b", b"c", timeout_ms=300)) == [late, late]
        cluster.host(3).resume()
        await are_same(cluster, 1, 2, 3)
        assert await responses(sent(talker, b"d", timeout_ms=300)) == [(0, 3)]
        assert len(handled) == 3

    on_cluster(script, settings=QUICK)


def test_requests_of_one_turn_keep_their_own_timeouts(handled: list[bool]) -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster)
        talker = await cluster.connect(2)
        for timeout_ms in (300, 30_000):
            await responses(sent(talker, b"a", timeout_ms=timeout_ms))
        cluster.host(3).pause()
        began_s = cluster.simulation.now_s
        requested = [(10, produce_request("t", batch(b"b"), timeout_ms=each)) for each in (300, 30_000, 300)]
        first, patient, last = in_one_piece(talker, *requested)
        late = (ErrorCode.REQUEST_TIMED_OUT, -1)
        assert await responses([first]) == [late]
        assert cluster.simulation.now_s - began_s < 0.4
        cluster.host(3).resume()
        assert await responses([patient, last]) == [(0, 3), late]
        assert len(handled) == 3

    on_cluster(script, settings=QUICK)


@pytest.mark.parametrize("timeout_ms", [1, 60_000], ids=["timed out", "disconnected"])
def test_abandoned_waiters_are_dropped_while_nothing_is_committed(
    timeout_ms: int, handled: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster)
        cluster.host(3).pause()
        again = bytes(batch(b"v", producer_id=7, producer_epoch=0, base_sequence=0))  # it is in the log once
        waits = copy_of(cluster, 2).waiters.commits.waits
        for _ in range(20):
            talker = await cluster.connect(2)
            for _ in range(5):
                talker.begin(10, produce_request("t", again, timeout_ms=timeout_ms))
                await asyncio.sleep(0.005)
            talker.connection.close()
        assert len(handled) >= 80
        assert len(waits) <= LOOKED_FROM
        cluster.host(3).resume()
        await cluster.until(lambda: not waits, 5.0)

    monkeypatch.setattr(waiters, "PURGE_FROM", LOOKED_FROM)
    on_cluster(script, settings=("broker.session.timeout.ms=60000",))


def test_rejected_batch_gets_one_response_between_waiting_ones(handled: list[bool]) -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster)
        await asyncio.sleep(IN_FLIGHT_MS / 1000)  # until a gap is reported as one
        talker = await cluster.connect(2)

        def numbered(*sequences: int) -> "list[asyncio.Future[Any]]":
            batches = [batch(b"v", producer_id=7, producer_epoch=0, base_sequence=each) for each in sequences]
            return [talker.begin(10, produce_request("t", each, timeout_ms=300)) for each in batches]

        assert await responses(numbered(0, 1)) == [(0, 0), (0, 1)]
        cluster.host(3).pause()
        late, gap = (ErrorCode.REQUEST_TIMED_OUT, -1), (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
        assert await responses(numbered(2, 9, 3, 8)) == [late, gap, late, gap]
        cluster.host(3).resume()
        assert await responses(numbered(2, 3, 4)) == [(0, 2), (0, 3), (0, 4)]
        assert handled

    on_cluster(script, settings=QUICK)


@pytest.mark.proves("H3")
def test_waiting_requests_each_fail_when_leadership_moves(handled: list[bool]) -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[3, 2, 4]])
        await send(cluster, b"a")
        cluster.kill(3)
        await send(cluster, b"b")
        talker = await cluster.connect(2)
        await responses(sent(talker, b"c"))
        await cluster.start(3)
        await cluster.until(lambda: len(where(cluster).isr) == 3, 5.0)
        cluster.host(4).pause()
        waiting = sent(talker, b"d", b"e")
        await asyncio.sleep(0.05)
        assert not any(each.done() for each in waiting)
        await elect_preferred(cluster)
        gone = (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
        assert await responses(waiting) == [gone, gone]
        assert [each.node_id for each in (await waiting[1]).node_endpoints] == [3]
        assert await responses(sent(talker, b"f")) == [gone]
        cluster.host(4).resume()
        await are_same(cluster, 2, 3, 4)
        assert len(handled) == 2

    on_cluster(script, roles=(*ONE_CONTROLLER, BROKER))

"""Replicated partitions: what a leader acknowledges is on its followers first."""

import asyncio

import pytest
from broker_scene import batch, produce, produce_request
from cluster_scene import BROKER, ONE_CONTROLLER, Cluster, on_cluster
from replica_scene import (
    are_same,
    contents,
    copy_of,
    create,
    elect_preferred,
    fetch_by_id,
    leader_of,
    read,
    send,
    values,
    where,
)

from moldau.broker.partitions.follower_role import FollowerRole
from moldau.broker.replicas.fetcher import ReplicaFetcher
from moldau.machines.replication import Truncation
from moldau.model.errors import ErrorCode
from moldau.storage import recovery
from moldau.storage.recovery import ProducerReplay
from moldau.wire.messages import UnregisterBrokerRequest

QUICK = ("replica.lag.time.max.ms=1000", "broker.session.timeout.ms=60000")

pytestmark = pytest.mark.proves("H1")


def test_acks_all_records_are_on_every_replica() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster)
        for number in range(20):
            await send(cluster, str(number).encode())
            assert all(copy_of(cluster, node_id).log.end_offset == number + 1 for node_id in (1, 2, 3))
        await are_same(cluster, 1, 2, 3)
        assert where(cluster).isr == (2, 3, 1)
        assert await read(await cluster.connect(2)) == [str(number).encode() for number in range(20)]

    on_cluster(script)


def test_follower_fetches_as_soon_as_records_are_appended() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster)
        talker = await cluster.connect(2)
        await produce(talker, "t", batch(b"first"))
        for _ in range(10):
            await asyncio.sleep(0.2)
            began_s = cluster.simulation.now_s
            await produce(talker, "t", batch(b"x"))
            assert cluster.simulation.now_s - began_s < 0.02  # of the half second that a fetch may wait

    on_cluster(script)


@pytest.mark.proves("H3")
def test_acknowledged_records_survive_a_leader_failover() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster)
        await send(cluster, b"a")
        cluster.kill(2)
        await send(cluster, b"b")
        assert leader_of(cluster) == 3
        await are_same(cluster, 1, 3)
        assert await read(await cluster.connect(3)) == [b"a", b"b"]
        await cluster.start(2)
        await send(cluster, b"c")
        await are_same(cluster, 1, 2, 3)
        await cluster.until(lambda: sorted(where(cluster).isr) == [1, 2, 3], 5.0)

    on_cluster(script)


@pytest.mark.proves("H5")
@pytest.mark.parametrize("batches_at_once", [1, 500])
def test_unreplicated_records_of_a_lost_leader_are_truncated(
    batches_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    later: list[Truncation] = []
    cut_later = ReplicaFetcher._truncate_in_slices

    async def seen(fetcher: ReplicaFetcher, following: FollowerRole, cut: Truncation, replay: ProducerReplay) -> None:
        later.append(cut)
        await cut_later(fetcher, following, cut, replay)

    monkeypatch.setattr(recovery, "REPLAY_SLICE_BATCHES", batches_at_once)
    monkeypatch.setattr(ReplicaFetcher, "_truncate_in_slices", seen)

    async def script(cluster: Cluster) -> None:
        await create(cluster)
        await send(cluster, b"a")
        for other in ("n1", "n3"):
            cluster.simulation.network.cut_both("n2", other)
        talker = await cluster.connect(2)
        for number in range(5):  # they are lost, and were never acknowledged
            assert (await produce(talker, "t", batch(b"lost %d" % number), acks=1)).error_code == 0
        assert copy_of(cluster, 2).log.end_offset == 6
        assert copy_of(cluster, 2).high_watermark == 1
        cluster.kill(2)
        cluster.simulation.network.heal()
        await send(cluster, b"b")
        await cluster.start(2)
        await are_same(cluster, 1, 2, 3)
        kept = values(contents(copy_of(cluster, 2)))
        assert (kept[0], kept[-1]) == (b"a", b"b")
        assert b"lost 1" not in kept  # the first was already replicated
        assert len(later) == (batches_at_once == 1)  # in slices, if one is not enough

    on_cluster(script)


@pytest.mark.proves("S6", part="synced clusters")
def test_follower_counts_unsynced_records_only_once_synced_after_a_kill() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2, 3]], flush_messages=1, min_insync_replicas=2)
        await send(cluster, b"a")
        cluster.host(3).slowness = 2000.0
        await produce(await cluster.connect(2), "t", batch(b"b"), acks=1)
        await cluster.until(lambda: copy_of(cluster, 3).log.end_offset == 2, 1.0)
        assert copy_of(cluster, 3).log.recovery_point == 1
        cluster.kill(3)
        assert copy_of(cluster, 2).high_watermark == 1
        await cluster.start(3)
        assert copy_of(cluster, 3).log.end_offset == 2
        await cluster.until(lambda: copy_of(cluster, 2).high_watermark == 2, 30.0)
        assert copy_of(cluster, 3).log.recovery_point == 2

    on_cluster(script)


@pytest.mark.proves("H5")
def test_new_leader_without_records_of_its_epoch_truncates_the_old_one() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2, 3]])
        await send(cluster, b"a")
        await cluster.until(lambda: copy_of(cluster, 3).high_watermark == 1, 1.0)
        cluster.host(3).pause()
        talker = await cluster.connect(2)
        for number in range(5):
            await produce(talker, "t", batch(b"lost %d" % number), acks=1)
        cluster.kill(2)
        cluster.host(3).resume()
        await cluster.until(lambda: leader_of(cluster) == 3, 20.0)
        await cluster.start(2)
        await are_same(cluster, 2, 3)
        assert copy_of(cluster, 2).log.end_offset < 6
        assert copy_of(cluster, 2).log.epochs.latest == copy_of(cluster, 3).log.epochs.epoch_at(0)

    on_cluster(script)


def test_lagging_follower_leaves_the_isr_and_rejoins_when_caught_up() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster)
        await send(cluster, b"a")
        cluster.host(3).pause()
        took_s = cluster.simulation.now_s
        await send(cluster, b"b")  # waits until the follower has left the ISR
        took_s = cluster.simulation.now_s - took_s
        assert 0.9 < took_s < 2.5
        await cluster.until(lambda: where(cluster).isr == (2, 1), 0.1)
        cluster.host(3).resume()
        await cluster.until(lambda: sorted(where(cluster).isr) == [1, 2, 3], 5.0)
        await are_same(cluster, 1, 2, 3)

    on_cluster(script, settings=QUICK)


def test_idle_follower_stays_in_the_isr() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster)
        await send(cluster, b"a")
        before = where(cluster).partition_epoch
        for _ in range(5):
            await asyncio.sleep(7)
            await send(cluster, b"b")
        assert (where(cluster).isr, where(cluster).partition_epoch) == ((2, 3, 1), before)

    on_cluster(script, settings=QUICK)


@pytest.mark.proves("H1", part="the ISR")
@pytest.mark.parametrize("unregistered", [2, 3])
def test_unregistered_live_broker_rejoins_the_isr_without_any_write(unregistered: int) -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2, 3]], min_insync_replicas=2)
        await send(cluster, b"before")
        await are_same(cluster, 2, 3)
        talker = await cluster.connect(1)
        response = await talker.ask(0, UnregisterBrokerRequest(broker_id=unregistered))
        assert response.error_code == 0
        await cluster.until(lambda: len(where(cluster).isr) == 1, 1.0)
        await cluster.until(lambda: sorted(where(cluster).isr) == [2, 3], 10.0)
        await send(cluster, b"after")

    on_cluster(script, settings=["broker.heartbeat.interval.ms=50"])  # before its next fetch is due


@pytest.mark.proves("H2")
def test_acks_all_is_rejected_below_min_isr_and_nothing_is_committed() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, min_insync_replicas=3)
        await send(cluster, b"a")
        cluster.kill(3)
        await cluster.until(lambda: where(cluster).isr == (2, 1), 5.0)
        talker = await cluster.connect(2)
        await asyncio.sleep(0.1)
        response = await produce(talker, "t", batch(b"refused"))
        assert response.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert copy_of(cluster, 2).log.end_offset == 1
        assert (await produce(talker, "t", batch(b"b"), acks=1)).error_code == 0
        await asyncio.sleep(1.0)
        assert copy_of(cluster, 1).log.end_offset == 2
        assert await read(talker) == [b"a"]  # acks=1 does not expose uncommitted records
        await cluster.start(3)
        await send(cluster, b"c")
        assert await read(talker) == [b"a", b"b", b"c"]

    on_cluster(script)


def test_unreplicated_write_times_out_and_may_be_committed_later() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster)
        await send(cluster, b"a")
        cluster.host(3).pause()
        talker = await cluster.connect(2)
        response = await produce(talker, "t", batch(b"b"), timeout_ms=300)
        assert response.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert await read(talker) == [b"a"]
        cluster.host(3).resume()
        await are_same(cluster, 1, 2, 3)
        assert await read(talker) == [b"a", b"b"]

    on_cluster(script, settings=QUICK)


@pytest.mark.proves("H3")
def test_waiters_on_a_deposed_leader_fail_at_once() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[3, 2, 4]])
        await send(cluster, b"a")
        cluster.kill(3)
        await send(cluster, b"b")
        await cluster.start(3)
        await cluster.until(lambda: len(where(cluster).isr) == 3, 5.0)
        cluster.host(4).pause()
        talker = await cluster.connect(2)
        produced = talker.begin(10, produce_request("t", batch(b"c"), timeout_ms=30_000))
        fetched = (await cluster.connect(2)).begin(16, await fetch_by_id(cluster, 2, max_wait_ms=30_000))
        await asyncio.sleep(0.05)
        assert not produced.done()
        assert not fetched.done()
        await elect_preferred(cluster)
        began_s = cluster.simulation.now_s
        response = (await produced).responses[0].partition_responses[0]
        assert response.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert response.current_leader.leader_id == 3
        assert [each.node_id for each in (await produced).node_endpoints] == [3]
        assert (await fetched).responses[0].partitions[0].error_code == 0  # a follower may be read from
        assert cluster.simulation.now_s - began_s < 0.1
        cluster.host(4).resume()
        await are_same(cluster, 2, 3, 4)

    on_cluster(script, roles=(*ONE_CONTROLLER, BROKER))


@pytest.mark.proves("H7")
def test_isolated_leader_acknowledges_nothing_and_recovers() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, min_insync_replicas=2)
        await send(cluster, b"a")
        for other in ("n1", "n3"):
            cluster.simulation.network.cut_both("n2", other)
        talker = await cluster.connect(2)
        codes = [(await produce(talker, "t", batch(b"lost"), timeout_ms=1000)).error_code for _ in range(5)]
        assert set(codes) <= {ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_LEADER_OR_FOLLOWER}
        await send(cluster, b"b")
        assert leader_of(cluster) == 3
        cluster.simulation.network.heal()
        await are_same(cluster, 1, 2, 3, s_max=60.0)
        kept = values(contents(copy_of(cluster, 2)))
        assert (kept[0], kept[-1]) == (b"a", b"b")
        assert kept.count(b"lost") <= 1  # the first was already replicated
        await cluster.until(lambda: sorted(where(cluster).isr) == [1, 2, 3], 10.0)

    on_cluster(script, settings=["broker.session.timeout.ms=3000", "broker.heartbeat.interval.ms=500"])


def test_partitions_between_the_same_brokers_share_one_session() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2, 3, 1]] * 20)
        for index in range(20):
            await send(cluster, b"x", index=index)
        leader = cluster.nodes[2].broker
        assert len(leader.replica_sessions) == 2
        assert len(cluster.nodes[3].broker.replicas.fetchers) == 1
        for index in range(20):
            await are_same(cluster, 1, 2, 3, index=index)

    on_cluster(script)


def test_added_partition_is_fetched_though_another_fetch_waits() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, "a")
        await send(cluster, b"x", topic="a")
        await asyncio.sleep(0.05)
        await create(cluster, "b")
        began_s = cluster.simulation.now_s
        await send(cluster, b"y", topic="b")
        assert cluster.simulation.now_s - began_s < 0.1

    on_cluster(script, settings=["replica.fetch.wait.max.ms=20000"])


@pytest.mark.parametrize("flush_messages", [1, 3], ids=["every message synced", "some synced"])
def test_replicas_are_kept_in_topics_with_flush_messages(flush_messages: int) -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, flush_messages=flush_messages)
        for number in range(10):
            await send(cluster, str(number).encode())
        await are_same(cluster, 1, 2, 3)

    on_cluster(script)


@pytest.mark.proves("S6")
def test_flushed_topic_is_synced_on_every_replica_before_the_ack() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, flush_messages=1)
        for number in range(10):
            await send(cluster, str(number).encode())
            assert all(copy_of(cluster, node_id).log.recovery_point == number + 1 for node_id in (1, 2, 3))

    on_cluster(script)


@pytest.mark.proves("S6")
def test_acks_1_waits_only_for_the_leaders_sync() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, flush_messages=1, min_insync_replicas=3)
        await send(cluster, b"a")
        cluster.kill(3)
        await cluster.until(lambda: where(cluster).isr == (2, 1), 5.0)
        talker = await cluster.connect(2)
        for number in range(5):
            assert (await produce(talker, "t", batch(b"b"), acks=1)).error_code == 0
            assert copy_of(cluster, 2).log.recovery_point == number + 2
        assert copy_of(cluster, 2).high_watermark == 1

    on_cluster(script)


@pytest.mark.proves("H4")
def test_replicas_match_the_new_leader_after_an_unclean_election() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2, 3]], unclean_leader_election_enable="true")
        await send(cluster, b"a")
        await cluster.stop(3)
        for _ in range(5):
            await send(cluster, b"lost")
        await cluster.stop(2)
        await cluster.start(3)
        await cluster.until(lambda: leader_of(cluster) == 3, 5.0)
        await send(cluster, b"b")
        await cluster.start(2)
        await are_same(cluster, 2, 3)
        assert values(contents(copy_of(cluster, 2))) == [b"a", b"b"]
        await cluster.until(lambda: sorted(where(cluster).isr) == [2, 3], 5.0)
        await send(cluster, b"c")

    on_cluster(script)

"""Batches that were sent before a broker could take them, and come when it can."""

import asyncio
import errno

import pytest
from broker_scene import Talker
from cluster_scene import ALL_CONTROL, Cluster, on_cluster
from replica_scene import create, where

from moldau.broker.partitions.leader_role import IN_FLIGHT_MS
from moldau.model.errors import ErrorCode
from moldau.records.builder import build_batch
from moldau.wire.messages import ProduceRequest


async def produce(talker: Talker, sequence: int, producer_id: int = 7) -> ErrorCode:
    record = (1_600_000_000_000, None, b"%d" % sequence, ())
    batch = build_batch([record], producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
    data = ProduceRequest.PartitionProduceData(index=0, records=batch)
    topic = ProduceRequest.TopicProduceData(name="t", partition_data=[data])
    answer = await talker.ask(9, ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[topic]))
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


@pytest.mark.proves("P2")
def test_a_new_leader_takes_the_batches_of_a_new_producer_from_its_first_one_on() -> None:
    async def script(cluster: Cluster) -> None:
        await cluster.create("t")
        talker = await cluster.connect(cluster.leaders("t")[0])
        # Number 0 came a moment too early and was sent away; with number 1 in its place it would never be taken.
        assert await produce(talker, 1) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert [await produce(talker, sequence) for sequence in (0, 1)] == [ErrorCode.NONE] * 2

    on_cluster(script, roles=ALL_CONTROL)


@pytest.mark.proves("P2", part="a retry is stored once")
def test_a_producer_that_was_forgotten_goes_on_where_it_was_when_its_leader_is_no_longer_new() -> None:
    async def script(cluster: Cluster) -> None:
        await cluster.create("t")
        await asyncio.sleep(IN_FLIGHT_MS / 1000)
        talker = await cluster.connect(cluster.leaders("t")[0])
        assert [await produce(talker, sequence) for sequence in (5, 6)] == [ErrorCode.NONE] * 2

    on_cluster(script, roles=ALL_CONTROL)


@pytest.mark.proves("P2")
def test_a_new_leader_sends_away_what_follows_a_batch_that_it_has_not_taken() -> None:
    async def script(cluster: Cluster) -> None:
        await cluster.create("t")
        await asyncio.sleep(3)
        leader = cluster.leaders("t")[0]
        assert [await produce(await cluster.connect(leader), sequence) for sequence in (0, 1)] == [ErrorCode.NONE] * 2
        cluster.kill(leader)
        await cluster.until(lambda: any(node == cluster.leaders("t", node)[0] for node in cluster.nodes), 5.0)
        talker = await cluster.connect(cluster.leaders("t")[0])
        # Number 2 came a moment too early and was sent away; a gap would make its producer double number 1.
        assert await produce(talker, 3) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert [await produce(talker, sequence) for sequence in (1, 2, 3)] == [ErrorCode.NONE] * 3
        await asyncio.sleep(IN_FLIGHT_MS / 1000)
        assert await produce(talker, 5) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    on_cluster(script, roles=ALL_CONTROL)


@pytest.mark.proves("P2", part="a retry is stored once")
def test_what_follows_a_batch_that_too_few_were_in_sync_for_is_sent_away_like_it() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, min_insync_replicas=3)
        await asyncio.sleep(IN_FLIGHT_MS / 1000)
        talker = await cluster.connect(2)
        assert await produce(talker, 0) is ErrorCode.NONE
        cluster.kill(3)
        await cluster.until(lambda: where(cluster, seen_by=2).isr == (2, 1), 5.0)
        assert await produce(talker, 1) is ErrorCode.NOT_ENOUGH_REPLICAS
        assert await produce(talker, 0, producer_id=8) is ErrorCode.NOT_ENOUGH_REPLICAS
        await cluster.start(3)
        await cluster.until(lambda: len(where(cluster, seen_by=2).isr) == 3, 5.0)
        # Number 1 was sent away. Now 2 could be taken, but for the gap, and from one who is not known, even with it.
        assert await produce(talker, 2) is ErrorCode.NOT_ENOUGH_REPLICAS
        assert await produce(talker, 1, producer_id=8) is ErrorCode.NOT_ENOUGH_REPLICAS
        for producer_id in (7, 8):
            assert [await produce(talker, each, producer_id) for each in (0, 1, 2)] == [ErrorCode.NONE] * 3
        await asyncio.sleep(IN_FLIGHT_MS / 1000)
        assert await produce(talker, 4) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    on_cluster(script)


@pytest.mark.proves("P2", part="a retry is stored once")
def test_what_follows_a_batch_that_the_disk_had_no_room_for_is_sent_away_like_it() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster)
        await asyncio.sleep(IN_FLIGHT_MS / 1000)
        talker = await cluster.connect(2)
        assert await produce(talker, 0) is ErrorCode.NONE
        cluster.simulation.disks_fail = True
        cluster.host(2).disk.fail("pwrite", errno.ENOSPC, path="t-0")
        assert await produce(talker, 1) is ErrorCode.KAFKA_STORAGE_ERROR
        assert await produce(talker, 2) is ErrorCode.KAFKA_STORAGE_ERROR
        assert [await produce(talker, each) for each in (1, 2)] == [ErrorCode.NONE] * 2
        await asyncio.sleep(IN_FLIGHT_MS / 1000)
        assert await produce(talker, 4) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    on_cluster(script)

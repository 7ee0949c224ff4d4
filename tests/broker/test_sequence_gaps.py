"""Sequence gaps: batches behind a rejected batch are rejected, too, until the first one is retried."""

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
    response = await talker.ask(9, ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[topic]))
    return ErrorCode(response.responses[0].partition_responses[0].error_code)


@pytest.mark.proves("P2")
def test_new_leader_accepts_a_new_producer_only_from_sequence_0() -> None:
    async def script(cluster: Cluster) -> None:
        await cluster.create("t")
        talker = await cluster.connect(cluster.leaders("t")[0])
        # Sequence 0 was sent too early and rejected; if 1 were accepted before it, 0 could never be appended.
        assert await produce(talker, 1) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert [await produce(talker, sequence) for sequence in (0, 1)] == [ErrorCode.NONE] * 2

    on_cluster(script, roles=ALL_CONTROL)


@pytest.mark.proves("P2", part="a retry is stored once")
def test_expired_producer_continues_its_sequence_on_an_established_leader() -> None:
    async def script(cluster: Cluster) -> None:
        await cluster.create("t")
        await asyncio.sleep(IN_FLIGHT_MS / 1000)
        talker = await cluster.connect(cluster.leaders("t")[0])
        assert [await produce(talker, sequence) for sequence in (5, 6)] == [ErrorCode.NONE] * 2

    on_cluster(script, roles=ALL_CONTROL)


@pytest.mark.proves("P2")
def test_new_leader_rejects_batches_behind_a_rejected_one() -> None:
    async def script(cluster: Cluster) -> None:
        await cluster.create("t")
        await asyncio.sleep(3)
        leader = cluster.leaders("t")[0]
        assert [await produce(await cluster.connect(leader), sequence) for sequence in (0, 1)] == [ErrorCode.NONE] * 2
        cluster.kill(leader)
        await cluster.until(lambda: any(node == cluster.leaders("t", node)[0] for node in cluster.nodes), 5.0)
        talker = await cluster.connect(cluster.leaders("t")[0])
        # Sequence 2 was sent too early and rejected; a gap would make its producer send number 1 twice.
        assert await produce(talker, 3) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert [await produce(talker, sequence) for sequence in (1, 2, 3)] == [ErrorCode.NONE] * 3
        await asyncio.sleep(IN_FLIGHT_MS / 1000)
        assert await produce(talker, 5) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    on_cluster(script, roles=ALL_CONTROL)


@pytest.mark.proves("P2", part="a retry is stored once")
def test_batches_behind_one_rejected_for_the_isr_are_rejected() -> None:
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
        # Sequence 1 was rejected. 2 would be accepted but for the gap; from an unknown producer even with it.
        assert await produce(talker, 2) is ErrorCode.NOT_ENOUGH_REPLICAS
        assert await produce(talker, 1, producer_id=8) is ErrorCode.NOT_ENOUGH_REPLICAS
        for producer_id in (7, 8):
            assert [await produce(talker, each, producer_id) for each in (0, 1, 2)] == [ErrorCode.NONE] * 3
        await asyncio.sleep(IN_FLIGHT_MS / 1000)
        assert await produce(talker, 4) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    on_cluster(script)


@pytest.mark.proves("P2", part="a retry is stored once")
def test_batches_behind_one_rejected_by_a_full_disk_are_rejected() -> None:
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

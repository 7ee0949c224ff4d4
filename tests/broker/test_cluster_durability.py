"""Durability in a cluster: acknowledged records survive the death of their leader."""

import asyncio

import pytest
from broker_scene import batch, fetch, produce
from cluster_scene import Cluster, on_cluster

VALUES = 20


@pytest.mark.proves("H1", "H3")
@pytest.mark.parametrize("victim", [2, 3])
def test_acknowledged_records_survive_a_killed_leader(victim: int) -> None:
    async def script(cluster: Cluster) -> None:
        await cluster.create("t", partitions=3)
        index = cluster.leaders("t").index(victim)
        talker = await cluster.connect(victim)
        for number in range(VALUES):
            response = await produce(talker, "t", batch(b"%d" % number), partition=index)
            assert (response.error_code, response.base_offset) == (0, number)
        cluster.kill(victim)
        await cluster.until(lambda: cluster.leaders("t")[index] not in (victim, -1), 1.0)
        leader = cluster.leaders("t")[index]
        talker = await cluster.connect(leader)
        await asyncio.sleep(0.1)
        response = await fetch(talker, "t", 0, partition=index)
        assert (response.error_code, response.high_watermark) == (0, VALUES)
        response = await produce(talker, "t", batch(b"more"), partition=index)
        assert (response.error_code, response.base_offset) == (0, VALUES)

    on_cluster(script)


@pytest.mark.proves("H1")
def test_restarted_broker_catches_up_and_rejoins_the_isr() -> None:
    async def script(cluster: Cluster) -> None:
        await cluster.create("t", partitions=3)
        index = cluster.leaders("t").index(1)
        await asyncio.sleep(3)
        cluster.kill(3)
        talker = await cluster.connect(1)
        for number in range(VALUES):
            response = await produce(talker, "t", batch(b"%d" % number), partition=index)
            assert (response.error_code, response.base_offset) == (0, number)
        image = cluster.nodes[1].broker
        assert 3 not in image.image.topics["t"].partitions[index].isr
        await cluster.start(3)
        await cluster.until(lambda: 3 in image.image.topics["t"].partitions[index].isr, 5.0)

    on_cluster(script)

"""Share groups on replicated coordinator topics: states and assignments survive the loss of any coordinator."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from cluster_scene import ALL_CONTROL, Cluster, on_cluster
from share_group_members import COORDINATOR_MOVED, TOPIC, ShareMember

from moldau.broker.internal_topics import SHARE_STATE_TOPIC
from moldau.broker.shares.network_persister import NetworkPersister
from moldau.broker.shares.persister import SharePartitionKey
from moldau.machines.shares.state import StateBatch, StateWrite
from moldau.model.errors import FencedLeaderEpoch, FencedStateEpoch
from moldau.wire.messages import FindCoordinatorRequest

pytestmark = pytest.mark.proves("C8")

SETTINGS = (
    "offsets.topic.num.partitions=3",
    "offsets.topic.replication.factor=3",
    "share.coordinator.state.topic.num.partitions=3",
    "share.coordinator.state.topic.replication.factor=3",
    "share.coordinator.snapshot.update.records.per.snapshot=3",
    "share.coordinator.state.topic.prune.interval.ms=2000",
    "min.insync.replicas=2",
)


def on_share_cluster(script: Callable[[Cluster], Coroutine[Any, Any, None]], seed: int = 1) -> None:
    async def play(cluster: Cluster) -> None:
        await cluster.until_active()
        await cluster.create(TOPIC, partitions=6)
        await script(cluster)

    on_cluster(play, roles=ALL_CONTROL, settings=SETTINGS, seed=seed)


async def coordinator(cluster: Cluster, group_id: str = "g") -> int:
    """Wait for the group's coordinator; return its node id."""
    while True:
        talker = await cluster.connect(min(cluster.nodes))
        response = await talker.ask(2, FindCoordinatorRequest(key=group_id, key_type=0))
        talker.connection.close()
        if response.error_code == 0 and response.node_id in cluster.nodes:
            return int(response.node_id)
        await asyncio.sleep(0.05)


async def settle(cluster: Cluster, member: ShareMember, partitions: list[int]) -> None:
    """Send heartbeats to whichever node is the coordinator, until these partitions are assigned."""
    async with asyncio.timeout(120):
        while True:
            member.talker = await cluster.connect(await coordinator(cluster, member.group_id))
            try:
                code = await member.beat()
            except ConnectionResetError:
                continue
            assert not code or code in COORDINATOR_MOVED, member.last
            if not code and member.partitions() == partitions:
                return
            await asyncio.sleep(0.5)


def persister(cluster: Cluster, node_id: int) -> NetworkPersister:
    return cluster.nodes[node_id].broker.share_persister


def keys(cluster: Cluster) -> list[SharePartitionKey]:
    topic_id = cluster.nodes[min(cluster.nodes)].broker.image.topics[TOPIC].topic_id
    return [SharePartitionKey("g", topic_id, index) for index in range(6)]


@pytest.mark.parametrize("seed", range(3))
def test_states_survive_the_loss_of_each_node(seed: int) -> None:
    async def script(cluster: Cluster) -> None:
        member = ShareMember(await cluster.connect(1), "m")
        await settle(cluster, member, list(range(6)))
        offset = 0
        for lost in (1, 2, 3):
            left = sorted(set(cluster.nodes) - {lost})
            cluster.kill(lost)
            for node_id in left:  # every node finds every coordinator, over the network or at itself
                for key in keys(cluster):
                    offset += 1
                    batch = StateBatch(offset, offset, 2, 1)
                    await persister(cluster, node_id).write(key, 1, 0, StateWrite(0, 0, (batch,)))
                    state = await persister(cluster, left[0]).read(key, 0)
                    assert batch in state.batches
            await settle(cluster, member, list(range(6)))
            await cluster.start(lost)
            await asyncio.sleep(5)
        accepted = [
            index
            for key in keys(cluster)
            for batch in (await persister(cluster, 3).read(key, 0)).batches
            for index in range(batch.first_offset, batch.last_offset + 1)
        ]
        assert sorted(accepted) == list(range(1, offset + 1))

    on_share_cluster(script, seed)


def test_fencing_holds_after_a_failover() -> None:
    async def script(cluster: Cluster) -> None:
        member = ShareMember(await cluster.connect(1), "m")
        await settle(cluster, member, list(range(6)))
        key = keys(cluster)[0]
        await persister(cluster, 1).read(key, 7)
        state_epoch = (await persister(cluster, 1).summary(key)).state_epoch
        leaders = cluster.leaders(SHARE_STATE_TOPIC)
        cluster.kill(await cluster.nodes[1].broker.share_coordinator.coordinator_of(key))
        node_id = min(cluster.nodes)
        with pytest.raises(FencedLeaderEpoch):
            await persister(cluster, node_id).write(key, state_epoch, 6, StateWrite(0, 0, ()))
        await persister(cluster, node_id).initialize(key, state_epoch + 1, 100)
        with pytest.raises(FencedStateEpoch):
            await persister(cluster, node_id).write(key, state_epoch, 7, StateWrite(0, 0, ()))
        assert (await persister(cluster, node_id).read(key, 7)).start_offset == 100
        assert cluster.leaders(SHARE_STATE_TOPIC) != leaders

    on_share_cluster(script)

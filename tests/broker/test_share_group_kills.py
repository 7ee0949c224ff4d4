"""Share groups while nodes are killed: order, acknowledgements and dead letters hold, on every seed."""

import asyncio
import os

import pytest
from cluster_scene import Cluster
from share_group_members import ShareMember
from share_group_world import (
    DEAD_LETTERS,
    GROUP_CONFIGS,
    GROUP_RESOURCE,
    PARTITIONS,
    TOPIC_RESOURCE,
    Consumer,
    World,
)
from test_share_group_failover import on_share_cluster, settle

pytestmark = pytest.mark.proves("C8")

SEEDS = range(int(os.environ.get("SHARE_SEEDS", "2")))


@pytest.mark.parametrize("seed", SEEDS)
def test_group_processes_every_record_while_nodes_are_killed(seed: int) -> None:
    async def script(cluster: Cluster) -> None:
        world = World(cluster, seed)
        await cluster.create(DEAD_LETTERS, partitions=PARTITIONS)
        await world.configure(TOPIC_RESOURCE, DEAD_LETTERS, {"errors.deadletterqueue.group.enable": "true"})
        await world.configure(GROUP_RESOURCE, "g", GROUP_CONFIGS)
        await settle(cluster, ShareMember(await cluster.connect(1), "m"), list(range(6)))
        await world.produce(24)
        async with asyncio.TaskGroup() as group:
            for number in range(3):
                group.create_task(Consumer(world, number).run())
            await world.kill_nodes(4)
            await world.until_done()
        await world.check_dead_letters()

    on_share_cluster(script, seed)

"""A controller whose disk is full resigns, so that another one takes over."""

import pytest
from cluster_scene import ALL_CONTROL, BROKER, Cluster, on_cluster
from replica_scene import create, where

pytestmark = pytest.mark.proves("H6", part="the controller moves")


def test_controller_resigns_when_it_cannot_write() -> None:
    async def script(cluster: Cluster) -> None:
        await cluster.until_active()
        active = cluster.active
        follower, _ = sorted({1, 2, 3} - {active})
        await create(cluster, partitions=[[4, follower, active]])
        cluster.simulation.disks_fail = True
        disk = cluster.host(active).disk
        disk.capacity_bytes = 0
        cluster.kill(4)
        await cluster.until(lambda: where(cluster, seen_by=follower).leader == follower, 5.0)
        assert cluster.nodes[follower].broker.metadata.epoch == 2
        disk.capacity_bytes = 1 << 40
        await cluster.until(lambda: len(where(cluster, seen_by=follower).isr) == 2, 30.0)

    on_cluster(script, roles=(*ALL_CONTROL, BROKER))

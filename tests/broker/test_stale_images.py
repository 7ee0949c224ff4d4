"""A node that starts replays old metadata first: its folders may belong to a later state of the cluster."""

import pytest
from cluster_scene import Cluster, on_cluster
from replica_scene import create, read, reassign, send, where

from moldau.broker.drivers import metadata_log
from moldau.wire.messages import DeleteTopicsRequest

pytestmark = pytest.mark.proves("H6", part="brokers register")


async def delete(cluster: Cluster, topic: str = "t") -> None:
    response = await (await cluster.connect(1)).ask(3, DeleteTopicsRequest(topic_names=[topic], timeout_ms=1000))
    assert response.responses[0].error_code == 0
    await cluster.until(lambda: all(topic not in each.broker.image.topics for each in cluster.nodes.values()), 1.0)


async def move(cluster: Cluster, broker_id: int) -> None:
    await reassign(cluster, [broker_id])
    await cluster.until(lambda: where(cluster).replicas == (broker_id,), 5.0)


async def restart(cluster: Cluster, *, is_killed: bool) -> None:
    if is_killed:
        cluster.kill(2)
    else:
        await cluster.stop(2)
    await cluster.start(2)
    await cluster.until(lambda: where(cluster).leader == 2, 5.0)


@pytest.mark.parametrize("is_killed", [False, True])
def test_topic_recreated_since_the_last_snapshot_keeps_its_records(is_killed: bool) -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2]])
        await cluster.nodes[2].broker.metadata.take_snapshot()
        await delete(cluster)
        await create(cluster, partitions=[[2]])
        await send(cluster, b"acknowledged")
        await restart(cluster, is_killed=is_killed)
        assert await read(await cluster.connect(2)) == [b"acknowledged"]

    on_cluster(script)


def test_replica_moved_away_and_back_since_the_last_snapshot_keeps_its_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2]])
        await cluster.nodes[2].broker.metadata.take_snapshot()
        await move(cluster, 3)
        await move(cluster, 2)
        await send(cluster, b"acknowledged")
        monkeypatch.setattr(metadata_log, "READ_BYTES", 1)  # one change at a time
        await restart(cluster, is_killed=False)
        assert await read(await cluster.connect(2)) == [b"acknowledged"]

    on_cluster(script)

"""The metrics of a cluster whose broker fails and returns."""

import asyncio

import pytest
from broker_scene import batch, produce
from cluster_scene import Cluster, on_cluster
from group_members import commit, find_coordinator

from moldau.broker.metrics.endpoint import MetricsEndpoint
from moldau.model.errors import ErrorCode

pytestmark = pytest.mark.proves("O1", part="broker")

REPLICAS = "kafka_server_replicamanager_"
CONTROLLER = "kafka_controller_kafkacontroller_"
SETTINGS = ("min.insync.replicas=3",)


async def metrics_of(cluster: Cluster, node_id: int) -> dict[str, float]:
    node = cluster.nodes[node_id]
    _, _, body = await MetricsEndpoint(
        node.broker, list(node.routers.broker.apis.values()), node._listeners.limits
    ).page("/metrics")
    lines = [line for line in body.decode().splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


async def added_up(cluster: Cluster, name: str) -> float:
    return sum([(await metrics_of(cluster, node_id))[name] for node_id in cluster.nodes])


async def commit_as_soon_as_possible(cluster: Cluster, offsets: dict[int, int]) -> None:
    """Commit for group g in topic t through its coordinator."""
    while True:
        client = await cluster.connect(1)
        found = await find_coordinator(client)
        if found.error_code == ErrorCode.NONE:
            coordinator = await cluster.connect(found.node_id)
            if not any(await commit(coordinator, offsets)):
                return
        await asyncio.sleep(0.05)


@pytest.mark.proves("O1", part="groups and consumers")
def test_group_lag_is_reported_by_the_partition_leaders() -> None:
    """Each partition has one replica; one of the three brokers coordinates the group."""

    def lag(partition: int) -> str:
        return f'kafka_consumergroup_lag{{consumergroup="g",topic="t",partition="{partition}"}}'

    async def script(cluster: Cluster) -> None:
        await cluster.create("t", partitions=3, replicas=1)
        leaders = cluster.leaders("t")
        assert sorted(leaders) == [1, 2, 3]
        for partition, leader in enumerate(leaders):
            talker = await cluster.connect(leader)
            await produce(talker, "t", batch(*[b"a"] * (5 + partition)), partition=partition)
        await commit_as_soon_as_possible(cluster, {0: 3, 1: 3, 2: 3})
        pages = {node: await metrics_of(cluster, node) for node in cluster.nodes}
        (coordinator,) = (node for node, page in pages.items() if lag(0) in page)
        page = pages[coordinator]
        assert [page[lag(partition)] for partition in range(3)] == [2, 3, 4]
        gone = next(node for node in (2, 3) if node != coordinator)
        cluster.kill(gone)
        page = await metrics_of(cluster, coordinator)
        left = [partition for partition, leader in enumerate(leaders) if leader != gone]
        assert [partition for partition in range(3) if lag(partition) in page] == left, "only the leaders know the lag"

    on_cluster(script, settings=("offsets.topic.num.partitions=1",))


def test_end_offset_is_reported_by_the_leader_only() -> None:
    """Dashboards sum over brokers, so followers must not report it."""
    name = 'kafka_topic_partition_current_offset{topic="t",partition="0"}'

    async def script(cluster: Cluster) -> None:
        await cluster.create("t")
        (leader,) = cluster.leaders("t")
        await produce(await cluster.connect(leader), "t", batch(b"a", b"b"))
        await asyncio.sleep(1)
        assert [node for node in cluster.nodes if name in await metrics_of(cluster, node)] == [leader]
        assert (await metrics_of(cluster, leader))[name] == 2

    on_cluster(script)


def test_broker_metrics_sum_up_to_the_cluster() -> None:
    async def script(cluster: Cluster) -> None:
        await cluster.create("t", partitions=6)
        await asyncio.sleep(1)
        assert await added_up(cluster, f"{REPLICAS}leadercount") == 6
        assert await added_up(cluster, f"{REPLICAS}partitioncount") == 18
        assert await added_up(cluster, f"{REPLICAS}underreplicatedpartitions") == 0
        assert await added_up(cluster, f"{REPLICAS}atminisrpartitioncount") == 6
        assert await added_up(cluster, f"{CONTROLLER}activecontrollercount") == 1
        controller = await metrics_of(cluster, 1)
        assert controller[f"{CONTROLLER}activebrokercount"] == 3
        assert controller[f"{CONTROLLER}globalpartitioncount"] == 6
        assert f"{CONTROLLER}globalpartitioncount" not in await metrics_of(cluster, 2)

    on_cluster(script, settings=SETTINGS)


def test_missing_broker_shows_in_leader_and_controller_metrics() -> None:
    async def script(cluster: Cluster) -> None:
        await cluster.create("t", partitions=6)
        await cluster.create("alone", partitions=3, replicas=1)
        await asyncio.sleep(3)
        cluster.kill(3)
        await cluster.until(lambda: cluster.broker(3).is_fenced, 1.0)
        await asyncio.sleep(0.1)
        assert await added_up(cluster, f"{REPLICAS}underreplicatedpartitions") == 6
        assert await added_up(cluster, f"{REPLICAS}underminisrpartitioncount") == 6
        controller = await metrics_of(cluster, 1)
        names = ("offlinepartitionscount", "fencedbrokercount", "activebrokercount", "preferredreplicaimbalancecount")
        assert [controller[f"{CONTROLLER}{name}"] for name in names] == [1, 1, 2, 3]

    on_cluster(script, settings=SETTINGS)


def test_isr_changes_and_replication_bytes_are_counted() -> None:
    async def script(cluster: Cluster) -> None:
        await cluster.create("t", partitions=1)
        leader = cluster.leaders("t")[0]
        follower = 2 if leader != 2 else 3
        records = batch(b"a")
        talker = await cluster.connect(leader)
        await produce(talker, "t", records)
        assert await added_up(cluster, "kafka_server_brokertopicmetrics_replicationbytesout_total") == 2 * len(records)
        assert (await metrics_of(cluster, follower))["kafka_server_brokertopicmetrics_replicationbytesin_total"] == len(
            records
        )
        cluster.kill(follower)
        await cluster.until(lambda: cluster.broker(follower).is_fenced, 1.0)
        await cluster.start(follower)
        image = cluster.nodes[leader].broker
        await cluster.until(lambda: follower in image.image.topics["t"].partitions[0].isr, 5.0)
        assert (await metrics_of(cluster, leader))[f"{REPLICAS}isrexpands_total"] == 1
        assert (await metrics_of(cluster, leader))["moldau_follower_lag_max_records"] == 0

    on_cluster(script)

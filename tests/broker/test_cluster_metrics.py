"""What the nodes of a cluster tell Prometheus when one of them is missing, and when it is back."""

import asyncio

import pytest
from broker_scene import batch, produce
from cluster_scene import Cluster, on_cluster

from moldau.broker.metrics.pages import MetricsPages

pytestmark = pytest.mark.proves("O1", part="broker")

REPLICAS = "kafka_server_replicamanager_"
CONTROLLER = "kafka_controller_kafkacontroller_"
SETTINGS = ("min.insync.replicas=3",)


async def told(cluster: Cluster, node_id: int) -> dict[str, float]:
    node = cluster.nodes[node_id]
    _, _, body = await MetricsPages(node.broker, node._front.gate).page("/metrics")
    lines = [line for line in body.decode().splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


async def added_up(cluster: Cluster, name: str) -> float:
    return sum([(await told(cluster, node_id))[name] for node_id in cluster.nodes])


def test_brokers_add_up_to_the_cluster_and_one_controller_is_active() -> None:
    async def script(cluster: Cluster) -> None:
        await cluster.create("t", partitions=6)
        await asyncio.sleep(1)
        assert await added_up(cluster, f"{REPLICAS}leadercount") == 6
        assert await added_up(cluster, f"{REPLICAS}partitioncount") == 18
        assert await added_up(cluster, f"{REPLICAS}underreplicatedpartitions") == 0
        assert await added_up(cluster, f"{REPLICAS}atminisrpartitioncount") == 6
        assert await added_up(cluster, f"{CONTROLLER}activecontrollercount") == 1
        controller = await told(cluster, 1)
        assert controller[f"{CONTROLLER}activebrokercount"] == 3
        assert controller[f"{CONTROLLER}globalpartitioncount"] == 6
        assert f"{CONTROLLER}globalpartitioncount" not in await told(cluster, 2)

    on_cluster(script, settings=SETTINGS)


def test_a_missing_broker_is_seen_by_those_who_lead_and_those_who_control() -> None:
    async def script(cluster: Cluster) -> None:
        await cluster.create("t", partitions=6)
        await cluster.create("alone", partitions=3, replicas=1)
        await asyncio.sleep(3)
        cluster.kill(3)
        await cluster.until(lambda: cluster.broker(3).is_fenced, 1.0)
        await asyncio.sleep(0.1)
        assert await added_up(cluster, f"{REPLICAS}underreplicatedpartitions") == 6
        assert await added_up(cluster, f"{REPLICAS}underminisrpartitioncount") == 6
        controller = await told(cluster, 1)
        names = ("offlinepartitionscount", "fencedbrokercount", "activebrokercount", "preferredreplicaimbalancecount")
        assert [controller[f"{CONTROLLER}{name}"] for name in names] == [1, 1, 2, 3]

    on_cluster(script, settings=SETTINGS)


def test_replicas_that_leave_and_join_and_the_bytes_they_fetch_are_counted() -> None:
    async def script(cluster: Cluster) -> None:
        await cluster.create("t", partitions=1)
        leader = cluster.leaders("t")[0]
        follower = 2 if leader != 2 else 3
        records = batch(b"a")
        talker = await cluster.connect(leader)
        await produce(talker, "t", records)
        assert await added_up(cluster, "kafka_server_brokertopicmetrics_replicationbytesout_total") == 2 * len(records)
        assert (await told(cluster, follower))["kafka_server_brokertopicmetrics_replicationbytesin_total"] == len(
            records
        )
        cluster.kill(follower)
        await cluster.until(lambda: cluster.broker(follower).is_fenced, 1.0)
        await cluster.start(follower)
        image = cluster.nodes[leader].broker
        await cluster.until(lambda: follower in image.image.topics["t"].partitions[0].isr, 5.0)
        assert (await told(cluster, leader))[f"{REPLICAS}isrexpands_total"] == 1
        assert (await told(cluster, leader))["moldau_follower_lag_max_records"] == 0

    on_cluster(script)

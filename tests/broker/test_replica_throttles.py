"""Replication throttles: rate limits for named replicas that are not in sync, on the leader or the follower."""

import pytest
from broker_scene import batch, produce
from cluster_scene import Cluster, on_cluster
from replica_scene import are_same, copy_of, create, reassign, where

from moldau.broker.replicas.throttles import Bucket, is_throttled
from moldau.model.settings import declared
from moldau.storage.settings import LogSettings
from moldau.wire.messages import IncrementalAlterConfigsRequest

BROKER, TOPIC = 4, 2
SET, DELETE = 0, 1


async def alter(cluster: Cluster, kind: int, resource_name: str, name: str, value: object = None) -> None:
    """Set a config; without a value, delete it."""
    change = IncrementalAlterConfigsRequest.AlterableConfig(
        name=name, config_operation=DELETE if value is None else SET, value=None if value is None else str(value)
    )
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=kind, resource_name=resource_name, configs=[change]
    )
    response = await (await cluster.connect(1)).ask(1, IncrementalAlterConfigsRequest(resources=[resource]))
    assert response.responses[0].error_code == 0, response


async def fill(cluster: Cluster, count: int = 20, size: int = 5000) -> None:
    talker = await cluster.connect(2)
    for _ in range(count):
        assert (await produce(talker, "t", batch(b"x" * size))).error_code == 0


@pytest.mark.proves("H8")
@pytest.mark.parametrize("side", ["leader", "follower"])
def test_throttled_replica_catches_up_at_the_rate(side: str) -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2, 1]])
        await fill(cluster)
        await alter(cluster, BROKER, "", f"{side}.replication.throttled.rate", 20_000)
        await alter(cluster, TOPIC, "t", f"{side}.replication.throttled.replicas", "*")
        began_s = cluster.simulation.now_s
        await reassign(cluster, [2, 1, 3])
        talker = await cluster.connect(2)
        for _ in range(5):  # its followers are in sync, so they are not throttled
            sent_s = cluster.simulation.now_s
            assert (await produce(talker, "t", batch(b"y" * 5000))).error_code == 0
            assert cluster.simulation.now_s - sent_s < 0.1
        await cluster.until(lambda: len(where(cluster).isr) == 3, 30.0)
        assert 4.0 < cluster.simulation.now_s - began_s < 9.0  # 125 kB at 20 kB/s, until the last is in sync
        await are_same(cluster, 1, 2, 3)

    on_cluster(script, settings=["replica.fetch.max.bytes=6000", "replica.fetch.response.max.bytes=6000"])


@pytest.mark.proves("H8")
def test_removed_throttle_releases_the_rest_at_once() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2, 1]])
        await fill(cluster)
        await alter(cluster, BROKER, "", "leader.replication.throttled.rate", 1000)
        await alter(cluster, TOPIC, "t", "leader.replication.throttled.replicas", "0:2")
        await reassign(cluster, [2, 1, 3])
        await cluster.until(lambda: cluster.nodes[3].broker.partitions.find("t", 0) is not None, 1.0)
        await cluster.until(lambda: copy_of(cluster, 3).log.end_offset > 0, 5.0)
        assert len(where(cluster).isr) == 2
        await alter(cluster, TOPIC, "t", "leader.replication.throttled.replicas")
        await cluster.until(lambda: len(where(cluster).isr) == 3, 3.0)

    on_cluster(script, settings=["replica.fetch.max.bytes=6000", "replica.fetch.response.max.bytes=6000"])


@pytest.mark.proves("H8")
def test_leader_throttle_applies_only_to_replicas_named_for_the_leader() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2, 1]])
        await fill(cluster)
        await alter(cluster, BROKER, "", "leader.replication.throttled.rate", 1000)
        await alter(cluster, TOPIC, "t", "leader.replication.throttled.replicas", "0:3")
        await reassign(cluster, [2, 1, 3])
        await cluster.until(lambda: len(where(cluster).isr) == 3, 3.0)

    on_cluster(script, settings=["replica.fetch.max.bytes=6000", "replica.fetch.response.max.bytes=6000"])


@pytest.mark.parametrize(
    ("named", "partition", "replica", "expected"),
    [
        ((), 0, 1, False),
        (("*",), 0, 1, True),
        (("0:1", "1:2"), 0, 1, True),
        (("0:1", "1:2"), 1, 2, True),
        (("0:1", "1:2"), 1, 1, False),
        (("10:1",), 0, 1, False),
    ],
)
def test_throttled_replicas_are_matched_by_partition_and_broker(
    named: tuple[str, ...], partition: int, replica: int, expected: bool
) -> None:
    assert is_throttled(named, partition, replica) is expected


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_throttled_replica_configs_are_declared_effective(side: str) -> None:
    assert declared(LogSettings)[f"{side}_replication_throttled_replicas"].has_effect


class _Clock:
    def __init__(self) -> None:
        self.now_ms = 1_000.0

    def monotonic_ms(self) -> float:
        return self.now_ms

    def wall_ms(self) -> int:
        return int(self.now_ms)


def test_exceeding_the_rate_delays_the_next_request() -> None:
    clock = _Clock()
    bucket = Bucket(clock)
    assert bucket.delay_ms(1000) == 0
    bucket.took(500, 1000)
    assert bucket.delay_ms(1000) == 500
    clock.now_ms += 400
    assert bucket.delay_ms(1000) == 100
    clock.now_ms += 10_000  # unused budget does not accumulate
    bucket.took(100, 1000)
    assert bucket.delay_ms(1000) == 100
    assert bucket.delay_ms(2**63 - 1) == 0


@pytest.mark.proves("H8")
def test_new_rate_applies_to_bytes_sent_under_the_old_one() -> None:
    clock = _Clock()
    bucket = Bucket(clock)
    bucket.took(1_000_000, 10_000)  # a hundred seconds' worth
    assert bucket.delay_ms(10_000) == 1000
    assert bucket.delay_ms(10_000_000) == 100
    clock.now_ms += 50
    assert bucket.delay_ms(10_000_000) == 50
    clock.now_ms += 50
    assert bucket.delay_ms(10_000_000) == 0

"""Consumer group lag: in the metrics, and in a warning when it keeps growing."""

import asyncio
import logging

import pytest
from broker_scene import Scene, batch, on_broker, produce
from cluster_scene import Cluster, on_cluster
from group_members import TOPIC, commit, find_coordinator

from moldau.broker.groups.lag import Trends
from moldau.broker.metrics.endpoint import MetricsEndpoint
from moldau.broker.network.connection_limits import ConnectionLimits
from moldau.model.errors import ErrorCode

PATIENCE_S = 10
WATCHED = [f"moldau.group.lag.warning.ms={PATIENCE_S * 1000}"]


@pytest.mark.proves("O1")
def test_metrics_report_offsets_and_lag_of_each_group() -> None:
    async def script(scene: Scene) -> None:
        await scene.create(TOPIC, partitions=2)
        talker = await scene.connect()
        await find_coordinator(talker)
        for _ in range(5):
            await produce(talker, TOPIC, batch(b"a", b"b"), partition=1)
        await commit(talker, {0: 0, 1: 7})
        broker = scene.node.broker
        _, _, page = await MetricsEndpoint(broker, [], ConnectionLimits(broker.clock, lambda: broker.settings)).page(
            "/metrics"
        )
        lines = page.decode().splitlines()
        assert 'kafka_consumergroup_current_offset{consumergroup="g",topic="t",partition="1"} 7' in lines
        assert 'kafka_consumergroup_lag{consumergroup="g",topic="t",partition="1"} 3' in lines
        assert 'kafka_consumergroup_lag{consumergroup="g",topic="t",partition="0"} 0' in lines
        assert 'kafka_topic_partition_current_offset{topic="t",partition="1"} 10' in lines

    on_broker(script)


@pytest.mark.proves("O2")
def test_group_with_growing_lag_is_named_in_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    async def script(scene: Scene) -> None:
        await scene.create(TOPIC)
        talker = await scene.connect()
        await find_coordinator(talker)
        await commit(talker, {0: 0}, "slow")
        for number in range(1, 31):
            await asyncio.sleep(1)
            await produce(talker, TOPIC, batch(b"a"))
            await commit(talker, {0: number}, "fast")

    with caplog.at_level(logging.WARNING):
        on_broker(script, settings=WATCHED)
    warnings = [line for line in caplog.messages if "falls behind" in line]
    assert len(warnings) == 2, "once in ten seconds"
    assert "Group slow falls behind: its lag has grown for 10 s, to" in warnings[0]


async def _coordinator(cluster: Cluster) -> int:
    talker = await cluster.connect(1)
    while (found := await find_coordinator(talker)).error_code != ErrorCode.NONE:
        await asyncio.sleep(0.05)
    return int(found.node_id)


async def _commit_everywhere(cluster: Cluster, coordinator: int, group_id: str, offset: int) -> None:
    talker = await cluster.connect(coordinator)
    while any(await commit(talker, dict.fromkeys(range(3), offset), group_id)):
        await asyncio.sleep(0.05)


async def _append(cluster: Cluster, leader: int, partition: int, records: int = 1) -> None:
    await produce(await cluster.connect(leader), TOPIC, batch(*[b"a"] * records), partition=partition)


@pytest.mark.proves("O2")
def test_growing_lag_on_another_broker_is_named_in_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Each partition is on one broker alone: the coordinator has no replica of the one that grows."""

    async def script(cluster: Cluster) -> None:
        await cluster.create(TOPIC, partitions=3, replicas=1)
        coordinator, leaders = await _coordinator(cluster), cluster.leaders(TOPIC)
        assert sorted(leaders) == [1, 2, 3]
        await _commit_everywhere(cluster, coordinator, "slow", 0)
        grows = next(partition for partition, leader in enumerate(leaders) if leader != coordinator)
        for number in range(1, 16):
            await asyncio.sleep(1)
            await _append(cluster, leaders[grows], grows)
            await _commit_everywhere(cluster, coordinator, "fast", number)

    with caplog.at_level(logging.WARNING):
        on_cluster(script, settings=[*WATCHED, "offsets.topic.num.partitions=1"])
    (warning,) = (line for line in caplog.messages if "falls behind" in line)
    assert "Group slow falls behind: its lag has grown for 10 s, to" in warning


def test_dead_leader_does_not_hide_growing_lag_elsewhere(caplog: pytest.LogCaptureFixture) -> None:
    """The lag of an unavailable partition counts as it last was; as 0, the group would seem to catch up."""

    async def script(cluster: Cluster) -> None:
        await cluster.create(TOPIC, partitions=3, replicas=1)
        coordinator, leaders = await _coordinator(cluster), cluster.leaders(TOPIC)
        gone = next(node for node in (2, 3) if node != coordinator)
        await _append(cluster, gone, leaders.index(gone), records=100)
        await _commit_everywhere(cluster, coordinator, "slow", 0)
        for number in range(15):
            await asyncio.sleep(1)
            await _append(cluster, coordinator, leaders.index(coordinator))
            if number == PATIENCE_S // 2:
                cluster.kill(gone)

    with caplog.at_level(logging.WARNING):
        on_cluster(script, settings=[*WATCHED, "offsets.topic.num.partitions=1"])
    (warning,) = (line for line in caplog.messages if "falls behind" in line)
    assert "Group slow falls behind: its lag has grown for 10 s, to 1" in warning


def test_steady_or_shrinking_lag_is_not_reported() -> None:
    trends = Trends()
    patience_ms = 50.0
    steps = [10, 20, 30, 30, 40, 50, 45, 60, 70, 80, 90, 100, 110]
    named = [now for now, lag in enumerate(steps) if trends.check({"g": lag}, now * 10.0, patience_ms)]
    assert named == [11]
    assert trends.check({}, 1_000.0, patience_ms) == []


def test_committed_offset_beyond_the_log_end_has_no_lag() -> None:
    async def script(scene: Scene) -> None:
        await scene.create(TOPIC)
        talker = await scene.connect()
        await find_coordinator(talker)
        await commit(talker, {0: 12})
        (position,) = await scene.node.broker.groups.positions()
        assert (position.offset, position.lag) == (12, 0), (
            "a group that is ahead of a log that lost its end is not behind"
        )

    on_broker(script)

"""How far groups are behind: on the metrics page, and in a warning when it gets worse and worse."""

import asyncio
import logging

import pytest
from broker_scene import Scene, batch, on_broker, produce
from group_members import TOPIC, commit, find_coordinator

from moldau.broker.groups.lag import Trends, positions
from moldau.broker.metrics.pages import MetricsPages
from moldau.broker.network.gate import Gate


@pytest.mark.proves("O1")
def test_the_metrics_page_tells_offsets_and_lag_of_each_group() -> None:
    async def script(scene: Scene) -> None:
        await scene.create(TOPIC, partitions=2)
        talker = await scene.connect()
        await find_coordinator(talker)
        for _ in range(5):
            await produce(talker, TOPIC, batch(b"a", b"b"), partition=1)
        await commit(talker, {0: 0, 1: 7})
        broker = scene.node.broker
        _, _, page = await MetricsPages(broker, Gate(broker.clock, lambda: broker.settings)).page("/metrics")
        lines = page.decode().splitlines()
        assert 'kafka_consumergroup_current_offset{consumergroup="g",topic="t",partition="1"} 7' in lines
        assert 'kafka_consumergroup_lag{consumergroup="g",topic="t",partition="1"} 3' in lines
        assert 'kafka_consumergroup_lag{consumergroup="g",topic="t",partition="0"} 0' in lines
        assert 'kafka_topic_partition_current_offset{topic="t",partition="1"} 10' in lines

    on_broker(script)


@pytest.mark.proves("O2")
def test_a_group_whose_lag_grows_for_long_is_named_in_a_warning(caplog: pytest.LogCaptureFixture) -> None:
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
        on_broker(script, settings=["moldau.group.lag.warning.ms=10000"])
    warnings = [line for line in caplog.messages if "falls behind" in line]
    assert len(warnings) == 2, "once in ten seconds"
    assert "Group slow falls behind: its lag has grown for 10 s, to" in warnings[0]


def test_a_lag_that_stays_or_shrinks_in_between_does_not_count() -> None:
    trends = Trends()
    patience_ms = 50.0
    steps = [10, 20, 30, 30, 40, 50, 45, 60, 70, 80, 90, 100, 110]
    named = [now for now, lag in enumerate(steps) if trends.look({"g": lag}, now * 10.0, patience_ms)]
    assert named == [11]
    assert trends.look({}, 1_000.0, patience_ms) == []


def test_a_group_that_is_ahead_of_its_log_is_not_behind() -> None:
    async def script(scene: Scene) -> None:
        await scene.create(TOPIC)
        talker = await scene.connect()
        await find_coordinator(talker)
        await commit(talker, {0: 12})
        (position,) = await positions(scene.node.broker)
        assert (position.offset, position.lag) == (12, 0), (
            "a group that is ahead of a log that lost its end is not behind"
        )

    on_broker(script)

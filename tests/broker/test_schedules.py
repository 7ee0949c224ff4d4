"""Schedules on a simulated cluster: each tick is published once, whichever nodes fail."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from acl_scene import ALICE, AclScene, acl, with_acls
from cluster_scene import ALL_CONTROL, Cluster, on_cluster

from moldau.broker.access import Operation, ResourceKind
from moldau.broker.internal_topics import SCHEDULE_STATE_TOPIC
from moldau.machines.access.acls import AclFilter
from moldau.model.errors import ErrorCode
from moldau.model.units import MiB
from moldau.records.record import iterate_batches, iterate_records
from moldau.wire.messages import IncrementalAlterConfigsRequest

pytestmark = pytest.mark.proves("C9")

TOPIC = "ticks"
GROUP_RESOURCE, SET, DELETE = 32, 0, 1
SETTINGS = ("min.insync.replicas=2", "broker.session.timeout.ms=3000")


def on_schedule_cluster(script: Callable[[Cluster], Coroutine[Any, Any, None]], seed: int = 1) -> None:
    async def play(cluster: Cluster) -> None:
        await cluster.until_active()
        await cluster.create(TOPIC, partitions=3)
        await script(cluster)

    on_cluster(play, roles=ALL_CONTROL, settings=SETTINGS, seed=seed)


def alteration(names: list[str], **configs: str | None) -> IncrementalAlterConfigsRequest:
    """The request to set configs of schedules, or to delete those that are None."""
    whole = IncrementalAlterConfigsRequest
    changes = [
        whole.AlterableConfig(
            name=f"moldau.schedule.{name.replace('_', '.')}",
            config_operation=SET if value is not None else DELETE,
            value=value,
        )
        for name, value in configs.items()
    ]
    resources = [
        whole.AlterConfigsResource(resource_type=GROUP_RESOURCE, resource_name=name, configs=changes) for name in names
    ]
    return whole(resources=resources)


async def define(cluster: Cluster, names: list[str], **configs: str | None) -> list[int]:
    """Set configs of schedules, or delete those that are None; return the error codes."""
    talker = await cluster.connect(min(cluster.nodes))
    response = await talker.ask(1, alteration(names, **configs))
    talker.connection.close()
    return [each.error_code for each in response.responses]


def wall_ms(cluster: Cluster) -> int:
    return cluster.nodes[min(cluster.nodes)].broker.clock.wall_ms()


def published(cluster: Cluster) -> Counter[tuple[str, int]]:
    """The ticks in the topic, by schedule and time, from the logs of the leaders."""
    found: Counter[tuple[str, int]] = Counter()
    for index, leader in enumerate(cluster.leaders(TOPIC)):
        partition = cluster.nodes[leader].broker.partitions.find(TOPIC, index)
        assert partition is not None
        offset = 0
        while (read := partition.log.read(offset, MiB)) is not None:
            for header, batch in iterate_batches(memoryview(read.read())):
                offset = header.last_offset + 1
                for record in iterate_records(batch):
                    found[dict(record.headers)["moldau-schedule"].decode(), record.timestamp] += 1  # type: ignore[union-attr]
    return found


def seconds(start_ms: int, end_ms: int) -> range:
    """The whole seconds after one time, up to another."""
    return range((start_ms // 1000 + 1) * 1000, end_ms + 1, 1000)


@pytest.mark.parametrize("seed", range(3))
def test_each_tick_is_published_once_across_failovers(seed: int) -> None:
    names = [f"s{number}" for number in range(40)]

    async def script(cluster: Cluster) -> None:
        start_ms = wall_ms(cluster)
        assert not any(
            await define(cluster, names, cron="* * * * * *", topic=TOPIC, catch_up="all", start_ms=str(start_ms))
        )
        await cluster.until(lambda: len(published(cluster)) >= len(names), 20)
        for lost in (1, 2, 3):
            cluster.kill(lost)
            await asyncio.sleep(7.3)
            await cluster.start(lost)
            await asyncio.sleep(5)
        end_ms = wall_ms(cluster)
        expected = {(name, tick) for name in names for tick in seconds(start_ms, end_ms)}
        await cluster.until(lambda: expected <= published(cluster).keys(), 30)
        found = published(cluster)
        assert {tick: count for tick, count in found.items() if count > 1} == {}

    on_schedule_cluster(script, seed)


def test_outage_is_caught_up_once_or_completely() -> None:
    async def script(cluster: Cluster) -> None:
        await define(cluster, ["all"], cron="* * * * * *", topic=TOPIC, catch_up="all")
        await define(cluster, ["once"], cron="* * * * * *", topic=TOPIC)
        await cluster.until(lambda: len({name for name, _ in published(cluster)}) == 2, 20)
        before_ms = wall_ms(cluster)
        for node_id in (1, 2, 3):
            cluster.kill(node_id)
        await asyncio.sleep(20)
        await cluster.start_all()
        await cluster.until_active(30)
        back_ms = wall_ms(cluster)
        await cluster.until(
            lambda: (
                all(leader in cluster.nodes for leader in cluster.leaders(TOPIC))
                and {("all", tick) for tick in seconds(before_ms, back_ms)} <= published(cluster).keys()
            ),
            60,
        )
        missed = [tick for name, tick in published(cluster) if name == "once" and before_ms < tick <= back_ms - 2000]
        assert len(missed) <= 2
        assert max(published(cluster).values()) == 1

    on_schedule_cluster(script)


def test_paused_and_deleted_schedules_publish_nothing() -> None:
    async def script(cluster: Cluster) -> None:
        await define(cluster, ["s"], cron="* * * * * *", topic=TOPIC, catch_up="all")
        await cluster.until(lambda: bool(published(cluster)), 20)
        await define(cluster, ["s"], paused="true")
        await asyncio.sleep(2)
        count = len(published(cluster))
        await asyncio.sleep(10)
        assert len(published(cluster)) == count
        resumed_ms = wall_ms(cluster)
        await define(cluster, ["s"], paused="false")
        await cluster.until(lambda: len(published(cluster)) > count, 5)
        assert len([tick for _, tick in published(cluster) if resumed_ms - 9000 < tick <= resumed_ms - 1000]) == 0
        await define(cluster, ["s"], cron=None, topic=None, catch_up=None, paused=None)
        await asyncio.sleep(2)
        count = len(published(cluster))
        await asyncio.sleep(5)
        assert len(published(cluster)) == count
        assert not any(
            shard._driver._machine.states  # type: ignore[union-attr]
            for node in cluster.nodes.values()
            for shard in node.broker.schedules._shards.all()
        )

    on_schedule_cluster(script)


def test_schedule_waits_for_its_topic() -> None:
    async def script(cluster: Cluster) -> None:
        await define(cluster, ["early"], cron="* * * * * *", topic="later")
        await cluster.until(lambda: SCHEDULE_STATE_TOPIC in cluster.nodes[1].broker.image.topics, 20)
        await asyncio.sleep(3)
        await cluster.create("later")
        (leader,) = cluster.leaders("later")
        partition = cluster.nodes[leader].broker.partitions.find("later", 0)
        assert partition is not None
        await cluster.until(lambda: partition.log.end_offset >= 2, 10)

    on_schedule_cluster(script)


def test_clock_that_is_set_forward_does_not_lose_ticks() -> None:
    async def script(cluster: Cluster) -> None:
        start_ms = wall_ms(cluster)
        await define(cluster, ["s"], cron="* * * * *", topic=TOPIC, catch_up="all", start_ms=str(start_ms))
        await cluster.until(lambda: SCHEDULE_STATE_TOPIC in cluster.nodes[1].broker.image.topics, 20)
        for node in cluster.nodes.values():
            node.broker.clock.skew_ms += 180_000  # type: ignore[attr-defined]
        await cluster.until(lambda: len(published(cluster)) >= 3, 10)
        ticks = sorted(tick for _, tick in published(cluster))
        assert ticks[:3] == [(start_ms // 60_000 + number) * 60_000 for number in (1, 2, 3)]

    on_schedule_cluster(script)


@pytest.mark.parametrize(
    "configs",
    [
        {"cron": "61 * * * *", "topic": TOPIC},
        {"cron": "0 0 31 4 *", "topic": TOPIC},
        {"cron": "* * * * *", "topic": TOPIC, "timezone": "Mars/Olympus"},
        {"cron": "* * * * *"},
        {"cron": "* * * * *", "topic": "__consumer_offsets"},
        {"cron": "* * * * *", "topic": "no such"},
        {"cron": "* * * * *", "topic": TOPIC, "catch_up": "twice"},
    ],
)
def test_invalid_schedule_is_rejected(configs: dict[str, str]) -> None:
    async def script(cluster: Cluster) -> None:
        assert await define(cluster, ["s"], **configs) == [40]

    on_schedule_cluster(script)


def test_change_needs_the_right_to_write_to_the_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(scene: AclScene) -> None:
        await scene.allow(acl(Operation.ALTER_CONFIGS, "s", ResourceKind.GROUP), acl(Operation.WRITE, "mine"))
        alice = await scene.connect(ALICE)

        async def code(**configs: str) -> int:
            response = await alice.ask(1, alteration(["s"], **configs))
            return int(response.responses[0].error_code)

        assert await code(cron="* * * * *", topic="others") == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert await code(cron="* * * * *", topic="mine") == ErrorCode.NONE
        await scene.revoke(AclFilter(name="mine"))
        assert await code(value="other") == ErrorCode.TOPIC_AUTHORIZATION_FAILED

    with_acls(script, monkeypatch)

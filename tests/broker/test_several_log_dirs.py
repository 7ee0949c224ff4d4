"""Brokers with several log dirs: where replicas are placed, and what the failure of one log dir takes offline."""

import asyncio
import errno
import logging
from collections import Counter
from pathlib import PurePosixPath

import pytest
from broker_scene import batch, produce
from cluster_scene import ALL_CONTROL, Cluster, on_cluster
from replica_scene import copy_of, create, send, where

from moldau.model.errors import ErrorCode
from moldau.wire.messages import DescribeLogDirsRequest

TWO_DIRS = ["log.dirs=/data,/data2"]
FIRST, SECOND = "/data", "/data2"


def path_of(cluster: Cluster, node_id: int, topic: str, index: int = 0) -> str:
    return str(PurePosixPath(copy_of(cluster, node_id, topic, index).log.folder).parent)


def placement(cluster: Cluster, node_id: int, topic: str, partitions: int) -> list[str]:
    return [path_of(cluster, node_id, topic, index) for index in range(partitions)]


async def until_assigned(cluster: Cluster, topic: str, partitions: int) -> None:
    """Wait until the metadata have the log dir of each replica."""

    def is_assigned() -> bool:
        own = [
            where(cluster, topic, index).directory_of(node_id)
            == cluster.nodes[node_id].broker.log_dirs.ids[path_of(cluster, node_id, topic, index)]
            for index in range(partitions)
            for node_id in where(cluster, topic, index).replicas
        ]
        return all(own)

    await cluster.until(is_assigned, 5.0)


def break_second_dir(cluster: Cluster, node_id: int) -> None:
    cluster.simulation.disks_fail = True
    disk = cluster.host(node_id).disk
    disk.failing_folder, disk.write_error = SECOND, errno.EIO


@pytest.mark.proves("S11", part="placement")
def test_new_replicas_go_to_the_log_dir_with_the_fewest_partitions() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2, 3, 1]] * 4)
        for node_id in (1, 2, 3):
            assert Counter(placement(cluster, node_id, "t", 4)) == {FIRST: 2, SECOND: 2}
        await until_assigned(cluster, "t", 4)
        registered = cluster.broker(2).directories
        assert len(set(registered)) == 2
        await send(cluster, b"x")
        talker = await cluster.connect(2)
        described = (await talker.ask(4, DescribeLogDirsRequest(topics=None))).results
        assert [each.log_dir for each in described] == [FIRST, SECOND]
        assert [sum(len(topic.partitions) for topic in each.topics) for each in described] == [2, 2]
        assert all(each.total_bytes > each.usable_bytes > 0 and each.error_code == 0 for each in described)
        before = placement(cluster, 2, "t", 4)
        await cluster.stop(2)
        await cluster.start(2)
        assert placement(cluster, 2, "t", 4) == before
        await cluster.until(lambda: len(where(cluster).isr) == 3, 10.0)

    on_cluster(script, settings=TWO_DIRS)


@pytest.mark.proves("S11", part="one fails")
def test_failed_log_dir_takes_only_its_replicas_offline(caplog: pytest.LogCaptureFixture) -> None:
    async def script(cluster: Cluster) -> None:
        await cluster.until_active()
        active = cluster.active
        other, third = sorted({1, 2, 3} - {active})
        await create(cluster, partitions=[[active, other, third]] * 2, min_insync_replicas=2)
        await until_assigned(cluster, "t", 2)
        await create(cluster, "alone", partitions=[[active], [active]])
        paths = placement(cluster, active, "t", 2)
        assert sorted(paths) == [FIRST, SECOND]
        good, bad = paths.index(FIRST), paths.index(SECOND)
        await send(cluster, b"before", index=bad)
        break_second_dir(cluster, active)
        talker = await cluster.connect(active)
        await produce(talker, "t", batch(b"x" * 200), partition=bad, acks=-1, timeout_ms=200)
        took_s = await cluster.until(lambda: where(cluster, index=bad, seen_by=other).leader in (other, third), 2.0)
        assert took_s < 2.0
        assert active not in where(cluster, index=bad, seen_by=other).isr
        assert where(cluster, index=good, seen_by=other).leader == active
        assert (await produce(talker, "t", batch(b"y"), partition=good, acks=-1)).error_code == 0
        assert cluster.active == active
        described = (await talker.ask(4, DescribeLogDirsRequest(topics=None))).results
        assert [each.error_code for each in described] == [0, ErrorCode.KAFKA_STORAGE_ERROR]
        alone = placement(cluster, active, "alone", 2)
        codes = [(await produce(talker, "alone", batch(b"z"), partition=index)).error_code for index in (0, 1)]
        assert codes == [0 if path == FIRST else ErrorCode.KAFKA_STORAGE_ERROR for path in alone]
        await create(cluster, "new", partitions=[[active, other]] * 2)
        assert placement(cluster, active, "new", 2) == [FIRST, FIRST]
        lines = [each for each in caplog.records if each.getMessage().startswith("Log dir")]
        assert len(lines) == 1
        cluster.host(active).disk.write_error = 0
        await cluster.until(lambda: len(where(cluster, index=bad, seen_by=other).isr) == 3, 60.0)

    with caplog.at_level(logging.WARNING, "moldau"):
        on_cluster(script, roles=ALL_CONTROL, settings=TWO_DIRS)


def test_failed_sync_takes_the_log_dir_offline_until_the_restart() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2, 3, 1]] * 2, flush_messages=1)
        await until_assigned(cluster, "t", 2)
        paths = placement(cluster, 2, "t", 2)
        good, bad = paths.index(FIRST), paths.index(SECOND)
        await send(cluster, b"before", index=bad)
        cluster.simulation.disks_fail = True
        disk = cluster.host(2).disk
        disk.failing_folder, disk.sync_error = SECOND, errno.EIO
        talker = await cluster.connect(2)
        await produce(talker, "t", batch(b"x"), partition=bad, acks=-1, timeout_ms=200)
        await cluster.until(lambda: where(cluster, index=bad).leader in (1, 3), 2.0)
        disk.sync_error = 0
        await asyncio.sleep(60)
        assert 2 not in where(cluster, index=bad).isr
        assert (await produce(talker, "t", batch(b"y"), partition=good, acks=-1)).error_code == 0
        await cluster.stop(2)
        await cluster.start(2)
        await cluster.until(lambda: len(where(cluster, index=bad).isr) == 3, 20.0)

    on_cluster(script, settings=TWO_DIRS)


@pytest.mark.proves("S11", part="missing or replaced")
def test_replicas_of_a_missing_log_dir_stay_offline_until_it_is_back() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2, 3, 1]] * 2)
        await create(cluster, "alone", partitions=[[2]] * 2)
        await until_assigned(cluster, "t", 2)
        await until_assigned(cluster, "alone", 2)
        bad, bad_alone = (placement(cluster, 2, topic, 2).index(SECOND) for topic in ("t", "alone"))
        await send(cluster, b"kept", topic="alone", index=bad_alone)
        await cluster.stop(2)
        break_second_dir(cluster, 2)
        await cluster.start(2)
        await cluster.until(lambda: len(where(cluster, index=1 - bad).isr) == 3, 10.0)
        assert 2 not in where(cluster, index=bad).isr
        assert where(cluster, "alone", 1 - bad_alone).leader == 2
        assert where(cluster, "alone", bad_alone).leader == -1
        talker = await cluster.connect(2)
        described = (await talker.ask(4, DescribeLogDirsRequest(topics=None))).results
        assert [(each.log_dir, each.error_code) for each in described] == [(FIRST, 0), (SECOND, 56)]
        await cluster.stop(2)
        cluster.host(2).disk.write_error = 0
        await cluster.start(2)
        await cluster.until(lambda: len(where(cluster, index=bad).isr) == 3, 10.0)
        await cluster.until(lambda: where(cluster, "alone", bad_alone).leader == 2, 5.0)
        assert copy_of(cluster, 2, "alone", bad_alone).log.end_offset == 1

    on_cluster(script, settings=TWO_DIRS)


@pytest.mark.proves("S11", part="missing or replaced")
def test_replaced_log_dir_is_filled_from_other_replicas_and_never_with_empty_logs() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2, 3, 1]] * 2)
        await create(cluster, "alone", partitions=[[2]] * 2)
        await until_assigned(cluster, "t", 2)
        await until_assigned(cluster, "alone", 2)
        lost, lost_alone = (placement(cluster, 2, topic, 2).index(SECOND) for topic in ("t", "alone"))
        await send(cluster, b"kept", index=lost)
        await send(cluster, b"gone", topic="alone", index=lost_alone)
        await cluster.stop(2)
        cluster.simulation.disks_fail = True
        cluster.host(2).disk.mount().remove_directory(SECOND)
        await cluster.start(2)
        await cluster.until(lambda: len(where(cluster, index=lost).isr) == 3, 10.0)
        assert copy_of(cluster, 2, "t", lost).log.end_offset == 1
        await until_assigned(cluster, "t", 2)
        await asyncio.sleep(5)
        assert where(cluster, "alone", lost_alone).leader == -1
        assert cluster.nodes[2].broker.partitions.find("alone", lost_alone) is None

    on_cluster(script, settings=TWO_DIRS)


def test_metadata_log_may_have_a_directory_of_its_own() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2, 3, 1]])
        names = cluster.host(2).disk.mount().list("/data")
        assert "__cluster_metadata-0" in names
        assert "t-0" not in names
        assert path_of(cluster, 2, "t") == SECOND
        await send(cluster, b"x")
        await cluster.stop(2)
        await cluster.start(2)
        await cluster.until(lambda: len(where(cluster).isr) == 3, 10.0)

    on_cluster(script, settings=["log.dirs=/data2", "metadata.log.dir=/data"])

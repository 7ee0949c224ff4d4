"""A broker whose log dir cannot be written gives up what others can take over, and serves the rest."""

import asyncio
import errno
import logging
from collections.abc import Callable

import pytest
from broker_scene import batch, fetch, produce
from cluster_scene import ALL_CONTROL, Cluster, on_cluster
from replica_scene import create, send, where

from moldau.model.errors import ErrorCode
from moldau.testing.disk import CAPACITY_BYTES, SimulatedDisk
from moldau.wire.messages import DescribeLogDirsRequest, MetadataRequest

Break = Callable[[SimulatedDisk], None]


def fail_writes(disk: SimulatedDisk) -> None:
    disk.write_error = errno.EIO


def make_read_only(disk: SimulatedDisk) -> None:
    disk.write_error = errno.EROFS


def fill(disk: SimulatedDisk) -> None:
    disk.capacity_bytes = disk.used_bytes + 50


def repair(disk: SimulatedDisk) -> None:
    disk.write_error, disk.capacity_bytes, disk.is_hanging = 0, CAPACITY_BYTES, False


async def until_acknowledged(cluster: Cluster, value: bytes, *, seen_by: int) -> float:
    """Produce with acks=all to the leader of t-0, as a client does, until it is acknowledged; return how long."""
    began_s = cluster.simulation.now_s
    while True:
        leader = where(cluster, seen_by=seen_by).leader
        talker = await cluster.connect(leader if leader > 0 else seen_by)
        response = await produce(talker, "t", batch(value), acks=-1, timeout_ms=200)
        talker.connection.close()
        if response.error_code == 0:
            return cluster.simulation.now_s - began_s
        await asyncio.sleep(0.05)


@pytest.mark.proves("S11", part="clients go on with other brokers")
@pytest.mark.proves("H6", part="the controller moves")
@pytest.mark.parametrize("break_disk", [fail_writes, make_read_only, fill])
def test_broker_that_cannot_write_gives_up_leadership_and_control(
    break_disk: Break, caplog: pytest.LogCaptureFixture
) -> None:
    async def script(cluster: Cluster) -> None:
        await cluster.until_active()
        active = cluster.active
        other, third = sorted({1, 2, 3} - {active})
        await create(cluster, partitions=[[active, other, third]], min_insync_replicas=2)
        await create(cluster, "alone", partitions=[[active]])
        await send(cluster, b"before")
        await send(cluster, b"alone", topic="alone")
        cluster.simulation.disks_fail = True
        disk = cluster.host(active).disk
        break_disk(disk)
        caplog.clear()
        assert await until_acknowledged(cluster, b"x" * 200, seen_by=other) < 2.0
        await cluster.until(lambda: cluster.nodes[other].broker.metadata.leader_id in (other, third), 2.0)
        state = where(cluster, seen_by=other)
        assert (state.leader in (other, third), active in state.isr) == (True, False)
        assert where(cluster, "alone", seen_by=other).leader == active
        talker = await cluster.connect(active)
        response = await produce(talker, "alone", batch(b"y" * 200))
        assert response.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await fetch(talker, "alone", 0)).error_code == 0
        described = (await talker.ask(4, DescribeLogDirsRequest(topics=None))).results[0]
        assert described.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        rejected = await produce(talker, "t", batch(b"x"), acks=-1, version=10)
        assert rejected.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert rejected.current_leader is None
        asker = await cluster.connect(active)
        with pytest.raises(ConnectionError):  # it cannot learn the new leaders, so clients are to ask another broker
            await asker.ask(9, MetadataRequest(topics=None))
        await asyncio.sleep(60)
        own = [each for each in caplog.records if "Log dir" in each.getMessage() and each.levelno >= logging.WARNING]
        assert len(own) == 1
        assert len([each for each in caplog.records if each.levelno >= logging.WARNING]) < 60
        repair(disk)
        await cluster.until(lambda: len(where(cluster, seen_by=other).isr) == 3, 60.0)
        assert (await produce(talker, "alone", batch(b"z"))).error_code == 0
        asker = await cluster.connect(active)
        topics = (await asker.ask(9, MetadataRequest(topics=None))).topics
        assert [each.partitions[0].leader_id for each in topics if each.name == "t"] != [active]

    with caplog.at_level(logging.INFO, "moldau"):
        on_cluster(script, roles=ALL_CONTROL)


def test_broker_with_hanging_disk_gives_up_leadership_and_control() -> None:
    async def script(cluster: Cluster) -> None:
        await cluster.until_active()
        active = cluster.active
        other, third = sorted({1, 2, 3} - {active})
        await create(cluster, partitions=[[active, other, third]], flush_messages=1)
        await send(cluster, b"before")
        cluster.simulation.disks_fail = True
        cluster.host(active).disk.is_hanging = True
        assert 3.0 < await until_acknowledged(cluster, b"x", seen_by=other) < 5.0
        await cluster.until(lambda: cluster.nodes[other].broker.metadata.leader_id in (other, third), 2.0)
        repair(cluster.host(active).disk)
        await cluster.until(lambda: len(where(cluster, seen_by=other).isr) == 3, 60.0)

    on_cluster(script, roles=ALL_CONTROL, settings=["moldau.log.dir.io.timeout.ms=3000"])


def test_log_dir_full_for_less_than_the_grace_stays_online() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2, 3, 1]])
        cluster.simulation.disks_fail = True
        disk = cluster.host(2).disk
        fill(disk)
        talker = await cluster.connect(2)
        response = await produce(talker, "t", batch(b"x" * 200), acks=-1, timeout_ms=200)
        assert response.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        await asyncio.sleep(0.2)
        repair(disk)
        await asyncio.sleep(2)
        assert cluster.nodes[2].broker.log_dirs.are_all_online
        assert where(cluster).leader == 2
        assert (await produce(talker, "t", batch(b"x" * 200), acks=-1)).error_code == 0

    on_cluster(script)

"""Logs move between the log dirs of a broker while clients use them."""

import asyncio
import errno
from typing import Any

import pytest
from broker_scene import Talker, batch, produce
from cluster_scene import Cluster, on_cluster
from replica_scene import contents, copy_of, create, send, where
from test_several_log_dirs import FIRST, SECOND, TWO_DIRS, path_of, until_assigned

from moldau.model.errors import ErrorCode
from moldau.wire.messages import AlterReplicaLogDirsRequest, DescribeLogDirsRequest, DescribeLogDirsResponse


async def request_move(talker: Talker, path: str, topic: str = "t", index: int = 0) -> int:
    """Request a move; return the error code."""
    moved = AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic(name=topic, partitions=[index])
    wanted = AlterReplicaLogDirsRequest.AlterReplicaLogDir(path=path, topics=[moved])
    response = await talker.ask(2, AlterReplicaLogDirsRequest(dirs=[wanted]))
    return int(response.results[0].partitions[0].error_code)


def other_than(path: str) -> str:
    return SECOND if path == FIRST else FIRST


async def future_of(talker: Talker, path: str) -> DescribeLogDirsResponse.DescribeLogDirsPartition | None:
    described = await talker.ask(4, DescribeLogDirsRequest(topics=None))
    found = next(each for each in described.results if each.log_dir == path)
    return next((each for topic in found.topics for each in topic.partitions if each.is_future_key), None)


async def until_moved(cluster: Cluster, node_id: int, target: str, virtual_s_max: float = 10.0) -> None:
    await cluster.until(lambda: path_of(cluster, node_id, "t") == target, virtual_s_max)
    await until_assigned(cluster, "t", 1)
    await cluster.until(lambda: not cluster.nodes[node_id].broker.log_moves.all, 5.0)


@pytest.mark.proves("S11", part="moves")
@pytest.mark.parametrize("node_id", [2, 3])
@pytest.mark.parametrize("configs", [{}, {"flush_messages": 1}])
def test_log_moves_while_clients_produce(node_id: int, configs: dict[str, Any]) -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2, 3, 1]], segment_bytes=3000, min_insync_replicas=3, **configs)
        await until_assigned(cluster, "t", 1)
        for _ in range(20):
            await send(cluster, b"x" * 500)
        source = path_of(cluster, node_id, "t")
        target = other_than(source)
        talker, producer = await cluster.connect(node_id), await cluster.connect(2)
        assert await request_move(talker, target) == ErrorCode.NONE
        offsets: list[int] = []
        while path_of(cluster, node_id, "t") == source or len(offsets) < 50:
            response = await produce(producer, "t", batch(b"y" * 300), acks=-1, timeout_ms=2000)
            assert response.error_code == ErrorCode.NONE
            offsets.append(response.base_offset)
            assert len(offsets) < 5000
        assert offsets == list(range(20, 20 + len(offsets)))
        await until_moved(cluster, node_id, target)
        await asyncio.sleep(3)
        copies = {each: contents(copy_of(cluster, each)) for each in (1, 2, 3)}
        assert copies[1] == copies[2] == copies[3]
        assert where(cluster).leader == 2
        assert len(where(cluster).isr) == 3
        names = cluster.host(node_id).disk.mount().list(source)
        assert "t-0" not in names
        await asyncio.sleep(70)
        assert not [each for each in cluster.host(node_id).disk.mount().list(source) if each.startswith("t-0")]
        await cluster.stop(node_id)
        await cluster.start(node_id)
        assert path_of(cluster, node_id, "t") == target
        await cluster.until(lambda: len(where(cluster).isr) == 3, 10.0)

    on_cluster(script, settings=TWO_DIRS)


def test_moved_log_keeps_its_start_offset_its_producers_and_its_records() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2]], segment_bytes=2000)
        talker = await cluster.connect(2)
        records = batch(b"1" * 200, b"2", b"3", producer_id=7, producer_epoch=0, base_sequence=0)
        assert (await produce(talker, "t", records)).base_offset == 0
        for _ in range(20):
            await send(cluster, b"x" * 300)
        partition = copy_of(cluster, 2)
        partition.delete_before(2)  # within the first batch
        target = other_than(path_of(cluster, 2, "t"))
        await request_move(talker, target)
        await until_moved(cluster, 2, target)
        log = copy_of(cluster, 2).log
        assert copy_of(cluster, 2) is partition
        assert (log.start_offset, log.end_offset, partition.high_watermark) == (2, 23, 23)
        assert (await produce(talker, "t", records)).base_offset == 0  # a duplicate
        assert log.end_offset == 23

    on_cluster(script, settings=TWO_DIRS)


@pytest.mark.proves("S11", part="moves")
def test_move_is_throttled_described_and_can_be_called_off() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2]])
        for _ in range(10):
            await send(cluster, b"x" * 100_000)
        source = path_of(cluster, 2, "t")
        target = other_than(source)
        talker = await cluster.connect(2)
        began_s = cluster.simulation.now_s
        assert await request_move(talker, target) == ErrorCode.NONE
        await asyncio.sleep(2)
        future = await future_of(talker, target)
        assert future is not None
        assert 0 < future.offset_lag < 10
        assert future.partition_size > 0
        await request_move(talker, source)
        await asyncio.sleep(3)
        assert await future_of(talker, target) is None
        assert not [each for each in cluster.host(2).disk.mount().list(target) if each.startswith("t-0")]
        await request_move(talker, target)
        await until_moved(cluster, 2, target, 30.0)
        assert cluster.simulation.now_s - began_s > 5

    limit = "replica.alter.log.dirs.io.max.bytes.per.second=200000"
    on_cluster(script, settings=[*TWO_DIRS, limit])


def test_move_to_a_failing_log_dir_leaves_the_log_where_it_is() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2, 3, 1]])
        await until_assigned(cluster, "t", 1)
        await send(cluster, b"x")
        source = path_of(cluster, 2, "t")
        target = other_than(source)
        cluster.simulation.disks_fail = True
        disk = cluster.host(2).disk
        disk.failing_folder, disk.write_error = f"{target}/", errno.EIO
        talker = await cluster.connect(2)
        assert await request_move(talker, target) == ErrorCode.NONE
        await asyncio.sleep(2)
        assert path_of(cluster, 2, "t") == source
        assert not cluster.nodes[2].broker.log_moves.all
        await until_assigned(cluster, "t", 1)
        await send(cluster, b"y")
        disk.write_error = 0
        await cluster.until(lambda: len(where(cluster).isr) == 3, 20.0)

    on_cluster(script, settings=TWO_DIRS)


@pytest.mark.proves("S11", part="moves")
@pytest.mark.parametrize("after_ms", [50, 200, 1000, 3000])
def test_move_interrupted_by_a_crash_completes_after_the_restart(after_ms: int) -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2]])
        for _ in range(6):
            await send(cluster, b"x" * 50_000)
        before = contents(copy_of(cluster, 2))
        target = other_than(path_of(cluster, 2, "t"))
        await request_move(await cluster.connect(2), target)
        await asyncio.sleep(after_ms / 1000)
        cluster.kill(2)
        await cluster.start(2)
        await until_moved(cluster, 2, target, 20.0)
        assert contents(copy_of(cluster, 2)) == before

    on_cluster(script, settings=[*TWO_DIRS, "replica.alter.log.dirs.io.max.bytes.per.second=200000"])


def test_requests_for_unknown_log_dirs_and_partitions_have_errors() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2]])
        talker = await cluster.connect(2)
        assert await request_move(talker, "/nowhere") == ErrorCode.LOG_DIR_NOT_FOUND
        assert await request_move(talker, path_of(cluster, 2, "t")) == ErrorCode.NONE
        for index in range(3):  # remembered until they are created
            assert await request_move(talker, SECOND, "later", index) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await create(cluster, "elsewhere", partitions=[[3]])
        assert await request_move(talker, SECOND, "elsewhere") == ErrorCode.REPLICA_NOT_AVAILABLE
        assert await request_move(talker, SECOND, "x" * 201) == ErrorCode.INVALID_TOPIC_EXCEPTION
        await create(cluster, "later", partitions=[[2]] * 3)
        assert [path_of(cluster, 2, "later", index) for index in range(3)] == [SECOND] * 3

    on_cluster(script, settings=TWO_DIRS)

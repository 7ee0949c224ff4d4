"""Replicas that move or recover: reassignment, restart, truncation to the leader's log start, corrupt logs."""

import asyncio
import errno
from functools import partial
from typing import Any

import pytest
from broker_scene import batch, list_offset, produce
from cluster_scene import BROKER, ONE_CONTROLLER, Cluster, on_cluster
from replica_scene import are_same, contents, copy_of, create, leader_of, read, reassign, send, values, where

from moldau.broker.partitions.partition import Partition
from moldau.model.errors import ErrorCode
from moldau.records.header import read_header
from moldau.records.record import iterate_batches
from moldau.wire.messages import DeleteRecordsRequest, IncrementalAlterConfigsRequest

QUICK = ("replica.lag.time.max.ms=1000", "broker.session.timeout.ms=60000")


async def is_placed(cluster: Cluster, replicas: list[int], topic: str = "t", index: int = 0) -> None:
    def is_so() -> bool:
        now = where(cluster, topic, index)
        return list(now.replicas) == replicas and sorted(now.isr) == sorted(replicas) and not now.adding_replicas

    await cluster.until(is_so, 10.0)


def folders(cluster: Cluster, node_id: int, topic: str = "t") -> list[str]:
    names = cluster.host(node_id).disk.contents()
    return sorted({name.split("/")[2] for name in names if name.startswith(f"/data/{topic}-")})


@pytest.mark.proves("H8")
def test_reassigned_partition_moves_and_its_old_replica_is_deleted() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2, 3]])
        for number in range(20):
            await send(cluster, str(number).encode())
        await reassign(cluster, [1, 2])
        await is_placed(cluster, [1, 2])
        await are_same(cluster, 1, 2)
        await cluster.until(lambda: cluster.nodes[3].broker.partitions.find("t", 0) is None, 5.0)
        await send(cluster, b"more")
        await cluster.until(lambda: "t-0" not in folders(cluster, 3), 120.0)

    on_cluster(script)


@pytest.mark.proves("H8")
def test_replicas_are_added_and_removed_while_records_are_produced() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2]])
        sent = [str(number).encode() for number in range(60)]
        for number, value in enumerate(sent):
            if number == 10:
                await reassign(cluster, [2, 3, 1])
            if number == 40:
                await is_placed(cluster, [2, 3, 1])
                await reassign(cluster, [3])
            await send(cluster, value)
        await is_placed(cluster, [3])
        # A batch that was rejected at the leader change may have been written all the same.
        assert list(dict.fromkeys(await read(await cluster.connect(3)))) == sent
        assert copy_of(cluster, 3).role.leads_alone

    on_cluster(script)


def test_replica_reassigned_while_its_broker_is_down_becomes_a_stray_log() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2, 3]])
        await send(cluster, b"a")
        await cluster.stop(3)
        await reassign(cluster, [2, 1])
        await is_placed(cluster, [2, 1])
        await cluster.start(3)
        assert [name.endswith("-stray") for name in folders(cluster, 3)] == [True]

    on_cluster(script)


@pytest.mark.proves("H1")
def test_restarted_follower_keeps_its_high_watermark() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2, 3]])
        for number in range(5):
            await send(cluster, str(number).encode())
        await are_same(cluster, 2, 3)
        await cluster.nodes[3].broker.partitions.checkpoint_high_watermarks()
        await send(cluster, b"more")
        cluster.kill(3)
        await cluster.until(lambda: where(cluster).isr == (2,), 5.0)
        cluster.simulation.network.cut_both("n2", "n3")
        await cluster.start(3)
        assert copy_of(cluster, 3).log.end_offset == 6
        assert copy_of(cluster, 3).high_watermark == 5
        assert await read(await cluster.connect(3)) == [str(number).encode() for number in range(5)]
        cluster.simulation.network.heal()
        await are_same(cluster, 2, 3)

    on_cluster(script)


def test_restarted_leader_serves_committed_records() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2, 3]])
        await send(cluster, b"a", b"b")
        await cluster.stop(3)
        await cluster.stop(2)
        assert leader_of(cluster) == -1
        await cluster.start(2)
        await cluster.until(lambda: leader_of(cluster) == 2, 5.0)
        assert await read(await cluster.connect(2)) == [b"a", b"b"]
        assert (await list_offset(await cluster.connect(2), "t", -1)).offset == 2

    on_cluster(script)


def test_follower_below_the_leaders_log_start_restarts_from_it() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2, 3]])
        await send(cluster, b"a")
        await cluster.stop(3)
        for number in range(10):
            await send(cluster, str(number).encode())
        deleted = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=8)
        topics = [DeleteRecordsRequest.DeleteRecordsTopic(name="t", partitions=[deleted])]
        await (await cluster.connect(2)).ask(2, DeleteRecordsRequest(topics=topics, timeout_ms=1000))
        await cluster.start(3)
        await cluster.until(lambda: copy_of(cluster, 3).log.end_offset == 11, 5.0)
        assert copy_of(cluster, 3).log.start_offset == 8
        assert values(contents(copy_of(cluster, 3))) == [b"7", b"8", b"9"]
        await cluster.until(lambda: sorted(where(cluster).isr) == [2, 3], 5.0)
        await send(cluster, b"more")
        await cluster.until(lambda: copy_of(cluster, 3).high_watermark == 12, 1.0)

    on_cluster(script)


@pytest.mark.proves("H5", part="truncation")
@pytest.mark.parametrize("operation", ["create", "rename"])
def test_follower_retries_when_its_disk_fails_in_a_full_truncation(operation: str) -> None:
    async def script(cluster: Cluster) -> None:
        cluster.simulation.disks_fail = True
        await create(cluster, partitions=[[2, 3]])
        await send(cluster, b"a")
        cluster.kill(3)
        await send(cluster, b"b")
        await delete_below(cluster, 2)
        cluster.host(3).disk.fail(operation, errno.ENOSPC, path="/data/t-0/0")
        await cluster.start(3)
        await cluster.until(lambda: cluster.host(3).disk.fired[f"failed {operation}"] == 1, 5.0)
        await send(cluster, b"c")
        await cluster.until(lambda: copy_of(cluster, 3).high_watermark == 3, 5.0)
        assert values(contents(copy_of(cluster, 3))) == [b"c"]

    on_cluster(script)


@pytest.mark.proves("S8", part="acknowledged records are kept")
def test_compacted_replica_refetches_a_batch_lost_in_a_power_loss() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2, 3]], cleanup_policy="compact", segment_bytes=1024, min_insync_replicas=1)
        talker = await cluster.connect(2)
        for number in range(30):
            assert (await produce(talker, "t", batch(b"x" * 100, key=b"%d" % number))).error_code == 0
        disk, second = cluster.host(3).disk, copy_of(cluster, 3).log.segment_base_offsets[1]
        for file in [each for each in disk.contents() if each.startswith("/data/t-0/")]:
            disk.mount().open(file).fsync()
        disk.mount().sync_directory("/data/t-0")
        cluster.cut_power(3)
        name = f"/data/t-0/{second:020d}.log"
        *_, (last, _) = iterate_batches(disk.contents()[name])
        disk.mount().open(name).truncate(len(disk.contents()[name]) - last.size_bytes)
        await cluster.start(3)
        log = copy_of(cluster, 3).log
        await cluster.until(lambda: log.end_offset == 30, 5.0)
        missing = [each for each in range(30) if read_header(log.read_bytes(each, 1)).base_offset != each]
        assert not missing

    on_cluster(script, settings=QUICK)


async def delete_below(cluster: Cluster, offset: int, timeout_ms: int = 1000) -> Any:
    requested = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=offset)
    topics = [DeleteRecordsRequest.DeleteRecordsTopic(name="t", partitions=[requested])]
    response = await (await cluster.connect(2)).ask(2, DeleteRecordsRequest(topics=topics, timeout_ms=timeout_ms))
    return response.topics[0].partitions[0]


@pytest.mark.proves("H8", part="partitions move by plan")
def test_new_replica_accepts_batches_larger_than_the_segment_size() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2]])
        for size in (10, 5000, 10, 3000, 4000, 10):
            await send(cluster, b"x" * size)
        requested = IncrementalAlterConfigsRequest
        smaller = requested.AlterableConfig(name="segment.bytes", config_operation=0, value="2048")
        topic = requested.AlterConfigsResource(resource_type=2, resource_name="t", configs=[smaller])
        await (await cluster.connect(1)).ask(1, requested(resources=[topic]))
        await reassign(cluster, [2, 3])
        await is_placed(cluster, [2, 3])
        copies = [copy_of(cluster, node_id).log for node_id in (2, 3)]
        one, other = ([log.read_bytes(offset, 1) for offset in range(log.end_offset)] for log in copies)
        assert one == other

    on_cluster(script)


@pytest.mark.proves("H8", part="partitions move by plan")
def test_new_replica_starts_at_a_log_start_within_a_batch() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2]])
        await send(cluster, b"a", b"b", b"c", b"d")
        await send(cluster, b"e")
        assert (await delete_below(cluster, 2)).low_watermark == 2
        await reassign(cluster, [2, 3])
        await is_placed(cluster, [2, 3])
        await are_same(cluster, 2, 3)
        assert copy_of(cluster, 3).log.start_offset == 2
        await reassign(cluster, [3])
        await cluster.until(lambda: copy_of(cluster, 3).role.leads_alone, 5.0)
        assert (await list_offset(await cluster.connect(3), "t", -2)).offset == 2
        await cluster.stop(3)
        await cluster.start(3)
        await cluster.until(lambda: leader_of(cluster) == 3, 5.0)
        talker = await cluster.connect(3)
        assert await read(talker, 2) == [b"a", b"b", b"c", b"d", b"e"]  # a consumer skips earlier records of the batch

    on_cluster(script)


def test_delete_records_completes_once_every_replica_has_deleted() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster)
        for _ in range(5):
            await send(cluster, b"a")
        for offset in (2, 4):
            response = await delete_below(cluster, offset)
            assert (response.error_code, response.low_watermark) == (0, offset)
            assert [copy_of(cluster, each).log.start_offset for each in (1, 2, 3)] == [offset] * 3
        cluster.kill(3)
        await cluster.until(lambda: where(cluster).isr == (2, 1), 5.0)
        assert (await delete_below(cluster, 5)).low_watermark == 5  # a broker that is down is not waited for

    on_cluster(script)


def _starts_at(copy: Partition, offset: int) -> bool:
    return copy.log.start_offset == offset


@pytest.mark.proves("S4", part="DeleteRecords")
def test_delete_records_below_a_start_moved_by_retention_completes() -> None:
    """The partition is idle, so that nothing but the request makes the followers fetch."""

    async def script(cluster: Cluster) -> None:
        await create(cluster, segment_bytes=1024, retention_bytes=1)
        for _ in range(5):
            await send(cluster, b"a" * 700)
        for node_id in (2, 1, 3):
            copy = copy_of(cluster, node_id)
            await cluster.until(partial(_starts_at, copy, 5), 1_000.0)
        for offset in (1, 3, 5):
            response = await delete_below(cluster, offset)
            assert (response.error_code, response.low_watermark) == (0, 5)

    on_cluster(script)


def test_delete_records_times_out_on_a_slow_replica() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster)
        await send(cluster, b"a")
        cluster.host(3).pause()
        response = await delete_below(cluster, 1, timeout_ms=300)
        assert (response.error_code, response.low_watermark) == (ErrorCode.REQUEST_TIMED_OUT, -1)
        cluster.host(3).resume()
        await cluster.until(lambda: copy_of(cluster, 3).log.start_offset == 1, 5.0)

    on_cluster(script)


def test_corrupt_batch_is_not_replicated() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2, 3]])
        await send(cluster, b"a")
        await cluster.stop(3)
        talker = await cluster.connect(2)
        await produce(talker, "t", batch(b"damaged" * 20), acks=1)
        log = "/data/t-0/00000000000000000000.log"
        cluster.simulation.disks_fail = True
        cluster.host(2).disk.flip_bit(log, copy_of(cluster, 2).log.size_bytes - 5)
        await cluster.start(3)
        await asyncio.sleep(3.0)
        assert values(contents(copy_of(cluster, 3))) == [b"a"]
        assert where(cluster).isr == (2,)

    on_cluster(script)


@pytest.mark.proves("S6")
def test_corrupt_follower_replica_is_fetched_again() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2, 3, 1], [1, 2, 3]])
        for number in range(10):
            await send(cluster, str(number).encode())
        await are_same(cluster, 1, 2, 3)
        cluster.simulation.disks_fail = True
        cluster.kill(3)
        size_bytes = len(contents(copy_of(cluster, 2)))
        cluster.host(3).disk.flip_bit("/data/t-0/00000000000000000000.log", size_bytes // 2)
        await cluster.start(3)
        await cluster.until(lambda: sorted(where(cluster).isr) == [1, 2, 3], 5.0)
        await are_same(cluster, 1, 2, 3)
        assert folders(cluster, 3) == ["t-0", "t-1"]
        assert 0 < copy_of(cluster, 3).traffic.replication_bytes_in <= size_bytes // 2 + 69  # not what precedes it
        await send(cluster, b"more", index=1)

    on_cluster(script)


@pytest.mark.proves("S6")
def test_leader_with_a_corrupt_log_resigns_and_fetches_it_again() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster)
        for number in range(10):
            await send(cluster, str(number).encode())
        cluster.simulation.disks_fail = True
        cluster.simulation.network.cut_both("n2", "client")
        cluster.kill(2)
        cluster.host(2).disk.flip_bit("/data/t-0/00000000000000000000.log", 66)
        await cluster.start(2)
        await cluster.until(lambda: sorted(where(cluster).isr) == [1, 2, 3], 5.0)
        assert leader_of(cluster) in (1, 3)
        await are_same(cluster, 1, 2, 3)

    on_cluster(script)


@pytest.mark.proves("H3")
@pytest.mark.proves("S6")
def test_corrupt_replica_is_kept_while_no_other_has_all_records() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2, 3]])
        await send(cluster, b"a")
        await cluster.stop(3)
        await send(cluster, b"only here")
        await send(cluster, b"and this")
        cluster.simulation.disks_fail = True
        cluster.kill(2)
        log = "/data/t-0/00000000000000000000.log"
        cluster.host(2).disk.flip_bit(log, 66)
        before = cluster.host(2).disk.contents()[log]
        await cluster.start(2)
        await cluster.start(3)
        await asyncio.sleep(3.0)
        assert folders(cluster, 2) == ["t-0"]
        assert cluster.host(2).disk.contents()[log] == before
        assert leader_of(cluster) != 3

    on_cluster(script)


def test_follower_resumes_once_its_full_disk_has_space() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2, 3]])
        await send(cluster, b"a")
        cluster.simulation.disks_fail = True
        cluster.host(3).disk.fail("pwrite", 28, path="/data/t-0/", times=3)
        await send(cluster, b"b")
        await are_same(cluster, 2, 3)

    on_cluster(script)


@pytest.mark.proves("H5", part="truncation")
@pytest.mark.parametrize("operation", ["unlink", "open"])
def test_follower_resumes_once_its_disk_allows_a_full_truncation(operation: str) -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2, 3]])
        await send(cluster, b"a")
        await cluster.stop(3)
        for number in range(10):
            await send(cluster, str(number).encode())
        deleted = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=8)
        topics = [DeleteRecordsRequest.DeleteRecordsTopic(name="t", partitions=[deleted])]
        await (await cluster.connect(2)).ask(2, DeleteRecordsRequest(topics=topics, timeout_ms=1000))
        cluster.simulation.network.cut_both("n2", "n3")
        await cluster.start(3)
        cluster.simulation.disks_fail = True
        cluster.host(3).disk.fail(operation, 28, path="/data/t-0/", times=3)
        cluster.simulation.network.heal()
        await cluster.until(lambda: copy_of(cluster, 3).log.end_offset == 11, 5.0)
        await are_same(cluster, 2, 3)

    on_cluster(script)


def test_many_partitions_fail_over_together() -> None:
    async def script(cluster: Cluster) -> None:
        placed = [[2, 3, 4], [3, 4, 2], [4, 2, 3]] * 10
        await create(cluster, partitions=placed)
        for index in range(len(placed)):
            await send(cluster, b"before", index=index)
        cluster.kill(2)
        began_s = cluster.simulation.now_s
        await asyncio.gather(*(send(cluster, b"after", index=index) for index in range(len(placed))))
        assert cluster.simulation.now_s - began_s < 1.0
        await cluster.start(2)
        for index in range(len(placed)):
            await are_same(cluster, 2, 3, 4, index=index)

    on_cluster(script, roles=(*ONE_CONTROLLER, BROKER))

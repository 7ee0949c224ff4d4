"""Corrupt replicas: detected, not served, given up where others have all records, and fetched again."""

import asyncio

import pytest
from broker_scene import fetch
from cluster_scene import CONTROLLERS, Cluster, on_cluster
from replica_scene import are_same, contents, copy_of, create, leader_of, read, reassign, send, values, where

from moldau.broker.partitions.partition import Partition
from moldau.broker.replicas.lost_replicas import PARTITIONS_PER_REQUEST_MAX, LostReplicas
from moldau.machines.metadata.replica_dirs import LOST
from moldau.model.errors import ErrorCode
from moldau.model.ids import TopicId
from moldau.model.units import MiB
from moldau.wire import messages as m
from moldau_dev.simulation.loop import SimulatedLoop

RECORDS, MAGIC, LENGTH = 66, 16, 10  # bytes of a batch
LOG = "/data/t-0/00000000000000000000.log"


def placed(cluster: Cluster, broker_id: int, directory: bytes) -> m.AssignReplicasToDirsRequest:
    copy = m.AssignReplicasToDirsRequest.PartitionData(partition_index=0)
    topic_id = cluster.nodes[1].broker.image.topics["t"].topic_id
    topic = m.AssignReplicasToDirsRequest.TopicData(topic_id=topic_id, partitions=[copy])
    return m.AssignReplicasToDirsRequest(
        broker_id=broker_id,
        broker_epoch=cluster.broker(broker_id).epoch,
        directories=[m.AssignReplicasToDirsRequest.DirectoryData(id_=directory, topics=[topic])],
    )


def test_controller_records_corrupt_replicas() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2, 3]])
        talker = await cluster.connect(1, CONTROLLERS)
        response = await talker.ask(0, placed(cluster, 3, LOST))
        result = response.directories[0].topics[0].partitions[0]
        assert (response.error_code, response.directories[0].id_) == (0, LOST)
        assert (result.partition_index, result.error_code) == (0, 0)
        await cluster.until(lambda: (where(cluster).leader_epoch, where(cluster).isr) == (1, (2, 3)), 1.0)
        cluster.kill(3)
        await cluster.until(lambda: where(cluster).isr == (2,), 5.0)
        response = await talker.ask(0, placed(cluster, 2, LOST))
        result = response.directories[0].topics[0].partitions[0]
        assert result.error_code == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE

    on_cluster(script)


def damage(cluster: Cluster, node_id: int, offset: int, byte: int = RECORDS) -> None:
    """Flip a byte of the batch at an offset, on the disk of a running node."""
    cluster.simulation.disks_fail = True
    found = copy_of(cluster, node_id).log.read(offset, 1)
    assert found is not None
    cluster.host(node_id).disk.flip_bit(LOG, found.position + byte)


def all_values(partition: Partition) -> list[bytes | None]:
    """Return the values of every segment."""
    log, found = partition.log, b""
    for base_offset in log.segment_base_offsets:
        found += log.read_bytes(base_offset, 1 << 30)
    return values(found)


async def is_whole(cluster: Cluster, *node_ids: int) -> None:
    await cluster.until(lambda: sorted(where(cluster).isr) == sorted(node_ids), 10.0)
    await are_same(cluster, *node_ids)


async def fill(cluster: Cluster, count: int = 10) -> list[bytes]:
    produced = [b"%d" % number * 20 for number in range(count)]
    for each in produced:
        await send(cluster, each)
    return produced


@pytest.mark.proves("S6", "H5")
@pytest.mark.parametrize("byte", [RECORDS, MAGIC, LENGTH])
def test_leader_with_a_corrupt_replica_resigns_and_fetches_it_again(byte: int) -> None:
    """A new replica needs the corrupt batch, and another replica has it."""

    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2, 3]])
        produced = await fill(cluster)
        await is_whole(cluster, 2, 3)
        damage(cluster, 2, 4, byte)
        await reassign(cluster, [2, 3, 1])
        await cluster.until(lambda: where(cluster).leader == 3, 5.0)
        await is_whole(cluster, 1, 2, 3)
        assert values(contents(copy_of(cluster, 2))) == produced
        await send(cluster, b"more")
        await is_whole(cluster, 1, 2, 3)
        assert copy_of(cluster, 2).traffic.replication_bytes_in > 0

    on_cluster(script)


@pytest.mark.proves("H3")
@pytest.mark.proves("S6")
def test_corrupt_batch_is_not_served_but_the_rest_is() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2, 3]])
        produced = await fill(cluster)
        await cluster.stop(3)
        await send(cluster, b"only on the leader")
        damage(cluster, 2, 4)
        await reassign(cluster, [2, 3, 1])
        await cluster.until(lambda: copy_of(cluster, 2).corruption.first is not None, 5.0)
        talker = await cluster.connect(2)
        assert await read(talker, 0) == produced[:4]
        assert (await fetch(talker, "t", 4, 12)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert await read(talker, 5) == [*produced[5:], b"only on the leader"]
        await asyncio.sleep(3.0)
        assert (where(cluster).leader, where(cluster).isr) == (2, (2,))  # nothing is truncated, as no replica has more
        assert copy_of(cluster, 2).log.end_offset == 11

    on_cluster(script)


@pytest.mark.proves("H3")
def test_corrupt_replica_is_not_reported_after_its_topic_is_deleted() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2, 3]])
        await fill(cluster)
        await cluster.stop(3)
        await send(cluster, b"only on the leader")
        damage(cluster, 2, 4)
        await reassign(cluster, [2, 3, 1])
        await cluster.until(lambda: copy_of(cluster, 2).corruption.first is not None, 5.0)
        reporter = cluster.nodes[1].routers.controller.api(m.AssignReplicasToDirsRequest.API_KEY)
        assert reporter is not None
        await cluster.until(lambda: reporter.meter.count > 2, 5.0)
        await (await cluster.connect(1)).ask(3, m.DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000))
        await asyncio.sleep(2.0)
        reported = reporter.meter.count
        await asyncio.sleep(5.0)
        assert reporter.meter.count == reported

    on_cluster(script)


@pytest.mark.proves("H3")
@pytest.mark.proves("S6")
def test_follower_with_a_corrupt_batch_continues_and_fetches_it_again() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2, 3, 1]], segment_bytes=2 * MiB)
        produced = [bytes([number]) * 300_000 for number in range(10)]
        for each in produced:
            await send(cluster, each)
        await is_whole(cluster, 1, 2, 3)
        copy = copy_of(cluster, 3)
        assert len(copy.log.segment_base_offsets) == 2
        bytes_in = copy.traffic.replication_bytes_in
        damage(cluster, 3, 3, MAGIC)
        talker = await cluster.connect(3)
        assert (await fetch(talker, "t", 3, 12)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        await send(cluster, b"more")  # it keeps following
        await cluster.until(lambda: copy_of(cluster, 3) is not copy, 5.0)
        await is_whole(cluster, 1, 2, 3)
        assert all_values(copy_of(cluster, 3)) == [*produced, b"more"]
        assert (
            0 < copy_of(cluster, 3).traffic.replication_bytes_in - bytes_in < 8 * 300_000
        )  # from the corrupt batch on
        assert (leader_of(cluster), where(cluster).leader_epoch) == (2, 1)

    on_cluster(script)


def test_batch_rejected_for_another_reason_does_not_count_as_corrupt() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2, 3]])
        await fill(cluster, 3)
        cluster.simulation.disks_fail = True
        cluster.host(3).disk.fail("pwrite", 28, path="/data/t-0/", times=5)
        await send(cluster, b"more")
        await is_whole(cluster, 2, 3)
        assert copy_of(cluster, 2).corruption.first is None
        assert where(cluster).leader_epoch == 0

    on_cluster(script)


@pytest.mark.proves("H3")
def test_rejected_reports_do_not_delay_other_reports() -> None:
    """A corrupt disk may hold more sole replicas than fit in one request."""
    topic_id, spare = TopicId(b"t" * 16), PARTITIONS_PER_REQUEST_MAX  # only this one has other replicas
    reported: list[int] = []

    async def controller(request: m.AssignReplicasToDirsRequest) -> m.AssignReplicasToDirsResponse:
        response = m.AssignReplicasToDirsResponse
        requested = [each.partition_index for each in request.directories[0].topics[0].partitions]
        reported.extend(requested)
        rejected = int(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)
        partitions = [
            response.PartitionData(partition_index=index, error_code=0 if index == spare else rejected)
            for index in requested
        ]
        topic = response.TopicData(topic_id=topic_id, partitions=partitions)
        return response(directories=[response.DirectoryData(id_=LOST, topics=[topic])])

    async def script() -> None:
        lost = LostReplicas(1, controller, lambda: 7, lambda what, error: pytest.fail(f"{what}: {error}"))
        for index in range(PARTITIONS_PER_REQUEST_MAX + 1):
            lost.add(topic_id, index)
        await asyncio.sleep(3.5)
        await lost.close()

    loop = SimulatedLoop()
    try:
        loop.run(script())
    finally:
        loop.close()
    assert reported.count(spare) == 1
    assert reported.count(0) > 1  # rejected reports are retried

"""Recreated topics: no data or checkpoint of the earlier topic with the same name is used."""

import asyncio
import errno

import pytest
from broker_scene import Scene, Talker, batch, list_offset, on_broker, produce

from moldau.model.errors import ErrorCode
from moldau.storage.checkpoints import CLEANED, LOG_STARTS
from moldau.wire.messages import DeleteRecordsRequest, DeleteTopicsRequest

pytestmark = pytest.mark.proves("S8", part="acknowledged records are kept")

EARLIEST, LATEST = -2, -1
LOG = "/data/t-0/00000000000000000000.log"


async def fill(talker: Talker, count: int) -> None:
    for _ in range(count):
        response = await produce(talker, "t", batch(b"x" * 100))
        assert response.error_code == 0, response


async def delete_records(talker: Talker, offset: int) -> None:
    partition = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=offset)
    topic = DeleteRecordsRequest.DeleteRecordsTopic(name="t", partitions=[partition])
    response = await talker.ask(2, DeleteRecordsRequest(timeout_ms=1000, topics=[topic]))
    assert response.topics[0].partitions[0].error_code == 0


async def delete_topic(talker: Talker) -> None:
    await talker.ask(5, DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000))


async def extent(scene: Scene) -> tuple[int, int]:
    talker = await scene.connect()
    return (await list_offset(talker, "t", EARLIEST)).offset, (await list_offset(talker, "t", LATEST)).offset


async def crash_with_damage(scene: Scene) -> None:
    await scene.create("t")
    await fill(await scene.connect(), 5)
    scene.simulation.disks_fail = True
    scene.host.crash()
    scene.host.disk.flip_bit(LOG, position=200)


def checkpoint(scene: Scene, name: str) -> bytes:
    return scene.host.disk.contents()[f"/data/{name}"]


@pytest.mark.parametrize("count", [10, 40])
@pytest.mark.parametrize("restart_first", [False, True])
def test_recreated_topic_starts_at_0_and_keeps_acknowledged_records(count: int, restart_first: bool) -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        await fill(talker, 20)
        await delete_records(talker, 15)
        assert b"t 0 15" in checkpoint(scene, LOG_STARTS)
        await delete_topic(talker)
        if restart_first:
            await scene.restart_after_crash()
            talker = await scene.connect()
        await scene.create("t")
        await fill(talker, count)
        await scene.restart_after_crash()
        assert await extent(scene) == (0, count)

    on_broker(script)


def test_recreated_topic_has_no_cleaner_checkpoint() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t", cleanup_policy="compact", segment_bytes=1024, min_cleanable_dirty_ratio=0)
        talker = await scene.connect()
        for _ in range(40):
            await produce(talker, "t", batch(b"x" * 100, key=b"k"))
        async with asyncio.timeout(120):
            while b"t 0" not in scene.host.disk.contents().get(f"/data/{CLEANED}", b""):
                await asyncio.sleep(1.0)
        await delete_topic(talker)
        await scene.create("t")
        assert b"t 0" not in checkpoint(scene, CLEANED)

    on_broker(script)


def test_disk_failure_in_the_deletion_delays_the_recreated_topic() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        await fill(talker, 20)
        await delete_records(talker, 15)
        await delete_topic(talker)
        scene.simulation.disks_fail = True
        scene.host.disk.fail("pwrite", errno.ENOSPC, path=LOG_STARTS, times=2)
        await scene.create("t")
        rejected = await produce(talker, "t", batch(b"x"))
        assert rejected.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert "cannot be opened yet" in rejected.error_message
        async with asyncio.timeout(10):
            while (await produce(talker, "t", batch(b"x"))).error_code:
                await asyncio.sleep(0.2)
        await fill(talker, 9)
        await scene.restart_after_crash()
        assert await extent(scene) == (0, 10)

    on_broker(script)


def test_corrupt_log_is_not_truncated_after_a_disk_failure() -> None:
    async def script(scene: Scene) -> None:
        await crash_with_damage(scene)
        size = len(scene.host.disk.contents()[LOG])
        scene.host.disk.fail("open", errno.EMFILE, path="/data/t-0/0", times=1)
        await scene.restart()
        talker = await scene.connect()
        await asyncio.sleep(10.0)  # virtual; it is retried every second
        assert "is offline" in (await produce(talker, "t", batch(b"x"))).error_message
        assert len(scene.host.disk.contents()[LOG]) == size

    on_broker(script)


def test_corrupt_log_is_deleted_with_its_topic() -> None:
    async def script(scene: Scene) -> None:
        await crash_with_damage(scene)
        await scene.restart()
        talker = await scene.connect()
        await delete_topic(talker)
        await asyncio.sleep(1.0)  # virtual
        assert not [path for path in scene.host.disk.contents() if path.startswith("/data/t-0")]
        await scene.create("t")
        await fill(talker, 3)
        await scene.restart_after_crash()
        assert await extent(scene) == (0, 3)

    on_broker(script)

"""Background maintenance of logs: retention, compaction, deletion, config changes."""

import asyncio
import errno
from typing import Any

import pytest
from broker_scene import Scene, Talker, batch, fetch, list_offset, on_broker, produce

from moldau.broker.partitions.log_flusher import LogFlusher
from moldau.broker.partitions.partition import Partition
from moldau.model.errors import ErrorCode
from moldau.records.builder import build_batch
from moldau.records.record import iterate_batches, iterate_records
from moldau.wire.messages import (
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    IncrementalAlterConfigsRequest,
    MetadataRequest,
)


async def fill(scene: Scene, talker: Talker, topic: str, count: int, size: int = 500, keys: int = 0) -> None:
    """Produce single-record batches with the broker's time."""
    for number in range(count):
        key = str(number % keys).encode() if keys else None
        records = batch(b"%d:" % number + b"x" * size, timestamp=scene.host.clock.wall_ms(), key=key)
        assert (await produce(talker, topic, records)).error_code == 0


async def read_all(talker: Talker, topic: str, offset: int) -> list[Any]:
    """Return every record from an offset on."""
    found: list[Any] = []
    while True:
        response = await fetch(talker, topic, offset)
        assert response.error_code == 0
        batches = list(iterate_batches(bytes(response.records)))
        if not batches:
            return found
        for header, records in batches:
            found += [record for record in iterate_records(records) if record.offset >= offset]
            last = header.last_offset
        offset = last + 1


@pytest.mark.proves("S4")
def test_expired_segments_are_deleted_while_readers_continue() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t", segment_bytes=2048, retention_ms=900_000)
        talker = await scene.connect()
        await fill(scene, talker, "t", 20)
        await asyncio.sleep(1800)
        talker = await scene.connect()  # the old connection exceeded the idle timeout
        await fill(scene, talker, "t", 3)
        await asyncio.sleep(300)
        earliest = (await list_offset(talker, "t", -2)).offset
        assert 15 < earliest <= 20
        assert (await fetch(talker, "t", 0)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert [record.offset for record in await read_all(talker, "t", 20)] == [20, 21, 22]

    on_broker(script, settings=["log.retention.check.interval.ms=60000"])


def test_logs_due_at_the_same_time_are_synced_sequentially(monkeypatch: pytest.MonkeyPatch) -> None:
    under_way: set[Any] = set()
    together: list[int] = []
    plain = LogFlusher._sync

    async def sync(syncing: LogFlusher, partition: Partition) -> None:
        under_way.add(partition)
        together.append(len(under_way))
        await plain(syncing, partition)
        under_way.discard(partition)

    async def script(scene: Scene) -> None:
        topics = [f"t{number}" for number in range(8)]
        for topic in topics:
            await scene.create(topic, flush_ms=5000)
        talker = await scene.connect()
        for topic in topics:
            await fill(scene, talker, topic, 1)
        monkeypatch.setattr(LogFlusher, "_sync", sync)
        await asyncio.sleep(8)
        assert together == [1] * len(topics)

    on_broker(script)


@pytest.mark.proves("S4", part="by age")
def test_failed_file_removal_does_not_block_others() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t", segment_bytes=2048, retention_ms=900_000)
        talker = await scene.connect()
        await fill(scene, talker, "t", 20)
        scene.simulation.disks_fail = True
        scene.host.disk.fail("unlink", errno.EIO, path="/data/t-0")
        await asyncio.sleep(1800)
        left = [path for path in scene.host.disk.contents() if path.startswith("/data/t-0") and ".deleted" in path]
        assert len(left) == 1
        await scene.restart_after_crash()
        assert left[0] not in scene.host.disk.contents()

    on_broker(script, settings=["log.retention.check.interval.ms=60000"])


def test_failing_maintenance_writes_one_line_until_it_succeeds(caplog: pytest.LogCaptureFixture) -> None:
    async def script(scene: Scene) -> None:
        caplog.set_level("INFO", logger="moldau.broker.partitions.log_maintenance")
        scene.simulation.disks_fail = True
        scene.host.disk.fail("fsync", errno.EMFILE, path="checkpoint", times=10_000_000)
        await asyncio.sleep(1200)
        scene.host.disk.forget_plans()
        await asyncio.sleep(120)
        lines = [each.getMessage() for each in caplog.records if each.getMessage().startswith("Log maintenance")]
        assert [" ".join(each.split()[2:4]).rstrip(",") for each in lines] == ["failed, will", "succeeds again"]

    on_broker(script)


@pytest.mark.proves("S4", part="DeleteRecords")
def test_failed_checkpoint_sync_is_retried_without_a_bug_report(caplog: pytest.LogCaptureFixture) -> None:
    async def script(scene: Scene) -> None:
        scene.simulation.disks_fail = True
        scene.host.disk.fail("fsync", errno.EIO, path="log-start-offset-checkpoint")
        await asyncio.sleep(70)
        assert "Log maintenance failed, will retry: sync failed" in caplog.text
        assert "Please report" not in caplog.text
        await asyncio.sleep(70)
        assert "/data/log-start-offset-checkpoint" in scene.host.disk.contents()

    on_broker(script)


@pytest.mark.proves("S4")
def test_oldest_segments_are_deleted_by_size() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t", segment_bytes=2048, retention_bytes=6000)
        talker = await scene.connect()
        await fill(scene, talker, "t", 60)
        await asyncio.sleep(600)
        assert scene.node.broker.partitions.get("t", 0).log.size_bytes < 9000
        assert (await list_offset(talker, "t", -2)).offset > 30
        names = scene.host.disk.mount().list("/data/t-0")
        assert not [name for name in names if name.endswith(".deleted")]

    on_broker(script, settings=["log.retention.check.interval.ms=60000"])


@pytest.mark.proves("S4")
def test_deleted_records_stay_deleted_after_a_crash() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        await fill(scene, talker, "t", 10)

        async def delete(offset: int, topic: str = "t") -> Any:
            requested = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=offset)
            topics = [DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[requested])]
            response = await talker.ask(2, DeleteRecordsRequest(topics=topics, timeout_ms=1000))
            return response.topics[0].partitions[0]

        assert (await delete(4)).low_watermark == 4
        assert (await delete(2)).low_watermark == 4
        assert (await delete(11)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (await delete(1, "nowhere")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        scene.host.crash()
        await scene.restart()
        talker = await scene.connect()
        assert (await list_offset(talker, "t", -2)).offset == 4
        assert (await delete(-1)).low_watermark == 10

    on_broker(script)


@pytest.mark.proves("S5")
def test_compacted_topic_keeps_the_newest_value_of_each_key() -> None:
    async def script(scene: Scene) -> None:
        await scene.create(
            "t", cleanup_policy="compact", segment_bytes=4096, min_cleanable_dirty_ratio=0.01, file_delete_delay_ms=1000
        )
        talker = await scene.connect()
        await fill(scene, talker, "t", 200, keys=5)
        await asyncio.sleep(120)
        records = await read_all(talker, "t", 0)
        assert len(records) < 40
        newest = {record.key: record.value for record in records}
        assert {key: value.split(b":")[0] for key, value in newest.items()} == {
            str(key).encode(): str(195 + key).encode() for key in range(5)
        }
        offsets = [record.offset for record in records]
        assert offsets == sorted(offsets)
        assert (await list_offset(talker, "t", -1)).offset == 200
        scene.host.crash()
        await scene.restart()
        talker = await scene.connect()
        assert [record.offset for record in await read_all(talker, "t", 0)] == offsets

    on_broker(script)


@pytest.mark.proves("S5")
def test_tombstone_deletes_its_key_and_expires() -> None:
    async def script(scene: Scene) -> None:
        await scene.create(
            "t", cleanup_policy="compact", segment_ms=10_000, min_cleanable_dirty_ratio=0.01, delete_retention_ms=60_000
        )
        talker = await scene.connect()
        await produce(talker, "t", batch(b"old", key=b"k", timestamp=scene.host.clock.wall_ms()))
        tombstone = build_batch([(scene.host.clock.wall_ms(), b"k", None, ())])
        await produce(talker, "t", tombstone)
        for _ in range(40):
            await asyncio.sleep(15)
            await fill(scene, talker, "t", 1, keys=1)
        keys = [record.key for record in await read_all(talker, "t", 0)]
        assert b"k" not in keys
        assert b"0" in keys

    on_broker(script)


@pytest.mark.proves("T1")
def test_deleted_topic_is_removed_from_metadata_and_disk() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t", 3)
        talker = await scene.connect()
        await fill(scene, talker, "t", 3)
        response = await talker.ask(5, DeleteTopicsRequest(topic_names=["t", "nowhere"], timeout_ms=1000))
        assert [each.error_code for each in response.responses] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert (await produce(talker, "t", batch(b"a"))).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await asyncio.sleep(120)
        names = scene.host.disk.mount().list("/data")
        assert not [name for name in names if name.startswith("t-")]
        await scene.create("t")
        assert (await list_offset(talker, "t", -1)).offset == 0

    on_broker(script)


@pytest.mark.proves("T1")
def test_half_deleted_folders_are_removed_and_stray_logs_set_aside() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        await talker.ask(5, DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000))
        scene.host.crash()
        disk = scene.host.disk.mount()
        disk.make_directory("/data/stranger-0")
        disk.open("/data/stranger-0/00000000000000000000.log", create=True).close()
        await scene.restart()
        await asyncio.sleep(1)
        names = scene.host.disk.mount().list("/data")
        assert not [name for name in names if name.endswith("-delete")]
        assert [name for name in names if name.startswith("stranger-0.") and name.endswith("-stray")]

    on_broker(script)


@pytest.mark.proves("T1")
def test_topic_configs_change_at_runtime() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        change = IncrementalAlterConfigsRequest.AlterableConfig(
            name="max.message.bytes", config_operation=0, value="1000"
        )
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=2, resource_name="t", configs=[change]
        )
        response = await talker.ask(1, IncrementalAlterConfigsRequest(resources=[resource]))
        assert response.responses[0].error_code == 0
        assert (await produce(talker, "t", batch(b"x" * 2000))).error_code == ErrorCode.MESSAGE_TOO_LARGE
        scene.host.crash()
        await scene.restart()
        talker = await scene.connect()
        assert (await produce(talker, "t", batch(b"x" * 2000))).error_code == ErrorCode.MESSAGE_TOO_LARGE

    on_broker(script)


@pytest.mark.proves("T1")
def test_broker_default_applies_to_topics_without_their_own_config() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        change = IncrementalAlterConfigsRequest.AlterableConfig(
            name="message.max.bytes", config_operation=0, value="1000"
        )
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=4, resource_name="", configs=[change]
        )
        response = await talker.ask(1, IncrementalAlterConfigsRequest(resources=[resource]))
        assert response.responses[0].error_code == 0, response
        assert (await produce(talker, "t", batch(b"x" * 2000))).error_code == ErrorCode.MESSAGE_TOO_LARGE

    on_broker(script)


@pytest.mark.proves("T1")
def test_topic_is_auto_created_only_when_enabled() -> None:
    async def ask(scene: Scene, *, creates: bool) -> Any:
        talker = await scene.connect()
        topics = [MetadataRequest.MetadataRequestTopic(name=name) for name in ("new", "bad name")]
        response = await talker.ask(9, MetadataRequest(topics=topics, allow_auto_topic_creation=creates))
        return [topic.error_code for topic in response.topics], len(response.topics[0].partitions)

    async def script(scene: Scene) -> None:
        unknown, invalid = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION
        assert await ask(scene, creates=False) == ([unknown, invalid], 0)
        assert await ask(scene, creates=True) == ([0, ErrorCode.INVALID_TOPIC_EXCEPTION], 4)

    on_broker(script, settings=["num.partitions=4"])

    async def without_auto_creation(scene: Scene) -> None:
        assert (await ask(scene, creates=True))[0][0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    on_broker(without_auto_creation, settings=["auto.create.topics.enable=false"])

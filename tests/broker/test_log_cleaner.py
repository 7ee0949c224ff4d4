"""Compaction together with recreated topics, truncation, full disks, and corrupt logs."""

import asyncio
import errno
from typing import Any

import pytest
from broker_scene import Scene, Talker, batch, list_offset, on_broker, produce
from test_log_maintenance import fill, read_all

from moldau.broker.partitions import log_cleaner
from moldau.broker.partitions.log_cleaner import REST_MS
from moldau.model.ids import TopicPartition
from moldau.model.ports import Disk
from moldau.records.builder import build_batch
from moldau.storage.compaction import CompactionJob, CompactionResult, compact
from moldau.wire.messages import DeleteTopicsRequest

pytestmark = pytest.mark.proves("S5", part="the newest value of each key is kept")

EAGER: Any = {
    "cleanup_policy": "compact",
    "segment_bytes": 1024,
    "delete_retention_ms": 0,
    "min_cleanable_dirty_ratio": 0,
}
ROUNDS_S = 40  # more than two compaction checks


async def put(talker: Talker, *pairs: tuple[bytes, bytes | None]) -> None:
    for key, value in pairs:
        assert (await produce(talker, "t", build_batch([(1_700_000_000_000, key, value, ())]))).error_code == 0


async def fillers(talker: Talker, count: int) -> None:
    await put(talker, *((b"filler-%d" % (number % 3), b"%d" % number) for number in range(count)))


def test_recreated_topic_starts_without_a_cleaner_checkpoint() -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        await scene.create("t", **EAGER)
        await fillers(talker, 100)
        await asyncio.sleep(ROUNDS_S)
        await talker.ask(5, DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000))
        await scene.create("t", **EAGER)
        await put(talker, (b"a", b"old"), (b"b", b"1"), (b"b", b"2"), (b"a", None))
        for _ in range(3):
            await fillers(talker, 200)
            await asyncio.sleep(ROUNDS_S)
        found = {record.key: record.value for record in await read_all(talker, "t", 0)}
        assert (found.get(b"a"), found[b"b"]) == (None, b"2")
        assert sum(record.key == b"b" for record in await read_all(talker, "t", 0)) == 1

    on_broker(script)


def test_records_appended_after_a_truncation_are_compacted() -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        await scene.create("t", **EAGER)
        await fillers(talker, 100)
        await asyncio.sleep(ROUNDS_S)
        cleaner: Any = scene.node.broker.log_maintenance._cleaner
        partition = scene.node.broker.partitions.get("t", 0)
        cleaned_offset = cleaner._cleaned_offset(partition)
        assert cleaned_offset > 50
        partition.log.epochs.truncate_from_end(20)
        partition.log.epochs.assign(7, 20)  # as after an unclean election
        assert cleaner._cleaned_offset(partition) == 0

    on_broker(script)


def test_compaction_gaps_are_not_taken_for_losses_after_a_power_loss() -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        await scene.create("t", **EAGER)
        await fillers(talker, 100)
        cleaner: Any = scene.node.broker.log_maintenance._cleaner
        log = scene.node.broker.partitions.get("t", 0).log
        log.roll(0)
        assert log.recovery_point == 0
        assert cleaner._dirtiest() is None  # before it is on disk
        while not cleaner.rounds:
            await asyncio.sleep(0.001)
        assert log.end_offset == 100
        scene.host.power_loss()  # before the cleaner checkpoint is written
        await scene.restart()
        assert scene.node.broker.partitions.get("t", 0).log.end_offset == 100

    on_broker(script)


def test_compaction_waits_for_disk_space_and_leaves_it_to_appends() -> None:
    async def script(scene: Scene) -> None:
        talker, disk = await scene.connect(), scene.host.disk
        await scene.create("t", cleanup_policy="compact", segment_bytes=65536, min_cleanable_dirty_ratio=0)
        await scene.create("small", cleanup_policy="compact", segment_bytes=2048, min_cleanable_dirty_ratio=0.5)
        await fill(scene, talker, "t", 300, size=2000, keys=100)
        await fill(scene, talker, "small", 40, keys=2)
        disk.capacity_bytes = disk.used_bytes + 100_000
        await asyncio.sleep(ROUNDS_S)
        assert not [path for path in disk.contents() if path.endswith(".cleaned")]
        assert disk.capacity_bytes - disk.used_bytes > 90_000
        assert len(await read_all(talker, "t", 0)) == 300
        assert len(await read_all(talker, "small", 0)) < 20  # it was compacted in its turn
        assert (await produce(talker, "small", batch(b"x" * 1000, key=b"0"))).error_code == 0
        disk.capacity_bytes = 1 << 40
        await asyncio.sleep(REST_MS / 1000 + ROUNDS_S)
        assert len(await read_all(await scene.connect(), "t", 0)) < 150

    on_broker(script)


def test_cleaned_segment_is_rewritten_later_when_its_sync_fails(caplog: pytest.LogCaptureFixture) -> None:
    async def script(scene: Scene) -> None:
        scene.simulation.disks_fail = True
        await scene.create("t", **EAGER)
        talker = await scene.connect()
        await fillers(talker, 100)
        scene.host.disk.fail("fsync", errno.EIO, path=".cleaned")
        await asyncio.sleep(ROUNDS_S)
        assert "t-0: compaction postponed: sync failed" in caplog.text
        assert "Please report" not in caplog.text
        assert len(await read_all(talker, "t", 0)) == 100
        await asyncio.sleep(REST_MS / 1000)
        assert len(await read_all(await scene.connect(), "t", 0)) < 50

    on_broker(script)


def fail_for_one_log(disk: Disk, job: CompactionJob) -> CompactionResult:
    """Compact all logs but one."""
    if job.folder == "/data/t-0":
        raise ValueError("unexpected bug")
    return compact(disk, job)


def test_compaction_bug_in_one_log_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_cleaner, "compact", fail_for_one_log)

    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        await scene.create("t", **EAGER)
        await scene.create("other", cleanup_policy="compact", segment_bytes=2048, min_cleanable_dirty_ratio=0.5)
        await fillers(talker, 100)
        await fill(scene, talker, "other", 40, keys=2)
        await asyncio.sleep(5)  # unsynced data is not compacted
        cleaner: Any = scene.node.broker.log_maintenance
        with pytest.raises(ValueError, match="unexpected bug"):
            await cleaner._cleaner.clean_dirtiest(1 << 20)
        assert await cleaner._cleaner.clean_dirtiest(1 << 20) is not None
        assert await cleaner._cleaner.clean_dirtiest(1 << 20) is None
        assert len(await read_all(talker, "t", 0)) == 100
        assert len(await read_all(talker, "other", 0)) < 20

    on_broker(script)


@pytest.mark.proves("S4", part="by age")
def test_corrupt_log_does_not_stop_retention_of_other_logs() -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        for topic in ("a", "b"):
            await scene.create(topic, segment_bytes=2048, retention_ms=300_000)
            await fill(scene, talker, topic, 20)
        await scene.host.stop()
        await scene.restart()
        scene.simulation.disks_fail = True
        scene.host.disk.flip_bit("/data/a-0/00000000000000000000.log", 16)
        for _ in range(2):
            await asyncio.sleep(660)
            talker = await scene.connect()
            await fill(scene, talker, "b", 20)
        assert (await list_offset(talker, "b", -2)).offset == 40
        assert (await list_offset(talker, "a", -2)).offset == 0

    on_broker(script, settings=["log.retention.check.interval.ms=60000", "moldau.log.scrub.interval.ms=-1"])


def test_partition_deleted_before_it_is_opened_is_skipped() -> None:
    async def script(scene: Scene) -> None:
        partitions: Any = scene.node.broker.partitions
        partitions._unopened[TopicPartition("gone", 0)] = "no room"
        await partitions.open_rest()
        del partitions._unopened[TopicPartition("gone", 0)]

    on_broker(script)

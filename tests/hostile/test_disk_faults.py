"""A whole node on a full or failing disk: clients get errors, and everything else keeps working."""

import asyncio
import errno
from typing import Any

import pytest
from broker_scene import Scene, batch, fetch, list_offset, on_broker, produce, produce_request

from moldau.model.errors import ErrorCode
from moldau.model.ports import Ports
from moldau.node.configuration import load_configuration
from moldau.node.node import Node
from moldau.records.header import write_checksum
from moldau.records.record import iterate_batches
from moldau.wire.messages import (
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeLogDirsRequest,
    IncrementalAlterConfigsRequest,
    MetadataRequest,
)
from moldau_dev.simulation.simulation import Simulation

CLEAN_SHUTDOWN = "/data/.kafka_cleanshutdown"
MARGIN_BYTES = 4096


def fill(scene: Scene, left_bytes: int = 0) -> None:
    scene.simulation.disks_fail = True
    scene.host.disk.capacity_bytes = scene.host.disk.used_bytes + left_bytes


def make_room(scene: Scene) -> None:
    scene.host.disk.capacity_bytes = 1 << 40


def new_topic(name: str, partitions: int = 1) -> CreateTopicsRequest:
    topic = CreateTopicsRequest.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    return CreateTopicsRequest(topics=[topic], timeout_ms=1000)


def base_offsets(response: Any) -> list[int]:
    return [header.base_offset for header, _ in iterate_batches(response.records)]


@pytest.mark.proves("S8")
def test_full_disk_rejects_produce_and_serves_fetch_until_there_is_space() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        assert (await produce(talker, "t", batch(b"before"))).base_offset == 0
        fill(scene, 100)
        for _ in range(3):
            rejected = await produce(talker, "t", batch(b"x" * 1000))
            assert rejected.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert "No space left" in rejected.error_message
        assert base_offsets(await fetch(talker, "t", 0)) == [0]
        make_room(scene)
        assert (await produce(talker, "t", batch(b"after"))).base_offset == 1
        scene.host.crash()
        await scene.restart()
        talker = await scene.connect()
        assert base_offsets(await fetch(talker, "t", 0)) == [0, 1]

    on_broker(script)


def test_full_disk_serves_delete_records_and_retention_and_recovers() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t", segment_bytes=500_000, retention_ms=-1)
        talker = await scene.connect()
        for _ in range(20):
            await produce(talker, "t", batch(b"x" * 100_000))
        fill(scene)
        assert (await produce(talker, "t", batch(b"y" * 1000))).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        await asyncio.sleep(5)
        assert not scene.node.broker.log_dirs.are_all_online
        gone = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=20)
        topic = DeleteRecordsRequest.DeleteRecordsTopic(name="t", partitions=[gone])
        deleted = await talker.ask(2, DeleteRecordsRequest(topics=[topic], timeout_ms=1000))
        assert deleted.topics[0].partitions[0].low_watermark == 20
        await asyncio.sleep(10)
        assert scene.node.broker.log_dirs.are_all_online
        assert (await produce(talker, "t", batch(b"after"))).base_offset == 20

    on_broker(script, settings=["log.retention.check.interval.ms=1000"])


def test_failed_write_is_rejected_and_leaves_no_gap() -> None:
    async def script(scene: Scene) -> None:
        scene.simulation.disks_fail = True
        await scene.create("t")
        talker = await scene.connect()
        await produce(talker, "t", batch(b"a"))
        scene.host.disk.fail("pwrite", errno.EIO, path="/data/t-0")
        assert (await produce(talker, "t", batch(b"b"))).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await produce(talker, "t", batch(b"c"))).base_offset == 1
        assert base_offsets(await fetch(talker, "t", 0)) == [0, 1]

    on_broker(script)


def test_idempotent_producer_may_retry_a_failed_write() -> None:
    async def script(scene: Scene) -> None:
        scene.simulation.disks_fail = True
        await scene.create("t")
        talker = await scene.connect()
        first, second = (batch(b"v", producer_id=5, producer_epoch=0, base_sequence=sequence) for sequence in range(2))
        await produce(talker, "t", first)
        scene.host.disk.fail("pwrite", errno.ENOSPC, path="/data/t-0")
        assert (await produce(talker, "t", bytearray(second))).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await produce(talker, "t", bytearray(second))).base_offset == 1
        assert (await produce(talker, "t", bytearray(second))).base_offset == 1

    on_broker(script)


def test_failed_read_returns_an_error_and_the_next_may_succeed() -> None:
    async def script(scene: Scene) -> None:
        scene.simulation.disks_fail = True
        await scene.create("t", segment_bytes=1024)
        talker = await scene.connect()
        for _ in range(5):
            await produce(talker, "t", batch(b"x" * 400))
        scene.host.disk.fail("pread", errno.EIO, path="/data/t-0")
        response = await list_offset(talker, "t", 1)
        assert response.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await list_offset(talker, "t", 1)).offset == 0
        assert base_offsets(await fetch(talker, "t", 0))[0] == 0

    on_broker(script)


def test_failed_disk_usage_query_is_not_reported_as_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(scene: Scene) -> None:
        scene.simulation.disks_fail = True

        def fail(path: str) -> tuple[int, int]:  # noqa: ARG001
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(scene.node.broker, "disk_space", fail)
        talker = await scene.connect()
        response = await talker.ask(4, DescribeLogDirsRequest(topics=None))
        assert response.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert scene.node.broker.bugs == 0

    on_broker(script)


def test_topics_are_rejected_while_the_metadata_log_cannot_be_written() -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        fill(scene)
        rejected = (await talker.ask(7, new_topic("t"))).topics[0]
        assert rejected.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert "t" not in scene.node.broker.image.topics
        make_room(scene)
        async with asyncio.timeout(10):
            while (await talker.ask(7, new_topic("t"))).topics[0].error_code != ErrorCode.NONE:
                await asyncio.sleep(0.1)
        assert (await produce(talker, "t", batch(b"a"))).base_offset == 0
        scene.host.crash()
        await scene.restart()
        assert set(scene.node.broker.image.topics) == {"t"}

    on_broker(script)


@pytest.mark.parametrize("operation", ["make_directory", "create", "pwrite", "rename"])
def test_partition_without_disk_space_is_offline_until_there_is_some(operation: str) -> None:
    async def script(scene: Scene) -> None:
        scene.simulation.disks_fail = True
        talker = await scene.connect()
        scene.host.disk.fail(operation, errno.ENOSPC, path="/data/t-1", times=3)
        created = (await talker.ask(7, new_topic("t", partitions=3))).topics[0]
        assert created.error_code == ErrorCode.NONE  # the metadata has it
        assert sum(scene.host.disk.fired.values()) == 1
        rejected = await produce(talker, "t", batch(b"a"), partition=1)
        assert rejected.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await produce(talker, "t", batch(b"a"), partition=2)).base_offset == 0
        await asyncio.sleep(10)
        assert (await produce(talker, "t", batch(b"a"), partition=1)).base_offset == 0
        scene.host.crash()
        await scene.restart()
        talker = await scene.connect()
        for partition in (1, 2):
            assert base_offsets(await fetch(talker, "t", 0, partition=partition)) == [0]

    on_broker(script)


def test_log_that_fails_to_open_at_the_start_is_opened_later() -> None:
    async def script(scene: Scene) -> None:
        scene.simulation.disks_fail = True
        await scene.create("t")
        await scene.create("u")
        talker = await scene.connect()
        for value in (b"a", b"b"):
            await produce(talker, "t", batch(value))
        gone = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=1)
        topic = DeleteRecordsRequest.DeleteRecordsTopic(name="t", partitions=[gone])
        await talker.ask(2, DeleteRecordsRequest(topics=[topic], timeout_ms=1000))
        scene.host.crash()
        torn = scene.host.disk.mount().open("/data/t-0/00000000000000000000.log")
        torn.pwrite(b"half a batch, by the look of it", torn.size())
        torn.close()
        scene.host.disk.fail("open", errno.EMFILE, path="/data/t-0/0", times=3)
        await scene.restart()
        talker = await scene.connect()
        assert (await produce(talker, "t", batch(b"c"))).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await produce(talker, "u", batch(b"c"))).error_code == ErrorCode.NONE
        await asyncio.sleep(10)
        assert (await produce(talker, "t", batch(b"c"))).base_offset == 2
        assert (await list_offset(talker, "t", -2)).offset == 1
        assert base_offsets(await fetch(talker, "t", 1)) == [1, 2]

    on_broker(script)


@pytest.mark.proves("S8", part="acknowledged records are kept")
def test_log_that_never_opens_does_not_block_others() -> None:
    async def script(scene: Scene) -> None:
        scene.simulation.disks_fail = True
        for topic in ("lost", "t"):
            await scene.create(topic)
        talker = await scene.connect()
        await produce(talker, "t", batch(b"a"))
        scene.host.crash()
        scene.host.disk.fail("open", errno.EIO, path="/data/lost-0/0", times=1_000_000)
        scene.host.disk.fail("open", errno.EMFILE, path="/data/t-0/0", times=3)
        await scene.restart()
        await asyncio.sleep(10)
        talker = await scene.connect()
        assert (await produce(talker, "t", batch(b"b"))).base_offset == 1
        assert (await produce(talker, "lost", batch(b"b"))).error_code == ErrorCode.KAFKA_STORAGE_ERROR

    on_broker(script)


@pytest.mark.proves("T1", part="delete")
@pytest.mark.parametrize("is_removed", [True, False])
def test_topic_is_deleted_though_its_folder_cannot_be_renamed(is_removed: bool) -> None:
    async def script(scene: Scene) -> None:
        scene.simulation.disks_fail = True
        await scene.create("t")
        talker = await scene.connect()
        await produce(talker, "t", batch(b"a"))
        scene.host.disk.fail("rename", errno.ENOSPC, path="/data/t-0")
        if not is_removed:
            scene.host.disk.fail("remove_directory", errno.EIO, path="/data/t-0")
        await talker.ask(5, DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000))
        left = [path for path in scene.host.disk.contents() if path.startswith("/data/t-0")]
        assert bool(left) is not is_removed
        await scene.create("t")
        assert (await produce(talker, "t", batch(b"b"))).base_offset == 0
        await scene.restart_after_crash()
        talker = await scene.connect()
        assert base_offsets(await fetch(talker, "t", 0)) == [0]

    on_broker(script)


@pytest.mark.proves("T1", part="delete")
def test_node_starts_though_a_stray_log_cannot_be_set_aside() -> None:
    async def script(scene: Scene) -> None:
        scene.simulation.disks_fail = True
        await scene.create("t")
        scene.host.crash()
        scene.host.disk.mount().make_directory("/data/stray-0")
        scene.host.disk.fail("rename", errno.ENOSPC, path="/data/stray-0")
        await scene.restart()
        talker = await scene.connect()
        assert (await produce(talker, "t", batch(b"a"))).base_offset == 0
        await scene.create("stray")
        assert (await produce(talker, "stray", batch(b"a"))).base_offset == 0

    on_broker(script)


@pytest.mark.parametrize(
    ("path", "version", "request_of"), [("/data/t-0", 9, "produce"), ("/data/__cluster", 7, "new")]
)
def test_failed_sync_stops_the_node_without_a_clean_shutdown(path: str, version: int, request_of: str) -> None:
    failures: list[str] = []
    request = produce_request("t", batch(b"a")) if request_of == "produce" else new_topic("other")

    async def play(simulation: Simulation) -> None:
        simulation.disks_fail = True
        host = simulation.host("broker")

        async def program(ports: Ports) -> Node:
            overrides = ["listeners=PLAINTEXT://broker:9092", "moldau.metrics.listener=", "log.dirs=/data"]
            node = Node(
                load_configuration(overrides=overrides), ports, on_failure=lambda what, _: failures.append(what)
            )
            await node.start()
            return node

        scene = Scene(simulation, host, await host.start(program))
        await scene.create("t", flush_messages=1)
        talker = await scene.connect()
        host.disk.fail("fsync", errno.EIO, path=path)
        pending = talker.begin(version, request)
        while not failures:
            await asyncio.sleep(0.1)
        assert not pending.done() or _codes(pending.result()) != [0]
        host.crash()
        await asyncio.gather(pending, return_exceptions=True)
        assert not host.disk.mount().exists(CLEAN_SHUTDOWN)

    Simulation(seed=1).run(play)
    assert len(failures) == 1


def _codes(response: Any) -> list[int]:
    if hasattr(response, "topics"):
        return [topic.error_code for topic in response.topics]
    return [each.error_code for topic in response.responses for each in topic.partition_responses]


@pytest.mark.proves("S8", part="acknowledged records are kept")
@pytest.mark.parametrize("character", [11, 21, 30, 42])
def test_changed_character_in_partition_metadata_loses_no_records(character: int) -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        await produce(talker, "t", batch(b"a"))
        path = "/data/t-0/partition.metadata"
        intact = scene.host.disk.contents()[path]
        scene.host.crash()
        scene.host.disk.flip_bit(path, character, 0)
        await scene.restart()
        talker = await scene.connect()
        assert base_offsets(await fetch(talker, "t", 0)) == [0]
        assert (await produce(talker, "t", batch(b"b"))).base_offset == 1
        assert scene.host.disk.contents()[path] == intact

    on_broker(script)


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE])
def test_folder_is_synced_again_after_descriptors_ran_out(error: int) -> None:
    async def script(scene: Scene) -> None:
        scene.simulation.disks_fail = True
        await scene.create("t", flush_messages=1)
        talker = await scene.connect()
        scene.host.disk.fail("sync_directory", error, path="/data/t-0")
        assert (await produce(talker, "t", batch(b"a"))).base_offset == 0
        assert scene.host.disk.fired["failed sync_directory"] == 1
        scene.host.power_loss()
        await scene.restart()
        assert base_offsets(await fetch(await scene.connect(), "t", 0)) == [0]

    on_broker(script)


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE])
def test_topic_is_created_although_the_log_dir_cannot_be_synced_yet(error: int) -> None:
    async def script(scene: Scene) -> None:
        scene.simulation.disks_fail = True
        scene.host.disk.fail("sync_directory", error, path="/data", times=2)
        await scene.create("t")
        talker = await scene.connect()
        assert (await produce(talker, "t", batch(b"a"))).base_offset == 0
        assert scene.host.disk.fired["failed sync_directory"] >= 1
        await asyncio.sleep(3)  # synced by now
        scene.host.power_loss()
        await scene.restart()
        assert scene.node.broker.partitions.find("t", 0) is not None

    on_broker(script)


@pytest.mark.proves("S5", part="a failed swap changes nothing")
def test_log_whose_segments_could_not_be_replaced_is_opened_again() -> None:
    async def script(scene: Scene) -> None:
        scene.simulation.disks_fail = True
        await scene.create("t", cleanup_policy="compact", segment_bytes=1024, min_cleanable_dirty_ratio=0.01)
        talker = await scene.connect()
        for _ in range(10):
            await produce(talker, "t", batch(b"x" * 400, key=b"k"))
        scene.host.disk.fail("rename", errno.EIO, path="/data/t-0/", skip=3, times=2)
        async with asyncio.timeout(60):
            while scene.host.disk.fired["failed rename"] < 2:
                await asyncio.sleep(0.1)
        await asyncio.sleep(3)
        assert scene.node.broker.partitions.find("t", 0) is not None
        assert (await produce(await scene.connect(), "t", batch(b"new", key=b"k"))).base_offset == 10
        assert base_offsets(await fetch(await scene.connect(), "t", 10)) == [10]

    on_broker(script)


def test_unreadable_records_block_compaction_of_their_own_log_only() -> None:
    async def script(scene: Scene) -> None:
        scene.simulation.disks_fail = True  # allows logged errors
        small: dict[str, Any] = {"segment_bytes": 1024, "min_cleanable_dirty_ratio": 0.01, "file_delete_delay_ms": 0}
        await scene.create("poisoned", moldau_record_validation="header", **small)
        await scene.create("good", cleanup_policy="compact", **small)
        talker = await scene.connect()
        poison = batch(b"x" * 400, key=b"k")
        poison[70:] = b"\xff" * (len(poison) - 70)
        write_checksum(poison, 0, len(poison))
        for _ in range(10):
            assert (await produce(talker, "poisoned", bytearray(poison))).error_code == ErrorCode.NONE
        await talker.ask(1, _set(("poisoned", "cleanup.policy", "compact")))
        for _ in range(10):
            assert (await produce(talker, "good", batch(b"x" * 400, key=b"k"))).error_code == ErrorCode.NONE
        await asyncio.sleep(120)
        assert base_offsets(await fetch(talker, "good", 0))[0] > 0
        assert base_offsets(await fetch(talker, "poisoned", 0))[0] == 0
        assert (await talker.ask(9, MetadataRequest(topics=None))).topics

    on_broker(script, settings=["log.cleaner.backoff.ms=1000"])


def _set(*changes: tuple[str, str, str]) -> IncrementalAlterConfigsRequest:
    resource, config = (
        IncrementalAlterConfigsRequest.AlterConfigsResource,
        IncrementalAlterConfigsRequest.AlterableConfig,
    )
    return IncrementalAlterConfigsRequest(
        resources=[
            resource(resource_type=2, resource_name=topic, configs=[config(name=name, config_operation=0, value=value)])
            for topic, name, value in changes
        ]
    )

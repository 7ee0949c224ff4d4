"""A log dir: its lock, its contents, and its clean shutdown marker."""

import errno

import pytest

from moldau.model.ids import DirectoryId, NodeId, TopicId, TopicPartition
from moldau.storage.checkpoints import RECOVERY_POINTS
from moldau.storage.log_dir import (
    INCARNATION,
    CorruptMetaProperties,
    LogDir,
    LogDirLocked,
    MetaProperties,
    parse_partition,
)
from moldau.testing.disk import Crashed, SimulatedDisk, When

ID = TopicId(bytes(range(16)))
OTHER_ID = TopicId(bytes(16 * [7]))
IDENTITY = MetaProperties("MkU3OEVBNTcwNTJENDM2Qg", NodeId(3), DirectoryId(bytes(range(1, 17))))


def test_log_dir_is_locked_by_one_node_at_a_time() -> None:
    disk = SimulatedDisk().mount()
    folder = LogDir.open(disk, "/data")
    with pytest.raises(LogDirLocked, match="another node"):
        LogDir.open(disk, "/data")
    folder.close()
    LogDir.open(disk, "/data").close()


def test_meta_properties_are_kafkas_and_read_back() -> None:
    disk = SimulatedDisk().mount()
    folder = LogDir.open(disk, "/data")
    assert folder.identity() is None
    folder.format(IDENTITY)
    assert folder.identity() == IDENTITY
    lines = disk.read("/data/meta.properties").decode().splitlines()
    assert lines == [
        "#",
        "cluster.id=MkU3OEVBNTcwNTJENDM2Qg",
        "directory.id=AQIDBAUGBwgJCgsMDQ4PEA",
        "node.id=3",
        "version=1",
    ]


@pytest.mark.parametrize(
    "damage", [b"version=0\nbroker.id=1\n", b"version=1\n", b"version=1\ncluster.id=a\nnode.id=x\n"]
)
def test_corrupt_meta_properties_are_rejected(damage: bytes) -> None:
    with pytest.raises(CorruptMetaProperties):
        MetaProperties.decode(damage)


def test_meta_properties_of_kafka_are_read() -> None:
    text = (
        b"#\n#Mon Jan 05 10:00:00 UTC 2026\ncluster.id=abc\ndirectory.id=AQIDBAUGBwgJCgsMDQ4PEA\nnode.id=1\nversion=1\n"
    )
    assert MetaProperties.decode(text).cluster_id == "abc"


def test_clean_shutdown_marker_is_consumed_once() -> None:
    disk = SimulatedDisk().mount()
    folder = LogDir.open(disk, "/data")
    assert folder.take_clean_shutdown() is None
    folder.mark_clean_shutdown(broker_epoch=17)
    assert disk.read("/data/.kafka_cleanshutdown") == b'{"version":"0","broker_epoch":"17"}'
    assert folder.take_clean_shutdown() == 17
    assert folder.take_clean_shutdown() is None


def test_empty_marker_of_an_older_broker_is_a_clean_shutdown() -> None:
    disk = SimulatedDisk().mount()
    folder = LogDir.open(disk, "/data")
    disk.open("/data/.kafka_cleanshutdown", create=True)
    assert folder.take_clean_shutdown() == -1


@pytest.mark.proves("H3")
def test_power_loss_is_remembered_until_a_start_completes() -> None:
    platter = SimulatedDisk()
    folder = LogDir.open(platter.mount(), "/data")
    folder.record_boot()
    assert not folder.has_lost_power()
    platter.power_loss()
    folder = LogDir.open(platter.mount(), "/data")
    assert folder.has_lost_power()
    assert folder.has_lost_power()  # also for a process that was killed during its start
    folder.record_boot()
    assert not folder.has_lost_power()


@pytest.mark.proves("S6", "H3")
def test_failed_sync_counts_as_a_power_loss_until_a_start_completes() -> None:
    platter = SimulatedDisk()
    folder = LogDir.open(platter.mount(), "/data")
    folder.record_boot()
    folder.record_sync_failure()
    platter.crash()
    folder = LogDir.open(platter.mount(), "/data")
    assert folder.has_sync_failure()
    assert folder.has_lost_power()
    folder.record_boot()
    assert not folder.has_sync_failure()
    assert not folder.has_lost_power()


def test_failed_sync_on_a_full_disk_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    platter = SimulatedDisk()
    folder = LogDir.open(platter.mount(), "/data")
    platter.fail("pwrite", errno.ENOSPC, path=".boot-id")
    folder.record_sync_failure()
    assert not folder.has_sync_failure()
    assert "recording a failed sync failed" in caplog.text


def test_epoch_of_a_killed_process_is_known_to_the_next() -> None:
    folder = LogDir.open(SimulatedDisk().mount(), "/data")
    assert folder.last_broker_epoch() == -1
    folder.record_broker_epoch(17)
    assert folder.last_broker_epoch() == 17
    folder.record_broker_epoch(18)
    assert folder.last_broker_epoch() == 18


def test_incarnation_without_epoch_is_continued_by_next_owner() -> None:
    disk = SimulatedDisk().mount()
    folder = LogDir.open(disk, "/data")
    assert folder.pending_incarnation() is None
    folder.record_incarnation(ID)
    assert folder.pending_incarnation() == ID
    folder.record_broker_epoch(17)
    assert folder.pending_incarnation() is None
    folder.record_incarnation(ID)
    disk.open(f"/data/{INCARNATION}").truncate(5)
    assert folder.pending_incarnation() is None


def test_partitions_are_found_with_their_topic_ids() -> None:
    disk = SimulatedDisk().mount()
    folder = LogDir.open(disk, "/data")
    folder.create_partition(TopicPartition("a-b.c", 3), ID)
    folder.create_partition(TopicPartition("other", 0), OTHER_ID)
    disk.make_directory("/data/no-id-7")
    disk.make_directory("/data/something")
    assert disk.read("/data/a-b.c-3/partition.metadata") == b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw"
    assert [(str(found.partition), found.topic_id) for found in folder.partitions()] == [
        ("a-b.c-3", ID),
        ("no-id-7", None),
        ("other-0", OTHER_ID),
    ]


@pytest.mark.proves("S8", part="acknowledged records are kept")
def test_log_with_a_changed_character_in_its_metadata_is_no_stray() -> None:
    disk = SimulatedDisk().mount()
    folder = LogDir.open(disk, "/data")
    path = folder.create_partition(TopicPartition("t", 0), ID) + "/partition.metadata"
    data = disk.read(path)
    for position in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[position] ^= 1 << bit
            file = disk.open(path)
            file.pwrite(changed, 0)
            assert folder.strays({"t": ID}) == [], bytes(changed)
    folder.write_topic_id("/data/t-0", ID)
    assert len(folder.strays({"t": OTHER_ID})) == 1


def test_stray_logs_are_partitions_of_deleted_or_recreated_topics() -> None:
    disk = SimulatedDisk().mount()
    folder = LogDir.open(disk, "/data")
    for topic in ("kept", "deleted", "again", "__cluster_metadata"):
        folder.create_partition(TopicPartition(topic, 0), ID)
    strays = folder.strays({"kept": ID, "again": OTHER_ID}, kept=("__cluster_metadata",))
    assert [found.partition.topic for found in strays] == ["again", "deleted"]
    folder.mark_stray(strays[0].partition, "u1")
    assert disk.exists("/data/again-0.u1-stray")


def test_deleted_partition_is_renamed_and_found_again() -> None:
    disk = SimulatedDisk().mount()
    folder = LogDir.open(disk, "/data")
    long = TopicPartition("x" * 249, 10)
    for partition in (TopicPartition("t", 0), long):
        folder.create_partition(partition, ID)
        folder.mark_deleted(partition, "5ba1d8b2" * 4)
    names = [name for name in disk.list("/data") if name.endswith("-delete")]
    assert names[0] == f"t-0.{'5ba1d8b2' * 4}-delete"
    assert len(names[1]) == 255
    assert folder.partitions() == []
    assert folder.deleted_directories() == [f"/data/{name}" for name in names]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a-0", TopicPartition("a", 0)),
        ("a-b-12", TopicPartition("a-b", 12)),
        ("a", None),
        ("-1", None),
        ("a-", None),
        ("a-x", None),
        ("a-0.77-delete", None),
        ("a-0.77-stray", None),
        ("a-0.77-future", None),
        ("a-²", None),
    ],
)
def test_folder_names(name: str, expected: TopicPartition | None) -> None:
    assert parse_partition(name) == expected


@pytest.mark.proves("S8")
@pytest.mark.parametrize("loses_power", [False, True])
@pytest.mark.parametrize("when", list(When))
def test_checkpoint_replacement_is_atomic(when: When, loses_power: bool) -> None:
    partition = TopicPartition("t", 0)
    for point in range(1, 20):
        disk = SimulatedDisk(seed=point)
        disk.prepare_folder("/data")
        folder = LogDir.open(disk.mount(), "/data")
        folder.write_checkpoint(RECOVERY_POINTS, {partition: 100})
        disk.crash_at(disk.points + point, when, loses_power=loses_power)
        try:
            folder.write_checkpoint(RECOVERY_POINTS, {partition: 200})
        except Crashed:
            pass
        else:
            assert point > 4
            return
        again = LogDir.open(disk.mount(), "/data")
        assert again.read_checkpoint(RECOVERY_POINTS)[partition] in (100, 200)


def test_corrupt_checkpoint_counts_as_empty() -> None:
    disk = SimulatedDisk().mount()
    folder = LogDir.open(disk, "/data")
    disk.open(f"/data/{RECOVERY_POINTS}", create=True).pwrite(b"rubbish", 0)
    assert folder.read_checkpoint(RECOVERY_POINTS) == {}

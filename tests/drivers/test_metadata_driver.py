"""The metadata log on a disk: acknowledged records survive any stop, and snapshots replace the log."""

import asyncio
import errno
import json
import struct

import pytest
from metadata_host import FOLDER, VOTER, MetadataHost, create, register

from moldau.broker.configs.broker_settings import MetadataLogSettings
from moldau.broker.drivers.metadata import MetadataDriver
from moldau.broker.drivers.metadata_batches import read_records
from moldau.machines.metadata import MetadataDelta, MetadataImage, TopicReference
from moldau.model.errors import NotController, StorageFailed
from moldau.records.control import ControlType, iterate_control_records
from moldau.records.record import iterate_batches
from moldau.storage.files import SyncFailed
from moldau.testing.disk_faults import Crashed, When
from moldau.wire import messages
from moldau.wire.data_records import decode_data

OFTEN = MetadataLogSettings(metadata_log_max_record_bytes_between_snapshots=2000)
NEVER = MetadataLogSettings(metadata_log_max_snapshot_interval_ms=0)


async def fill(driver: MetadataDriver, *names: str) -> MetadataImage:
    if not driver.image.is_active(1):
        await register(driver)
    for name in names:
        assert not (await create(driver, name)).error
    return driver.image


async def look(driver: MetadataDriver) -> MetadataImage:
    return driver.image


def same(one: MetadataImage, other: MetadataImage) -> bool:
    """Compare images without their epoch, which every start increments."""
    return (one.topics, one.topics_by_id, one.configs, one.brokers, one.features, one.next_producer_id) == (
        other.topics,
        other.topics_by_id,
        other.configs,
        other.brokers,
        other.features,
        other.next_producer_id,
    )


def names(count: int) -> list[str]:
    return [f"topic-{number}" for number in range(count)]


# Restart


@pytest.mark.proves("H6")
@pytest.mark.parametrize("closes", [True, False])
def test_acknowledged_records_survive_a_stop_and_a_crash(closes: bool) -> None:
    host = MetadataHost()
    before = host.run(lambda driver: fill(driver, "a", "b"), closes=closes)
    if not closes:
        host.disk.crash()
    after = host.run(look)
    assert same(before, after)
    assert (before.epoch, after.epoch) == (1, 2)
    assert not host.failures


@pytest.mark.proves("H6")
def test_acknowledged_records_survive_a_power_loss() -> None:
    for seed in range(20):
        host = MetadataHost(seed=seed)

        async def act(driver: MetadataDriver) -> MetadataImage:
            image = await fill(driver, "a", "b")
            asyncio.ensure_future(create(driver, "c"))  # noqa: RUF006 - perhaps written, not acknowledged
            await asyncio.sleep(0.0001)
            return image

        before = host.run(act, closes=False)
        host.disk.power_loss()
        after = host.run(look)
        assert {"a", "b"} <= after.topics.keys() <= {"a", "b", "c"}
        assert before.topics.items() <= after.topics.items()


def test_restarted_node_continues_its_log() -> None:
    host = MetadataHost()

    async def again(driver: MetadataDriver) -> MetadataImage:
        old = driver.image.brokers[1].epoch
        assert await register(driver, b"j") > old
        await driver.write(lambda machine: machine.decide_delete_topics([TopicReference("a")]))
        return await fill(driver, "c")

    host.run(lambda driver: fill(driver, "a", "b"))
    before = host.run(again)
    assert list(before.topics) == ["b", "c"]
    assert same(before, host.run(look))


# Files


def controls(host: MetadataHost) -> list[list[ControlType]]:
    data = host.disk.mount().read(f"{FOLDER}/{0:020d}.log")
    return [
        [kind for kind, _ in iterate_control_records(batch)]
        for header, batch in iterate_batches(data)
        if header.is_control
    ]


def test_log_starts_with_the_voters_and_every_start_with_an_epoch() -> None:
    host = MetadataHost()
    host.run(look)
    host.run(look)
    assert controls(host) == [
        [ControlType.LEADER_CHANGE, ControlType.KRAFT_VERSION, ControlType.KRAFT_VOTERS],
        [ControlType.LEADER_CHANGE],
    ]
    data = host.disk.mount().read(f"{FOLDER}/{0:020d}.log")
    (header, batch), (_, second), (third, _) = iterate_batches(data)
    leader, version, voters = (record.value or b"" for _, record in iterate_control_records(batch))
    assert decode_data("LeaderChangeMessage", 0, leader).leader_id == 1
    assert decode_data("KRaftVersionRecord", 0, version).k_raft_version == 1
    (voter,) = decode_data("VotersRecord", 0, voters).voters
    assert (voter.voter_id, voter.voter_directory_id, voter.endpoints[0].port) == (1, VOTER.directory_id, 9093)
    (offset, record), *_ = read_records(second)
    assert (offset, record) == (3, messages.FeatureLevelRecord(name="metadata.version", feature_level=25))
    assert (header.partition_leader_epoch, third.partition_leader_epoch) == (1, 2)


def test_folder_holds_the_files_that_kafka_expects() -> None:
    host = MetadataHost()
    host.run(look)
    disk = host.disk.mount()
    assert disk.read(f"{FOLDER}/partition.metadata") == b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ"
    assert json.loads(disk.read(f"{FOLDER}/quorum-state")) == {
        "leaderId": 1,
        "leaderEpoch": 1,
        "votedId": 1,
        "votedDirectoryId": "ZGRkZGRkZGRkZGRkZGRkZA",
        "data_version": 1,
    }


def test_epoch_is_never_reused_whatever_the_quorum_state() -> None:
    host = MetadataHost()
    for content in (b"", b"{}", b"[1]", b'{"data_version":9}', b'{"leaderEpoch":"x"', None):
        host.run(look)
        disk = host.disk.mount()
        if content is None:
            disk.unlink(f"{FOLDER}/quorum-state")
        else:
            file = disk.open(f"{FOLDER}/quorum-state")
            file.truncate(0)
            file.pwrite(content, 0)
            file.close()
    assert host.run(look).epoch == 7


def test_epoch_with_a_vote_but_no_records_is_skipped() -> None:
    host = MetadataHost()
    disk = host.disk.mount()
    disk.make_directory(FOLDER)
    file = disk.open(f"{FOLDER}/quorum-state", create=True)
    file.pwrite(b'{"clusterId":"","leaderId":-1,"leaderEpoch":41,"votedId":1,"appliedOffset":0,"data_version":0}', 0)
    file.close()
    assert host.run(look).epoch == 42


# Responses and images


@pytest.mark.proves("H6")
def test_nothing_is_acknowledged_or_published_before_it_is_synced() -> None:
    host = MetadataHost()

    async def act(driver: MetadataDriver) -> None:
        await register(driver)
        synced: list[int] = []
        host.disk.on_io = lambda point: synced.append(1) if point.operation == "fsync" else None
        creation = asyncio.ensure_future(create(driver, "a"))
        while not creation.done():
            assert synced or "a" not in driver.image.topics
            await asyncio.sleep(0.0001)
        assert synced
        assert "a" in driver.image.topics

    host.run(act)


def test_image_is_published_before_the_writer_gets_its_response() -> None:
    host = MetadataHost()
    seen: list[tuple[MetadataImage, MetadataDelta]] = []

    async def act(driver: MetadataDriver) -> None:
        driver.subscribe(lambda image, delta: seen.append((image, delta)))
        ((image, delta),) = seen  # the current image at once
        assert delta.has_new_features
        await register(driver)
        topic = await create(driver, "a", 2)
        image, delta = seen[-1]
        assert image is driver.image
        assert delta.created == {topic.topic_id}
        assert delta.changed == {topic.topic_id: {0, 1}}
        assert [each.offset for each, _ in seen] == sorted(each.offset for each, _ in seen)
        assert image.offset + 1 == driver.high_watermark

    host.run(act)


def test_concurrent_writes_share_a_sync() -> None:
    host = MetadataHost()

    async def act(driver: MetadataDriver) -> None:
        await register(driver)
        synced: list[str] = []
        host.disk.on_io = lambda point: synced.append(point.path) if point.operation == "fsync" else None
        await asyncio.gather(*(create(driver, name) for name in names(100)))
        assert len(synced) <= 3
        assert len(driver.image.topics) == 100

    host.run(act)


def test_closed_driver_rejects_writes() -> None:
    host = MetadataHost()

    async def act(driver: MetadataDriver) -> None:
        await register(driver)
        late = asyncio.ensure_future(create(driver, "late"))
        await asyncio.sleep(0)
        await driver.close()
        assert not (await late).error  # decided before, so it is written and acknowledged
        with pytest.raises(NotController):
            await create(driver, "later")

    host.run(act, closes=False)
    assert "late" in host.run(look).topics


# Faults


def test_failed_sync_ends_the_node_and_acknowledges_nothing() -> None:
    host = MetadataHost()

    async def act(driver: MetadataDriver) -> None:
        await register(driver)
        host.disk.fail("fsync", errno.EIO, path="__cluster_metadata")
        with pytest.raises(NotController):
            await create(driver, "a")
        assert "a" not in driver.image.topics
        (failure,) = host.failures
        assert isinstance(failure, SyncFailed)
        with pytest.raises(NotController):
            await create(driver, "b")

    host.run(act, closes=False)


def test_full_disk_rejects_a_write_and_accepts_the_next_with_free_space() -> None:
    host = MetadataHost()

    async def act(driver: MetadataDriver) -> MetadataImage:
        await fill(driver, "a")
        host.disk.fail("pwrite", errno.ENOSPC, path=".log")
        with pytest.raises(StorageFailed):
            await create(driver, "b")
        assert "a" in driver.image.topics  # committed state is still readable
        while True:
            try:
                return await fill(driver, "c")
            except NotController:
                await asyncio.sleep(0.01)

    before = host.run(act)
    assert list(before.topics) == ["a", "c"]
    assert same(before, host.run(look))
    assert not host.failures


# Snapshots


@pytest.mark.proves("H6")
def test_restart_from_snapshot_and_log_leads_to_the_same_image() -> None:
    host = MetadataHost(OFTEN)
    before = host.run(lambda driver: fill(driver, *names(60)))
    assert len(host.names(".checkpoint")) == 2
    after = host.run(look)
    assert same(before, after)
    assert len(after.topics) == 60


def test_log_below_the_snapshots_is_deleted() -> None:
    host = MetadataHost(OFTEN)

    async def settle(driver: MetadataDriver) -> None:
        await fill(driver, *names(100))
        await asyncio.sleep(1)

    host.run(settle)
    oldest = int(host.names(".checkpoint")[0][:20])
    segments = [int(name[:20]) for name in host.names(".log")]
    assert oldest > 0
    assert segments[0] > 0
    assert all(following > oldest for following in segments[1:])
    assert not host.names(".deleted")
    assert sum(host.disk.mount().size(f"{FOLDER}/{name}") for name in host.names(".log")) < 12_000


def test_snapshot_is_taken_after_the_maximum_interval() -> None:
    host = MetadataHost(MetadataLogSettings(metadata_log_max_snapshot_interval_ms=60_000))

    async def act(driver: MetadataDriver) -> None:
        await fill(driver, "a")
        await asyncio.sleep(59)
        assert not host.names(".checkpoint")
        await asyncio.sleep(2)
        (first,) = host.names(".checkpoint")
        await asyncio.sleep(1000)
        assert host.names(".checkpoint") == [first]  # no new records, no new snapshot
        await fill(driver, "b")
        await asyncio.sleep(61)
        assert len(host.names(".checkpoint")) == 2

    host.run(act)


def test_records_replayed_at_the_start_count_towards_the_next_snapshot() -> None:
    host = MetadataHost(NEVER)
    host.run(lambda driver: fill(driver, *names(30)))
    assert not host.names(".checkpoint")
    host.settings = OFTEN
    host.run(look)
    assert len(host.names(".checkpoint")) == 1


def test_snapshot_is_in_kafkas_format() -> None:
    host = MetadataHost(NEVER)

    async def act(driver: MetadataDriver) -> int:
        await fill(driver, *names(100))
        await driver.take_snapshot()
        return driver.high_watermark

    end_offset = host.run(act)
    assert host.names(".checkpoint") == [f"{end_offset:020d}-{1:010d}.checkpoint"]
    data = host.disk.mount().read(f"{FOLDER}/{host.names('.checkpoint')[0]}")
    batches = list(iterate_batches(data))
    first = [kind for kind, _ in iterate_control_records(batches[0][1])]
    assert first == [ControlType.SNAPSHOT_HEADER, ControlType.KRAFT_VERSION, ControlType.KRAFT_VOTERS]
    assert [kind for kind, _ in iterate_control_records(batches[-1][1])] == [ControlType.SNAPSHOT_FOOTER]
    next_offset = 0
    for header, _ in batches:
        assert (header.base_offset, header.partition_leader_epoch, header.producer_id) == (next_offset, 1, -1)
        next_offset = header.next_offset
    assert len(batches) > 3  # written in small batches


def corrupt(host: MetadataHost, name: str, position: int | None = None) -> None:
    """Flip a bit, or truncate the file to half."""
    disk = host.disk.mount()
    file = disk.open(f"{FOLDER}/{name}")
    if position is None:
        file.truncate(file.size() // 2)
    else:
        (byte,) = struct.unpack("B", file.pread(1, position))
        file.pwrite(bytes([byte ^ 1]), position)
    file.close()


@pytest.mark.parametrize("position", [None, 100, 400])
def test_corrupt_snapshot_is_skipped_for_the_previous_one(position: int | None) -> None:
    host = MetadataHost(OFTEN)
    before = host.run(lambda driver: fill(driver, *names(60)))
    corrupt(host, host.names(".checkpoint")[-1], position)
    assert same(before, host.run(look))


def test_corrupt_first_snapshot_is_skipped_for_the_whole_log() -> None:
    host = MetadataHost(NEVER)

    async def act(driver: MetadataDriver) -> MetadataImage:
        await fill(driver, *names(5))
        await driver.take_snapshot()
        return await fill(driver, "last")

    before = host.run(act)
    (name,) = host.names(".checkpoint")
    corrupt(host, name)
    assert same(before, host.run(look))


def test_node_does_not_start_with_incomplete_metadata() -> None:
    host = MetadataHost(OFTEN)
    host.run(lambda driver: fill(driver, *names(60)))
    for name in host.names(".checkpoint"):
        corrupt(host, name)
    with pytest.raises(StorageFailed, match="no snapshot covers"):
        host.run(look)


def test_snapshot_replaces_a_lost_log() -> None:
    host = MetadataHost(NEVER)

    async def act(driver: MetadataDriver) -> MetadataImage:
        image = await fill(driver, *names(5))
        await driver.take_snapshot()
        return image

    before = host.run(act)
    disk = host.disk.mount()
    for name in host.names(".log"):
        disk.unlink(f"{FOLDER}/{name}")
    after = host.run(lambda driver: fill(driver, "new"))
    assert len(after.topics) == 6
    assert before.topics.items() <= after.topics.items()
    assert same(after, host.run(look))


def test_full_disk_prevents_a_snapshot_and_keeps_the_log() -> None:
    host = MetadataHost(NEVER)

    async def act(driver: MetadataDriver) -> MetadataImage:
        await fill(driver, "a")
        host.disk.fail("pwrite", errno.ENOSPC, path=".checkpoint")
        await driver.take_snapshot()
        return await fill(driver, "b")

    before = host.run(act)
    assert not host.names(".checkpoint")
    assert same(before, host.run(look))
    assert not host.names(".part")
    assert not host.failures


def test_failed_sync_of_a_snapshot_ends_the_node_and_keeps_the_log() -> None:
    host = MetadataHost(NEVER)

    async def act(driver: MetadataDriver) -> MetadataImage:
        image = await fill(driver, "a")
        host.disk.fail("fsync", errno.EIO, path=".checkpoint")
        await driver.take_snapshot()
        return image

    before = host.run(act, closes=False)
    assert isinstance(host.failures[0], SyncFailed)
    assert not host.names(".checkpoint")
    assert same(before, host.run(look))


@pytest.mark.proves("H6")
@pytest.mark.parametrize("loses_power", [False, True])
def test_crash_at_any_point_with_snapshots_loses_nothing_acknowledged(loses_power: bool) -> None:
    script = names(30)

    def run(host: MetadataHost, acknowledged: list[str]) -> None:
        async def act(driver: MetadataDriver) -> None:
            for name in script:
                await fill(driver, name)
                acknowledged.append(name)

        host.run(act)

    whole = MetadataHost(OFTEN)
    run(whole, [])
    points = whole.disk.points
    assert points > 100
    crashes = 0
    for number in range(1, points, 7):
        for when in (When.BEFORE, When.TORN, When.AFTER):
            host = MetadataHost(OFTEN, seed=number)
            host.disk.crash_at(number, when, loses_power=loses_power)
            acknowledged: list[str] = []
            try:
                run(host, acknowledged)
            except Crashed:
                crashes += 1
            after = host.run(look)
            assert set(acknowledged) <= after.topics.keys()
            assert host.run(lambda driver: fill(driver, "after")).topics.keys() - {"after"} == after.topics.keys()
    assert crashes > 50

"""The metadata log of a follower: validation, truncation, epochs, images."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from metadata_host import DATA, FOLDER

from moldau.broker.configs.broker_settings import MetadataLogSettings
from moldau.broker.drivers.image_follower import ImageFollower
from moldau.broker.drivers.image_publisher import ImagePublisher
from moldau.broker.drivers.metadata_batches import build_records
from moldau.broker.drivers.metadata_log import MetadataLog
from moldau.broker.drivers.metadata_snapshots import SnapshotId
from moldau.broker.drivers.quorum_records import leader_change, voter_set
from moldau.machines.metadata.image import MetadataImage
from moldau.machines.raft import OffsetAndEpoch, Voter, VoterSet
from moldau.model.errors import CorruptMessage, NotController
from moldau.model.ids import NodeId
from moldau.records.control import build_control_batch
from moldau.testing.clock import SimulatedClock
from moldau.testing.disk import SimulatedDisk
from moldau.wire.messages import BeginTransactionRecord, EndTransactionRecord, FeatureLevelRecord, NoOpRecord
from moldau_dev.simulation.executor import SimulatedExecutor
from moldau_dev.simulation.loop import SimulatedLoop

pytestmark = pytest.mark.proves("H6")

VOTERS = VoterSet.of([Voter(NodeId(1), b"1" * 16), Voter(NodeId(2), b"2" * 16)])


def on_log(
    *scripts: Callable[[MetadataLog], Coroutine[Any, Any, None]],
    between: Callable[[SimulatedDisk], None] | None = None,
) -> SimulatedDisk:
    """Run each script on the log as the previous one left it, or as a fault `between` them left it."""
    disk = SimulatedDisk(0)
    disk.prepare_folder(DATA)
    for number, script in enumerate(scripts):
        if number and between is not None:
            between(disk)
        loop = SimulatedLoop()
        mounted = disk.mount()
        failures: list[BaseException] = []

        async def play(
            script: Any = script, loop: SimulatedLoop = loop, mounted: Any = mounted, failures: Any = failures
        ) -> None:
            clock = SimulatedClock(loop.now_ms)
            executor = SimulatedExecutor(loop, random.Random(0), mounted)
            settings = MetadataLogSettings()
            is_hurt = between is not None
            log = MetadataLog(DATA, mounted, executor, clock, settings, failures.append, has_lost_power=is_hurt)
            log.open()
            await script(log)
            await log.close()
            assert not failures

        loop.run(play())
    return disk


def batch(base_offset: int, epoch: int, count: int = 1) -> bytes:
    return bytes(build_records([NoOpRecord()] * count, timestamp_ms=1, base_offset=base_offset, leader_epoch=epoch))


def voters_batch(base_offset: int, epoch: int) -> bytes:
    controls = [leader_change(1, VOTERS, (1, 2)), voter_set(VOTERS)]
    return bytes(build_control_batch(controls, timestamp_ms=1, base_offset=base_offset, leader_epoch=epoch))


def test_fetched_batches_are_stored_with_offsets_epochs_and_voters() -> None:
    async def follow(log: MetadataLog) -> None:
        assert log.append_as_follower(batch(0, 1, 2) + voters_batch(2, 2) + batch(4, 2), 2)[0].offset == 3
        assert (log.end_offset, log.last_epoch) == (5, 2)
        await log.synced(5)
        assert log.synced_offset == 5

    async def restart(log: MetadataLog) -> None:
        assert (log.start_offset, log.end_offset, log.last_epoch) == (0, 5, 2)
        (found,) = await log.voter_sets()
        assert (found.offset, found.voters) == (3, VOTERS)
        assert log.end_of_epoch(0) == OffsetAndEpoch(0, 0)
        assert log.end_of_epoch(1) == OffsetAndEpoch(2, 1)
        assert log.end_of_epoch(2) == log.end_of_epoch(9) == OffsetAndEpoch(5, 2)

    on_log(follow, restart)


@pytest.mark.parametrize(
    ("batches", "words"),
    [
        (batch(1, 1), "the leader of epoch 3 must send offset 0"),
        (batch(0, 4), "of epoch 4, but the leader of epoch 3"),
        (batch(0, 1)[:-1] + b"\xff", "checksum"),
        (batch(0, 1) + batch(3, 1), "must send offset 1"),
    ],
)
def test_invalid_batches_are_rejected(batches: bytes, words: str) -> None:
    async def follow(log: MetadataLog) -> None:
        with pytest.raises(CorruptMessage, match=words):
            log.append_as_follower(batches, 3)
        assert log.end_offset == 0

    on_log(follow)


def test_batch_cut_off_by_the_response_is_completed_by_the_next() -> None:
    async def follow(log: MetadataLog) -> None:
        log.append_as_follower(batch(0, 1) + batch(1, 1)[:-5], 1)
        assert log.end_offset == 1

    on_log(follow)


def test_follower_log_rejects_decisions() -> None:
    async def follow(log: MetadataLog) -> None:
        with pytest.raises(NotController):
            log.append([[NoOpRecord()]])
        log.leading_epoch = 1
        log.append([[NoOpRecord()]])
        assert (log.end_offset, log.last_epoch) == (1, 1)

    on_log(follow)


def test_diverging_tail_is_truncated() -> None:
    async def follow(log: MetadataLog) -> None:
        log.append_as_follower(batch(0, 1, 3) + batch(3, 2) + voters_batch(4, 3), 3)
        log.truncate_to(4)
        assert (log.end_offset, log.last_epoch) == (4, 2)
        assert log.synced_offset <= 4
        log.append_as_follower(batch(4, 5), 5)
        await log.synced(5)

    async def restart(log: MetadataLog) -> None:
        assert await log.voter_sets() == []
        assert (log.end_offset, log.last_epoch) == (5, 5)
        assert log.end_of_epoch(4) == OffsetAndEpoch(4, 2)

    on_log(follow, restart)


def test_committed_records_are_never_truncated() -> None:
    async def follow(log: MetadataLog) -> None:
        log.append_as_follower(batch(0, 1, 3) + batch(3, 1), 1)
        log.commit(4)
        with pytest.raises(AssertionError, match="below the high watermark"):
            log.truncate_to(3)
        assert log.end_offset == 4

    on_log(follow)


def test_sync_started_before_a_truncation_does_not_cover_later_records() -> None:
    async def follow(log: MetadataLog) -> None:
        synced: list[int] = []
        log.set_listeners(appended=lambda _: None, synced=synced.append)
        log.append_as_follower(batch(0, 1), 1)
        await log.synced(1)
        log.append_as_follower(batch(1, 1, 5), 1)  # its sync starts with the next event loop iteration
        waiting = log._syncing
        assert waiting is not None
        await asyncio.sleep(0)
        log.truncate_to(1)
        log.append_as_follower(batch(1, 2), 2)
        await log.synced(2)
        assert synced == [1, 2]

    on_log(follow)


def test_log_restarts_behind_a_snapshot_with_its_epoch() -> None:
    async def follow(log: MetadataLog) -> None:
        log.append_as_follower(batch(0, 1, 3), 1)
        await log.snapshots.write(SnapshotId(10, 4), MetadataImage(), VOTERS, 1)
        await log.restart_at(SnapshotId(10, 4))
        assert (log.start_offset, log.end_offset, log.last_epoch) == (10, 10, 4)
        assert log.end_of_epoch(3) == OffsetAndEpoch(10, 4)
        log.append_as_follower(batch(10, 6), 6)

    async def restart(log: MetadataLog) -> None:
        assert (log.start_offset, log.end_offset, log.last_epoch) == (10, 11, 6)
        assert log.earliest_snapshot == log.latest_snapshot == OffsetAndEpoch(10, 4)
        assert log.end_of_epoch(4) == log.end_of_epoch(5) == OffsetAndEpoch(10, 4)
        (found,) = await log.voter_sets()
        assert (found.offset, found.voters) == (9, VOTERS)

    disk = on_log(follow, restart)
    assert f"{0:020d}.log" not in disk.mount().list(FOLDER)


@pytest.mark.parametrize("left_bytes", [0, 10, 80])
def test_power_loss_below_the_newest_snapshot_loses_nothing_above_it(left_bytes: int) -> None:
    async def follow(log: MetadataLog) -> None:
        log.append_as_follower(batch(0, 1, 3), 1)
        log._open_log.roll(1)
        log.append_as_follower(batch(3, 2, 2), 2)
        await log.snapshots.write(SnapshotId(3, 1), MetadataImage(), VOTERS, 1)

    def tear(disk: SimulatedDisk) -> None:
        disk.mount().open(f"{FOLDER}/{0:020d}.log").truncate(left_bytes)

    async def restart(log: MetadataLog) -> None:
        assert (log.end_offset, log.last_epoch) == (5, 2)
        assert log.latest_snapshot == OffsetAndEpoch(3, 1)
        log.append_as_follower(batch(5, 3), 3)

    on_log(follow, restart, between=tear)


def test_epochs_missing_from_the_checkpoint_are_read_from_the_log() -> None:
    async def follow(log: MetadataLog) -> None:
        log.append_as_follower(batch(0, 1, 3), 1)
        log.append_as_follower(batch(3, 2, 2), 2)
        log._open_log.roll(1)
        await log.snapshots.write(SnapshotId(5, 2), MetadataImage(), VOTERS, 1)

    def as_before_the_last_sync(disk: SimulatedDisk) -> None:
        file = disk.mount().open(f"{FOLDER}/leader-epoch-checkpoint")
        file.truncate(0)
        file.pwrite(b"0\n1\n1 0\n", 0)

    async def restart(log: MetadataLog) -> None:
        assert (log.end_offset, log.last_epoch) == (5, 2)
        assert log.end_of_epoch(1) == OffsetAndEpoch(3, 1)

    on_log(follow, restart, between=as_before_the_last_sync)


# Images


def feature(base_offset: int, level: int) -> bytes:
    record = FeatureLevelRecord(name="some.feature", feature_level=level)
    return bytes(build_records([record], timestamp_ms=1, base_offset=base_offset, leader_epoch=1))


def test_images_follow_the_high_watermark() -> None:
    async def follow(log: MetadataLog) -> None:
        publisher, failures = ImagePublisher(), list[BaseException]()
        follower = ImageFollower(log, publisher, SimulatedClock(lambda: 0.0), failures.append)
        log.watch(lambda _: follower.wake())
        follower.start()
        log.append_as_follower(feature(0, 1) + feature(1, 2) + feature(2, 3), 1)
        for committed, level in ((1, 1), (2, 2), (3, 3)):
            log.commit(committed)
            await asyncio.sleep(0.1)
            assert (publisher.end_offset, publisher.image.features) == (committed, {"some.feature": level})
        follower.stop()
        assert not failures

    on_log(follow)


def test_image_of_an_open_metadata_transaction_is_not_published() -> None:
    async def follow(log: MetadataLog) -> None:
        publisher, failures = ImagePublisher(), list[BaseException]()
        follower = ImageFollower(log, publisher, SimulatedClock(lambda: 0.0), failures.append)
        log.watch(lambda _: follower.wake())
        follower.start()
        begin = build_records([BeginTransactionRecord()], timestamp_ms=1, base_offset=0, leader_epoch=1)
        end = build_records([EndTransactionRecord()], timestamp_ms=1, base_offset=2, leader_epoch=1)
        log.append_as_follower(bytes(begin) + feature(1, 1) + bytes(end), 1)
        log.commit(2)
        await asyncio.sleep(0.1)
        assert publisher.end_offset == 0
        log.commit(3)
        await asyncio.sleep(0.1)
        assert (publisher.end_offset, publisher.image.features) == (3, {"some.feature": 1})
        follower.stop()
        assert not failures

    on_log(follow)

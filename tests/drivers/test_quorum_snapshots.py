"""Lagging controllers: a snapshot from the leader replaces a log that was deleted."""

import asyncio
import errno
from contextlib import suppress

import pytest
from quorum_scene import Quorum, on_quorum

from moldau.broker.drivers.metadata_snapshots import SnapshotId
from moldau.model.errors import ErrorCode
from moldau.testing.disk_faults import Crashed, When
from moldau.wire import messages as m

pytestmark = pytest.mark.proves("H6")

OFTEN = ["metadata.log.max.record.bytes.between.snapshots=600"]


async def fill(quorum: Quorum, first: int, count: int) -> None:
    for value in range(first, first + count):
        await quorum.write(value)


async def leave_behind(quorum: Quorum, first: int = 0) -> int:
    """Kill a follower and write until its next records are deleted; return the follower."""
    leader = await quorum.leader()
    behind = next(each for each in quorum.nodes if each != leader)
    await fill(quorum, first, 3)
    await quorum.seen_by_all(first + 2)
    end_offset = quorum.metadata(behind).end_offset
    quorum.kill(behind)
    await fill(quorum, first + 3, 40)
    log = quorum.metadata(leader)._log
    assert log.start_offset > end_offset
    return behind


@pytest.mark.parametrize("seed", range(3))
def test_controller_far_behind_recovers_from_a_snapshot(seed: int) -> None:
    async def script(quorum: Quorum) -> None:
        behind = await leave_behind(quorum)
        old = quorum.names(behind, ".checkpoint")
        await quorum.start(behind)
        await quorum.seen_by_all(42)
        assert quorum.names(behind, ".checkpoint") != old
        async with asyncio.timeout(10):
            while quorum.names(behind, ".part"):  # of its own next snapshot, perhaps
                await asyncio.sleep(0.01)
        image, leaders = quorum.metadata(behind).image, quorum.metadata(quorum.leaders[0]).image
        assert (image.features, image.configs) == (leaders.features, leaders.configs)
        assert quorum.metadata(behind).quorum.machine.voters.ids == (1, 2, 3)
        await quorum.write(1000)
        await quorum.seen_by_all(1000)
        quorum.kill(behind)
        await quorum.start(behind)
        await quorum.seen_by_all(1000)

    on_quorum(script, settings=OFTEN, seed=seed)


def test_controller_recovered_from_a_snapshot_can_lead() -> None:
    async def script(quorum: Quorum) -> None:
        behind = await leave_behind(quorum)
        await quorum.start(behind)
        await quorum.seen_by_all(42)
        for _ in range(10):
            leader = await quorum.leader()
            if leader == behind:
                break
            await quorum.stop(leader)
            await quorum.leader(unlike=leader)
            await quorum.start(leader)
            await quorum.seen_by_all(42)
        assert await quorum.leader() == behind
        await quorum.write(1000)
        await quorum.seen_by_all(1000)

    on_quorum(script, settings=OFTEN)


def test_controller_that_joins_late_starts_with_a_snapshot() -> None:
    async def script(quorum: Quorum) -> None:
        await fill(quorum, 0, 50)
        quorum.format(4)
        await quorum.start(4)
        await quorum.until(lambda: quorum.value(4) == "49")
        assert quorum.names(4, ".checkpoint")
        assert quorum.metadata(4).quorum.machine.voters.ids == (1, 2, 3)

    on_quorum(script, settings=[*OFTEN, "controller.quorum.bootstrap.servers=n1:9093,n2:9093,n3:9093"])


@pytest.mark.parametrize("loses_power", [False, True], ids=["crash", "power loss"])
def test_crash_at_any_point_of_a_snapshot_download_only_delays_it(loses_power: bool) -> None:
    async def script(quorum: Quorum) -> None:
        crashes = [await recovers_despite_a_crash(quorum, number, loses_power) for number in range(1, 60, 6)]
        assert sum(crashes) > 5

    on_quorum(script, settings=OFTEN)


async def recovers_despite_a_crash(quorum: Quorum, number: int, loses_power: bool) -> bool:
    """Return whether the node crashed at this I/O point."""
    behind = await leave_behind(quorum, number * 1000)
    newest = number * 1000 + 42
    host = quorum.host(behind)
    host.disk.crash_at(host.disk.points + number, list(When)[number % 3], loses_power=loses_power)
    with suppress(Crashed):
        await quorum.start(behind)
    await quorum.until(lambda: not host.is_up or quorum.value(behind) == str(newest))
    is_dead = not host.is_up
    host.disk.forget_plans()
    if is_dead:
        quorum.nodes.pop(behind, None)
        await quorum.start(behind)
    await quorum.seen_by_all(newest)
    return is_dead


def test_snapshot_download_completes_once_a_full_disk_has_space() -> None:
    async def script(quorum: Quorum) -> None:
        quorum.simulation.disks_fail = True
        behind = await leave_behind(quorum)
        quorum.host(behind).disk.fail("pwrite", errno.ENOSPC, path=".checkpoint.part", times=5)
        await quorum.start(behind)
        await quorum.seen_by_all(42)
        assert not quorum.failures

    on_quorum(script, settings=OFTEN)


NO_ROOM = [("pwrite", "leader-epoch", 1), ("create", f"{55:020d}.log", 0), ("create", f"{55:020d}.timeindex", 0)]


@pytest.mark.proves("H6", part="snapshots")
@pytest.mark.parametrize(("operation", "path", "skip"), NO_ROOM)
def test_log_restart_behind_a_snapshot_completes_once_there_is_space(operation: str, path: str, skip: int) -> None:
    async def script(quorum: Quorum) -> None:
        quorum.simulation.disks_fail = True
        behind = await leave_behind(quorum)
        quorum.host(behind).disk.fail(operation, errno.ENOSPC, path=path, skip=skip, times=5)
        await quorum.start(behind)
        assert await quorum.seen_by_all(42) > 0.4
        await quorum.write(1000)
        await quorum.seen_by_all(1000)
        assert not quorum.failures

    on_quorum(script, settings=OFTEN)


@pytest.mark.proves("H6", part="snapshots")
@pytest.mark.parametrize(("operation", "path", "skip"), NO_ROOM)
def test_node_whose_log_restart_waits_for_space_can_stop_and_restart(operation: str, path: str, skip: int) -> None:
    async def script(quorum: Quorum) -> None:
        quorum.simulation.disks_fail = True
        behind = await leave_behind(quorum)
        disk = quorum.host(behind).disk
        disk.fail(operation, errno.ENOSPC, path=path, skip=skip, times=10_000_000)
        await quorum.start(behind)
        await asyncio.sleep(1.0)
        assert quorum.value(behind) != "42"
        async with asyncio.timeout(10.0):
            await quorum.stop(behind)
        disk.forget_plans()
        await quorum.start(behind)
        await quorum.write(1000)
        await quorum.seen_by_all(1000)
        assert not quorum.failures

    on_quorum(script, settings=OFTEN)


def test_snapshot_chunks_are_bounded_and_served_by_the_leader_only() -> None:
    async def script(quorum: Quorum) -> None:
        await fill(quorum, 0, 60)
        leader = await quorum.leader()
        name = quorum.names(leader, ".checkpoint")[-1]
        snapshot = SnapshotId(int(name[:20]), int(name[21:31]))
        whole = quorum.host(leader).disk.mount().read(f"/data/__cluster_metadata-0/{name}")

        async def piece(node_id: int, offset: int, position: int, epoch: int) -> object:
            wire = m.FetchSnapshotRequest
            partition = wire.PartitionSnapshot(
                partition=0,
                current_leader_epoch=epoch,
                snapshot_id=wire.SnapshotId(end_offset=offset, epoch=snapshot.epoch),
                position=position,
            )
            topic = wire.TopicSnapshot(name="__cluster_metadata", partitions=[partition])
            response = await quorum.ask(node_id, wire(topics=[topic], max_bytes=100, replica_id=-1))
            found = response.topics[0].partitions[0]
            return ErrorCode(found.error_code), found.size, bytes(found.unaligned_records)

        epoch = quorum.metadata(leader).epoch
        assert await piece(leader, snapshot.offset, 50, epoch) == (ErrorCode.NONE, len(whole), whole[50:150])
        assert await piece(leader, 1, 0, epoch) == (ErrorCode.SNAPSHOT_NOT_FOUND, 0, b"")
        assert await piece(leader, snapshot.offset, len(whole), epoch) == (ErrorCode.POSITION_OUT_OF_RANGE, 0, b"")
        assert (await piece(leader, snapshot.offset, 0, epoch - 1))[0] is ErrorCode.FENCED_LEADER_EPOCH  # type: ignore[index]
        other = next(each for each in quorum.nodes if each != leader)
        assert (await piece(other, snapshot.offset, 0, epoch))[0] is ErrorCode.NOT_LEADER_OR_FOLLOWER  # type: ignore[index]

    on_quorum(script, settings=OFTEN)

"""Controllers with full or corrupt disks, crashes at any point, and invalid requests."""

import asyncio
import errno
import re
from contextlib import suppress
from typing import Any

import pytest
from quorum_scene import LOG, PORT, Quorum, directory, on_quorum, write_to

from moldau.model.errors import ErrorCode, StorageFailed
from moldau.testing.disk_faults import Crashed, When
from moldau.wire import messages as m

pytestmark = pytest.mark.proves("H6")

TOPIC_ID = bytes(15) + b"\x01"


async def follower(quorum: Quorum) -> int:
    leader = await quorum.leader()
    return next(each for each in quorum.nodes if each != leader)


# Full disks


def test_follower_with_a_full_disk_catches_up_once_there_is_space() -> None:
    async def script(quorum: Quorum) -> None:
        quorum.simulation.disks_fail = True
        full = await follower(quorum)
        await quorum.write(1)
        await quorum.seen_by_all(1)
        quorum.host(full).disk.fail("pwrite", errno.ENOSPC, path=".log", times=6)
        await quorum.write(2)
        assert quorum.value(full) == "1"
        await quorum.seen_by_all(2)
        assert not quorum.failures

    on_quorum(script)


def test_failed_appends_are_retried_once_a_second_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def script(quorum: Quorum) -> None:
        caplog.set_level("INFO", logger="moldau.broker.drivers.quorum")
        quorum.simulation.disks_fail = True
        full = await follower(quorum)
        await quorum.write(1)
        await quorum.seen_by_all(1)
        quorum.host(full).disk.fail("pwrite", errno.EIO, path=".log", times=10_000_000)
        await quorum.write(2)
        await asyncio.sleep(60)
        quorum.host(full).disk.forget_plans()
        await quorum.seen_by_all(2)
        lines = [each.getMessage() for each in caplog.records if each.name == "moldau.broker.drivers.quorum"]
        failed, succeeded = lines
        assert failed.startswith("Cannot append records from the metadata leader, will retry: ")
        attempts = re.fullmatch("The metadata log is written again, after (\\d+) failures", succeeded)
        assert attempts is not None
        assert 50 < int(attempts[1]) < 70
        assert not quorum.failures

    on_quorum(script)


def test_voter_with_a_full_disk_does_not_vote_until_there_is_space() -> None:
    async def script(quorum: Quorum) -> None:
        quorum.simulation.disks_fail = True
        leader = await quorum.leader()
        await quorum.write(1)
        others = [each for each in quorum.nodes if each != leader]
        for each in others:
            quorum.host(each).disk.fail("pwrite", errno.ENOSPC, path="quorum-state", times=6)
        quorum.kill(leader)
        began_s = quorum.simulation.now_s
        await quorum.leader(unlike=leader)
        assert quorum.simulation.now_s - began_s > 1.0
        await quorum.write(2)
        assert not quorum.failures

    on_quorum(script)


def test_leader_with_a_full_disk_rejects_writes_and_hands_over() -> None:
    async def script(quorum: Quorum) -> None:
        quorum.simulation.disks_fail = True
        leader = await quorum.leader()
        await quorum.write(1)
        quorum.host(leader).disk.fail("pwrite", errno.ENOSPC, path=".log", times=1)
        with pytest.raises(StorageFailed):
            await quorum.host(leader).run(write_to(quorum.metadata(leader), 2))
        await quorum.write(3)
        await quorum.seen_by_all(3)
        assert await quorum.leader() != leader
        assert not quorum.failures

    on_quorum(script)


def test_voter_that_cannot_write_its_vote_stops_in_bounded_time() -> None:
    async def script(quorum: Quorum) -> None:
        quorum.simulation.disks_fail = True
        leader = await quorum.leader()
        full = await follower(quorum)
        await quorum.write(1)
        quorum.host(full).disk.fail("pwrite", errno.ENOSPC, path="quorum-state", times=10_000)
        quorum.kill(leader)
        await asyncio.sleep(1.0)  # it cannot persist its vote
        async with asyncio.timeout(10.0):
            await quorum.stop(full)
        quorum.host(full).disk.forget_plans()
        await quorum.start(full)
        await quorum.write(2)

    on_quorum(script)


def test_voter_that_cannot_write_a_checkpoint_stops_in_bounded_time() -> None:
    async def script(quorum: Quorum) -> None:
        quorum.simulation.disks_fail = True
        leader = await quorum.leader()
        full = await follower(quorum)
        await quorum.write(1)
        await quorum.seen_by_all(1)
        quorum.host(full).disk.fail("pwrite", errno.ENOSPC, path="leader-epoch", times=10_000_000)
        quorum.kill(leader)
        await quorum.leader(unlike=leader)  # from here on there is an epoch to be noted in the checkpoint
        await asyncio.sleep(3.0)
        async with asyncio.timeout(10.0):
            await quorum.stop(full)
        assert not quorum.failures
        quorum.host(full).disk.forget_plans()
        await quorum.start(full)
        await quorum.write(2)
        await quorum.seen_by_all(2)

    on_quorum(script)


# Corruption


def test_leader_with_an_unreadable_log_is_replaced() -> None:
    async def script(quorum: Quorum) -> None:
        quorum.simulation.disks_fail = True
        await quorum.write(1)
        away = await follower(quorum)
        await quorum.seen_by_all(1)
        quorum.kill(away)
        await quorum.write(2)
        await quorum.write(3)
        leader = await quorum.leader()
        disk = quorum.host(leader).disk.mount()
        (name,) = quorum.names(leader, ".log")
        file = disk.open(f"{LOG}/{name}")
        at = file.size() - 3
        file.pwrite(bytes([file.pread(1, at)[0] ^ 1]), at)
        quorum.gives_up = leader
        await quorum.start(away)
        await quorum.leader(unlike=leader)
        await quorum.until(lambda: quorum.value(away) == "3")

    on_quorum(script)


# Crashes


@pytest.mark.parametrize("loses_power", [False, True], ids=["crash", "power loss"])
def test_crash_at_any_io_point_loses_nothing_acknowledged(loses_power: bool) -> None:
    async def script(quorum: Quorum) -> None:
        crashes = 0
        for number in range(1, 41):
            disk = quorum.host(number % 3 + 1).disk
            disk.crash_at(disk.points + number * 7 % 11 + 1, list(When)[number % 3], loses_power=loses_power)
            for value in range(number * 10, number * 10 + 3):
                crashes += await _write_with_revivals(quorum, value)
            disk.forget_plans()
            crashes += await _revive(quorum)
            await quorum.seen_by_all(number * 10 + 2)
        assert crashes > 15

    on_quorum(script)


async def _write_with_revivals(quorum: Quorum, value: int) -> int:
    """Write until it is acknowledged; return how many nodes died."""
    died = 0
    while True:
        died += await _revive(quorum)
        with suppress(Crashed):
            await quorum.write(value)
            return died


async def _revive(quorum: Quorum) -> int:
    dead = [each for each in quorum.nodes if not quorum.host(each).is_up]
    for each in dead:
        quorum.host(each).disk.forget_plans()
        del quorum.nodes[each]
        await quorum.start(each)
    return len(dead)


# Invalid requests


def test_fetch_beyond_the_leaders_log_does_not_count() -> None:
    async def script(quorum: Quorum) -> None:
        leader = await quorum.leader()
        await quorum.write(1)
        metadata = quorum.metadata(leader)
        await quorum.until(lambda: metadata.high_watermark == metadata.end_offset)
        described = metadata.describe()
        partition = m.FetchRequest.FetchPartition(
            partition=0, fetch_offset=10**6, current_leader_epoch=described.leadership.epoch, last_fetched_epoch=1
        )
        topic = m.FetchRequest.FetchTopic(topic_id=TOPIC_ID, partitions=[partition])
        forged = m.FetchRequest(
            session_epoch=-1, replica_state=m.FetchRequest.ReplicaState(replica_id=3), topics=[topic], max_wait_ms=0
        )
        response = await quorum.ask(leader, forged)
        partition_response = response.responses[0].partitions[0]
        assert (partition_response.error_code, partition_response.diverging_epoch.epoch) == (0, 1)
        assert metadata.describe().high_watermark <= metadata.end_offset < 10**6

    on_quorum(script)


@pytest.mark.parametrize(
    "request_of",
    [
        lambda: m.VoteRequest(topics=[]),
        lambda: m.VoteRequest(topics=[m.VoteRequest.TopicData(topic_name="t", partitions=[])]),
        lambda: m.BeginQuorumEpochRequest(topics=[]),
        lambda: m.EndQuorumEpochRequest(topics=[]),
        lambda: m.FetchSnapshotRequest(topics=[]),
        lambda: m.FetchRequest(session_epoch=-1, topics=[]),
        lambda: m.FetchRequest(
            session_epoch=-1,
            topics=[m.FetchRequest.FetchTopic(topic_id=b"x" * 16, partitions=[m.FetchRequest.FetchPartition()])],
        ),
    ],
)
def test_requests_for_other_topics_are_rejected(request_of: Any) -> None:
    async def script(quorum: Quorum) -> None:
        response = await quorum.ask(await quorum.leader(), request_of())
        assert response.error_code == ErrorCode.INVALID_REQUEST

    on_quorum(script)


@pytest.mark.parametrize(("name", "partition"), [("t", 0), ("__cluster_metadata", 1)])
@pytest.mark.parametrize("version", [0, None], ids=["first version", "newest version"])
def test_partition_outside_the_quorum_is_unknown(name: str, partition: int, version: int | None) -> None:
    describe, snapshot = m.DescribeQuorumRequest, m.FetchSnapshotRequest
    about = describe.TopicData(
        topic_name=name, partitions=[describe.PartitionData(partition_index=each) for each in (partition, 7)]
    )
    piece_of = snapshot.TopicSnapshot(name=name, partitions=[snapshot.PartitionSnapshot(partition=partition)])

    async def script(quorum: Quorum) -> None:
        leader = await quorum.leader()
        described = await quorum.ask(leader, describe(topics=[about]), version)
        (topic,) = described.topics
        assert (described.error_code, topic.topic_name) == (ErrorCode.NONE, name)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert [(each.partition_index, each.error_code) for each in topic.partitions] == [
            (partition, unknown),
            (7, unknown),
        ]
        fetched = await quorum.ask(leader, snapshot(topics=[piece_of], replica_id=-1), version)
        (found,) = fetched.topics[0].partitions
        assert (fetched.error_code, fetched.topics[0].name) == (ErrorCode.NONE, name)
        assert (found.index, found.error_code) == (partition, unknown)

    on_quorum(script)


def test_describe_quorum_without_partitions_returns_none() -> None:
    async def script(quorum: Quorum) -> None:
        response = await quorum.ask(await quorum.leader(), m.DescribeQuorumRequest(topics=[]))
        assert (response.error_code, list(response.topics)) == (ErrorCode.NONE, [])

    on_quorum(script)


def test_moved_voter_is_reached_at_its_new_address() -> None:
    async def script(quorum: Quorum) -> None:
        moving = await follower(quorum)
        await quorum.write(1)
        quorum.kill(moving)
        quorum.ports[moving] = PORT + 100
        await quorum.start(moving)

        def known(node_id: int) -> Any:
            (_, address), *_ = quorum.metadata(node_id).quorum.machine.voters.endpoints_of(moving)  # type: ignore[arg-type]
            return address.port

        await quorum.until(lambda: all(known(each) == PORT + 100 for each in quorum.nodes))
        leader = await quorum.leader()
        await quorum.stop(leader)
        await quorum.leader(unlike=leader)
        await quorum.write(2)
        await quorum.seen_by_all(2)
        assert quorum.metadata(moving).quorum.machine.voters.get(moving).directory_id == directory(moving)  # type: ignore[union-attr,arg-type]

    on_quorum(script)


def test_slow_members_are_awaited() -> None:
    async def script(quorum: Quorum) -> None:
        quorum.simulation.network.faults.delay = 0.2
        quorum.simulation.network.faults.delay_ms_max = 300.0
        for value in range(10):
            await quorum.write(value)
        quorum.simulation.network.faults.delay = 0.0
        await quorum.seen_by_all(9)
        await asyncio.sleep(1.0)

    on_quorum(script)

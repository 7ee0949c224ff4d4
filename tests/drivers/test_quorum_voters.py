"""Voter changes: added, removed and wiped controllers, and nodes of other clusters."""

import asyncio
import errno
import json
from typing import Any

import pytest
from quorum_scene import CLUSTER_ID, LOG, PORT, RESOURCE, Quorum, directory, on_quorum

from moldau.broker.drivers.quorum_state import BrokenQuorumState
from moldau.machines.metadata.configs import Alteration, ConfigChange, Operation
from moldau.machines.raft import RoleName
from moldau.model.errors import ErrorCode
from moldau.storage.log_dir import encode_id
from moldau.wire import messages as m

pytestmark = pytest.mark.proves("H6")

FOUR = ["controller.quorum.bootstrap.servers=n1:9093,n2:9093,n3:9093"]


async def describe(quorum: Quorum, node_id: int) -> Any:
    topic = m.DescribeQuorumRequest.TopicData(
        topic_name="__cluster_metadata", partitions=[m.DescribeQuorumRequest.PartitionData(partition_index=0)]
    )
    response = await quorum.ask(node_id, m.DescribeQuorumRequest(topics=[topic]))
    return response.topics[0].partitions[0]


async def add(quorum: Quorum, node_id: int, life: int = 0, **fields: Any) -> Any:
    leader = await quorum.leader()
    listener = m.AddRaftVoterRequest.Listener(name="CONTROLLER", host=f"n{node_id}", port=PORT)
    request = m.AddRaftVoterRequest(
        cluster_id=CLUSTER_ID,
        timeout_ms=10_000,
        voter_id=node_id,
        voter_directory_id=directory(node_id, life),
        listeners=[listener],
        ack_when_committed=True,
    )
    for name, value in fields.items():
        setattr(request, name, value)
    return await quorum.ask(leader, request)


async def remove(quorum: Quorum, node_id: int, life: int = 0) -> Any:
    leader = await quorum.leader()
    request = m.RemoveRaftVoterRequest(
        cluster_id=CLUSTER_ID, voter_id=node_id, voter_directory_id=directory(node_id, life)
    )
    return await quorum.ask(leader, request)


def voters_known_to(quorum: Quorum, node_id: int) -> tuple[int, ...]:
    return quorum.metadata(node_id).quorum.machine.voters.ids


def test_controller_is_added_once_caught_up_and_then_counts() -> None:
    async def script(quorum: Quorum) -> None:
        await quorum.write(1)
        quorum.format(4)
        await quorum.start(4)
        await quorum.until(lambda: quorum.value(4) == "1")
        leader = await quorum.leader()
        assert [each.replica_id for each in (await describe(quorum, leader)).observers] == [4]
        response = await add(quorum, 4)
        assert (response.error_code, response.error_message) == (0, None)
        described = await describe(quorum, leader)
        assert [each.replica_id for each in described.current_voters] == [1, 2, 3, 4]
        assert not described.observers
        await quorum.until(lambda: all(voters_known_to(quorum, each) == (1, 2, 3, 4) for each in quorum.nodes))
        quorum.kill(*[each for each in quorum.nodes if each != 4][:1])
        await quorum.write(2)
        await quorum.seen_by_all(2)

    on_quorum(script, settings=FOUR)


def test_unreachable_controller_cannot_be_added() -> None:
    async def script(quorum: Quorum) -> None:
        await quorum.write(1)
        response = await add(quorum, 4, timeout_ms=1_000)
        assert response.error_code == ErrorCode.REQUEST_TIMED_OUT
        response = await add(quorum, 2, life=1)
        assert response.error_code == ErrorCode.DUPLICATE_VOTER
        assert "remove it first" in response.error_message
        await quorum.write(2)

    on_quorum(script, settings=FOUR)


def test_removed_follower_no_longer_counts() -> None:
    async def script(quorum: Quorum) -> None:
        await quorum.write(1)
        leader = await quorum.leader()
        gone = next(each for each in quorum.nodes if each != leader)
        assert (await remove(quorum, gone)).error_code == 0
        await quorum.until(lambda: all(gone not in voters_known_to(quorum, each) for each in quorum.nodes))
        assert quorum.metadata(gone).quorum.machine.role is RoleName.OBSERVER
        await quorum.write(2)
        await quorum.seen_by_all(2)
        quorum.kill(gone)
        await quorum.write(3)
        assert (await remove(quorum, gone)).error_code == ErrorCode.VOTER_NOT_FOUND

    on_quorum(script)


@pytest.mark.proves("H6", part="voters change")
def test_delayed_voter_record_is_appended_after_pending_decisions() -> None:
    async def script(quorum: Quorum) -> None:
        quorum.simulation.disks_fail = True
        await quorum.write(1)
        leader = await quorum.leader()
        gone = next(each for each in quorum.nodes if each != leader)
        metadata = quorum.metadata(leader)
        alteration = Alteration(RESOURCE, [ConfigChange("log.cleaner.threads", Operation.SET, "2")])
        append_voters = metadata.quorum._append_voters

        def decide_and_append(effect: Any) -> None:
            """The second time, decide something in the same event loop iteration."""
            if metadata.quorum._waiting_for_disk is not None:
                metadata._driver.submit(lambda machine: machine.decide_incremental_alter_configs([alteration]))
            append_voters(effect)

        metadata.quorum._append_voters = decide_and_append  # type: ignore[method-assign]
        quorum.host(leader).disk.fail("pwrite", errno.ENOSPC, path=".log", times=1)
        assert (await remove(quorum, gone)).error_code == ErrorCode.NONE
        await quorum.until(lambda: quorum.value(leader) == "2")
        assert not quorum.failures

    on_quorum(script)


def test_removed_leader_completes_the_change_and_hands_over() -> None:
    async def script(quorum: Quorum) -> None:
        await quorum.write(1)
        old = await quorum.leader()
        assert (await remove(quorum, old)).error_code == 0
        new = await quorum.leader(unlike=old)
        assert voters_known_to(quorum, new) == tuple(sorted({1, 2, 3} - {old}))
        await quorum.write(2)
        await quorum.seen_by_all(2)

    on_quorum(script)


def test_quorum_grows_from_one_to_three_and_shrinks_again() -> None:
    async def script(quorum: Quorum) -> None:
        for node_id in (1, 2, 3):
            await quorum.stop(node_id)
            quorum.host(node_id).disk.mount().remove_directory("/data")
            quorum.format(node_id, voters=[1] if node_id == 1 else None)
        await quorum.start(1)
        assert quorum.leaders == [1], "the only voter leads as soon as it serves"
        await quorum.write(1)
        for node_id in (2, 3):
            await quorum.start(node_id)
            assert (await add(quorum, node_id)).error_code == 0
        await quorum.write(2)
        quorum.kill(1)
        await quorum.leader(unlike=1)
        await quorum.write(3)
        await quorum.start(1)
        await quorum.seen_by_all(3)
        for node_id in (1, 2):
            assert (await remove(quorum, node_id)).error_code == 0
        assert await quorum.leader() == 3
        await quorum.stop(1)
        await quorum.stop(2)
        await quorum.write(4)

    on_quorum(script)


def test_wiped_voter_does_not_count_until_it_is_added() -> None:
    async def script(quorum: Quorum) -> None:
        await quorum.write(1)
        leader = await quorum.leader()
        wiped = next(each for each in quorum.nodes if each != leader)
        await quorum.stop(wiped)
        quorum.host(wiped).disk.mount().remove_directory("/data")
        quorum.format(wiped, life=1)
        await quorum.start(wiped)
        await quorum.until(lambda: quorum.value(wiped) == "1")
        machine = quorum.metadata(wiped).quorum.machine
        assert machine.role is RoleName.OBSERVER
        assert not machine.is_voter
        other = next(each for each in quorum.nodes if each not in (leader, wiped))
        quorum.kill(other)
        lost = asyncio.create_task(quorum.write(2, virtual_s_max=60.0))
        await asyncio.sleep(8.0)
        assert not lost.done(), "the stranger's copy does not count"
        await quorum.start(other)
        await lost
        assert (await remove(quorum, wiped)).error_code == 0
        assert (await add(quorum, wiped, life=1)).error_code == 0
        assert machine.is_voter
        quorum.kill(other)
        await quorum.write(3)

    on_quorum(script)


def test_auto_joining_controller_replaces_its_wiped_predecessor() -> None:
    async def script(quorum: Quorum) -> None:
        await quorum.write(1)
        quorum.format(4)
        await quorum.start(4)
        await quorum.until(lambda: all(voters_known_to(quorum, each) == (1, 2, 3, 4) for each in quorum.nodes))
        wiped = 4 if await quorum.leader() != 4 else 3
        await quorum.stop(wiped)
        quorum.host(wiped).disk.mount().remove_directory("/data")
        quorum.format(wiped, life=1)
        await quorum.start(wiped)
        await quorum.until(lambda: quorum.metadata(wiped).quorum.machine.is_voter, 30.0)
        await quorum.until(lambda: all(voters_known_to(quorum, each) == (1, 2, 3, 4) for each in quorum.nodes))
        await quorum.write(2)
        await quorum.seen_by_all(2)

    on_quorum(script, settings=[*FOUR, "controller.quorum.auto.join.enable=true"])


# Foreign clusters


def test_node_of_another_cluster_is_rejected_with_a_message() -> None:
    async def script(quorum: Quorum) -> None:
        await quorum.write(1)
        stranger = "BBECAwQFBgcICQoLDA0ODw"
        topic = m.VoteRequest.TopicData(
            topic_name="__cluster_metadata",
            partitions=[m.VoteRequest.PartitionData(replica_epoch=99, replica_id=2, last_offset=999)],
        )
        requests: list[Any] = [
            m.VoteRequest(cluster_id=stranger, voter_id=1, topics=[topic]),
            m.BeginQuorumEpochRequest(cluster_id=stranger, voter_id=1),
            m.EndQuorumEpochRequest(cluster_id=stranger),
            m.FetchSnapshotRequest(cluster_id=stranger),
            m.FetchRequest(cluster_id=stranger, session_epoch=-1),
            m.AddRaftVoterRequest(cluster_id=stranger, voter_id=9),
            m.RemoveRaftVoterRequest(cluster_id=stranger, voter_id=1),
            m.UpdateRaftVoterRequest(cluster_id=stranger, voter_id=1),
        ]
        for request in requests:
            response = await quorum.ask(await quorum.leader(), request)
            assert response.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID, request
        await quorum.write(2)

    on_quorum(script)


def test_controller_of_another_cluster_does_not_follow_this_one() -> None:
    async def script(quorum: Quorum) -> None:
        quorum.simulation.disks_fail = True  # it logs the error
        await quorum.write(1)
        quorum.cluster_ids[4] = "BBECAwQFBgcICQoLDA0ODw"
        quorum.format(4)
        await quorum.start(4)
        await asyncio.sleep(5.0)
        assert quorum.metadata(4).leader_id == -1
        assert quorum.value(4) is None
        assert quorum.metadata(4).end_offset == 0
        await quorum.write(2)

    on_quorum(script, settings=FOUR)


# Persisted state


def test_quorum_state_of_static_voters_has_version_0() -> None:
    async def script(quorum: Quorum) -> None:
        leader = await quorum.leader()
        await quorum.write(1)
        state = json.loads(quorum.host(leader).disk.mount().read(f"{LOG}/quorum-state"))
        assert state["data_version"] == 0
        assert state["currentVoters"] == [{"voterId": 1}, {"voterId": 2}, {"voterId": 3}]
        assert (state["leaderId"], state["leaderEpoch"]) == (leader, quorum.metadata(leader).epoch)
        response = await add(quorum, 4)
        assert response.error_code == ErrorCode.UNSUPPORTED_VERSION

    on_quorum(script, is_static=True)


def test_quorum_state_of_dynamic_voters_has_version_1() -> None:
    async def script(quorum: Quorum) -> None:
        leader = await quorum.leader()
        state = json.loads(quorum.host(leader).disk.mount().read(f"{LOG}/quorum-state"))
        assert state["data_version"] == 1
        assert state["leaderId"] == leader

    on_quorum(script)


def test_vote_is_synced_before_its_response() -> None:
    async def script(quorum: Quorum) -> None:
        leader = await quorum.leader()
        requested, candidate = (each for each in quorum.nodes if each != leader)
        quorum.kill(candidate, leader)
        epoch = quorum.metadata(requested).epoch + 10
        partition = m.VoteRequest.PartitionData(
            replica_epoch=epoch,
            replica_id=candidate,
            replica_directory_id=directory(candidate),
            voter_directory_id=directory(requested),
            last_offset=10**6,
            last_offset_epoch=epoch - 1,
        )
        topic = m.VoteRequest.TopicData(topic_name="__cluster_metadata", partitions=[partition])
        response = await quorum.ask(requested, m.VoteRequest(cluster_id=CLUSTER_ID, voter_id=requested, topics=[topic]))
        assert response.topics[0].partitions[0].vote_granted
        quorum.cut_power(requested)
        state = json.loads(quorum.host(requested).disk.mount().read(f"{LOG}/quorum-state"))
        assert (state["leaderEpoch"], state["votedId"]) == (epoch, candidate)
        assert state["votedDirectoryId"] == encode_id(directory(candidate))

    on_quorum(script)


def test_voter_with_a_corrupt_quorum_state_does_not_start() -> None:
    async def script(quorum: Quorum) -> None:
        await quorum.leader()
        quorum.kill(2)
        disk = quorum.host(2).disk.mount()
        file = disk.open(f"{LOG}/quorum-state")
        file.truncate(5)
        file.close()
        with pytest.raises(BrokenQuorumState):
            await quorum.start(2)
        quorum.host(2).exit()

    on_quorum(script)


def test_describe_quorum_is_served_by_the_leader_only() -> None:
    async def script(quorum: Quorum) -> None:
        await quorum.write(1)
        await quorum.seen_by_all(1)
        leader = await quorum.leader()
        for node_id in quorum.nodes:
            described = await describe(quorum, node_id)
            assert described.leader_id == leader
            if node_id != leader:
                assert described.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
                continue
            assert described.high_watermark == quorum.metadata(leader).high_watermark
            assert [each.replica_id for each in described.current_voters] == [1, 2, 3]
            assert all(each.replica_directory_id == directory(each.replica_id) for each in described.current_voters)
            assert {each.log_end_offset for each in described.current_voters} == {described.high_watermark}
            now_ms = quorum.host(leader).clock.wall_ms()
            assert all(now_ms - 2_000 < each.last_caught_up_timestamp <= now_ms for each in described.current_voters)

    on_quorum(script)


async def raise_kraft_version(quorum: Quorum, level: int = 1, *, is_validate_only: bool = False) -> int:
    leader = await quorum.leader()
    update = m.UpdateFeaturesRequest.FeatureUpdateKey(feature="kraft.version", max_version_level=level, upgrade_type=1)
    request = m.UpdateFeaturesRequest(timeout_ms=10_000, feature_updates=[update], validate_only=is_validate_only)
    return int((await quorum.ask(leader, request)).error_code)


def kraft_versions(quorum: Quorum) -> set[int]:
    return {quorum.metadata(each).quorum.machine.kraft_version for each in quorum.nodes}


@pytest.mark.proves("H6", part="voters change")
def test_static_voters_can_be_upgraded_to_dynamic_ones() -> None:
    async def script(quorum: Quorum) -> None:
        await quorum.write(1)
        await asyncio.sleep(20.0)  # long enough for a leader that forgot its voters to resign
        epoch = quorum.metadata(await quorum.leader()).quorum.machine.epoch
        assert (await add(quorum, 4)).error_code == ErrorCode.UNSUPPORTED_VERSION
        assert await raise_kraft_version(quorum, is_validate_only=True) == 0
        assert await raise_kraft_version(quorum, 2) == ErrorCode.INVALID_UPDATE_VERSION
        assert kraft_versions(quorum) == {0}
        assert await raise_kraft_version(quorum) == 0
        await quorum.until(lambda: kraft_versions(quorum) == {1})
        assert quorum.metadata(await quorum.leader()).quorum.machine.epoch == epoch  # no election was needed
        assert await raise_kraft_version(quorum) == 0
        assert await raise_kraft_version(quorum, 0) == ErrorCode.INVALID_UPDATE_VERSION
        (gone,) = [each for each in quorum.nodes if each != await quorum.leader()][:1]
        assert (await remove(quorum, gone)).error_code == 0
        await quorum.write(2)
        await quorum.seen_by_all(2)

    on_quorum(script, is_static=True)


def test_upgraded_voters_survive_a_restart_of_all_nodes() -> None:
    async def script(quorum: Quorum) -> None:
        await quorum.write(1)
        assert await raise_kraft_version(quorum) == 0
        node_ids = list(quorum.nodes)
        quorum.kill(*node_ids)
        await asyncio.gather(*(quorum.start(each) for each in node_ids))
        await quorum.write(2)
        await quorum.until(lambda: kraft_versions(quorum) == {1})
        voters = quorum.metadata(await quorum.leader()).quorum.machine.voters
        assert [each.directory_id for each in voters] == [directory(each) for each in (1, 2, 3)]

    on_quorum(script, is_static=True)


@pytest.mark.proves("H6", part="voters change")
def test_upgrade_needs_the_directory_id_of_every_voter() -> None:
    async def script(quorum: Quorum) -> None:
        await quorum.write(1)
        quorum.kill(*quorum.nodes)
        await asyncio.gather(quorum.start(1), quorum.start(2))
        await quorum.write(2)
        assert await raise_kraft_version(quorum) == ErrorCode.INVALID_REQUEST
        await quorum.start(3)
        await quorum.seen_by_all(2)
        assert await raise_kraft_version(quorum) == 0

    on_quorum(script, is_static=True)

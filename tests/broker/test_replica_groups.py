"""Groups on a replicated offsets topic: coordinator failover keeps everything acknowledged."""

import asyncio
from typing import Any

import pytest
from broker_scene import Talker
from cluster_scene import Cluster, on_cluster
from replica_scene import copy_of, create, elect_preferred

from moldau.broker.internal_topics import OFFSETS_TOPIC, partition_for
from moldau.model.errors import ErrorCode
from moldau.wire.messages import (
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)

SETTINGS = ("offsets.topic.num.partitions=3", "offsets.topic.replication.factor=3", "min.insync.replicas=2")
PASSING = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
)

pytestmark = pytest.mark.proves("H3")


async def coordinator(cluster: Cluster, group: str = "g") -> int:
    """Wait for the group's coordinator; return its node id."""
    while True:
        talker = await cluster.connect(next(iter(cluster.nodes)))
        response = await talker.ask(2, FindCoordinatorRequest(key=group, key_type=0))
        talker.connection.close()
        if response.error_code == 0 and response.node_id in cluster.nodes:
            return int(response.node_id)
        await asyncio.sleep(0.05)


def commit_request(offset: int, group: str = "g") -> OffsetCommitRequest:
    partition = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(name="t", partitions=[partition])
    return OffsetCommitRequest(group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=[topic])


async def commit(cluster: Cluster, offset: int, group: str = "g") -> None:
    """Commit an offset, with retries."""
    while True:
        talker = await cluster.connect(await coordinator(cluster, group))
        response = await talker.ask(8, commit_request(offset, group))
        talker.connection.close()
        code = response.topics[0].partitions[0].error_code
        if code == 0:
            return
        assert code in PASSING, ErrorCode(code)
        await asyncio.sleep(0.05)


async def committed(cluster: Cluster, group: str = "g") -> int:
    while True:
        talker = await cluster.connect(await coordinator(cluster, group))
        topic = OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=[0])
        response = await talker.ask(7, OffsetFetchRequest(group_id=group, topics=[topic]))
        talker.connection.close()
        if response.error_code == 0:
            return int(response.topics[0].partitions[0].committed_offset)
        assert response.error_code in PASSING, ErrorCode(response.error_code)
        await asyncio.sleep(0.05)


def test_committed_offsets_survive_a_coordinator_failover() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster)
        for number, group in enumerate("abcd"):
            await commit(cluster, number, group)
        for victim in (2, 3, 2):
            cluster.kill(victim)
            for number, group in enumerate("abcd"):
                before = await committed(cluster, group)
                assert before % 10 == number
                await commit(cluster, before + 10, group)
            await cluster.start(victim)
            await cluster.until(lambda: all(_is_full(cluster, index) for index in range(3)), 10.0)
        assert [await committed(cluster, group) for group in "abcd"] == [30, 31, 32, 33]

    on_cluster(script, settings=SETTINGS)


def _is_full(cluster: Cluster, index: int) -> bool:
    return len(cluster.nodes[1].broker.image.topics[OFFSETS_TOPIC].partitions[index].isr) == 3


async def group_away_from_controller(cluster: Cluster) -> str:
    """Return a group whose coordinator is not the controller."""
    for number in range(20):
        if await coordinator(cluster, f"g{number}") != 1:
            return f"g{number}"
    raise AssertionError("all groups are with the controller")


async def ask_coordinator(cluster: Cluster, group: str, version: int, request: Any) -> Any:
    """Request from the coordinator, with retries; return the first final response."""
    while True:
        talker: Talker = await cluster.connect(await coordinator(cluster, group))
        response = await talker.ask(version, request)
        talker.connection.close()
        if response.error_code not in PASSING:
            return response
        await asyncio.sleep(0.05)


def test_members_continue_their_generation_after_a_coordinator_failover() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster)
        group = await group_away_from_controller(cluster)
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        joined = await ask_coordinator(cluster, group, 3, request)
        assert joined.error_code == 0
        named = {"group_id": group, "generation_id": joined.generation_id, "member_id": joined.member_id}
        mine = SyncGroupRequest.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"all")
        synced = await ask_coordinator(cluster, group, 2, SyncGroupRequest(assignments=[mine], **named))
        assert (synced.error_code, bytes(synced.assignment)) == (0, b"all")
        first = await coordinator(cluster, group)
        cluster.kill(first)
        assert (await ask_coordinator(cluster, group, 2, HeartbeatRequest(**named))).error_code == 0
        assert await coordinator(cluster, group) != first

    on_cluster(script, settings=SETTINGS)


def test_commit_times_out_below_min_isr() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster)
        group = await group_away_from_controller(cluster)
        await commit(cluster, 1, group)
        here = await coordinator(cluster, group)
        cluster.kill({2: 3, 3: 2}[here])
        await asyncio.sleep(0.5)
        await commit(cluster, 2, group)
        talker = await cluster.connect(here)
        cluster.simulation.network.cut_both(f"n{here}", "n1")  # in the ISR, but isolated
        began_s = cluster.simulation.now_s
        response = await talker.ask(8, commit_request(3, group))
        assert response.topics[0].partitions[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert 4.9 < cluster.simulation.now_s - began_s < 5.5
        cluster.simulation.network.heal()
        assert await committed(cluster, group) in (2, 3)

    on_cluster(script, settings=[*SETTINGS, "broker.session.timeout.ms=60000"])


def test_coordinator_below_min_isr_rejects_commits_at_once() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster)
        await commit(cluster, 1)
        cluster.kill(3)
        cluster.kill(2)
        await asyncio.sleep(0.5)
        response = await (await cluster.connect(1)).ask(8, commit_request(2))
        assert response.topics[0].partitions[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE

    on_cluster(script, settings=SETTINGS)


def test_deposed_coordinator_neither_accepts_nor_returns_offsets() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster)
        group = await group_away_from_controller(cluster)
        await commit(cluster, 1, group)
        first = await coordinator(cluster, group)
        index = partition_for(group, 3)
        cluster.kill(first)
        await commit(cluster, 2, group)
        second = await coordinator(cluster, group)
        await cluster.start(first)
        await cluster.until(lambda: _is_full(cluster, index), 10.0)
        await elect_preferred(cluster, OFFSETS_TOPIC, index)
        await cluster.until(lambda: not copy_of(cluster, second, OFFSETS_TOPIC, index).role.is_leader, 1.0)
        talker = await cluster.connect(second)
        topic = OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=[0])
        response = await talker.ask(7, OffsetFetchRequest(group_id=group, topics=[topic]))
        assert response.error_code == ErrorCode.NOT_COORDINATOR
        response = await talker.ask(8, commit_request(3, group))
        assert response.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
        assert await committed(cluster, group) == 2
        assert await coordinator(cluster, group) == first

    on_cluster(script, settings=SETTINGS)


def test_follower_of_the_offsets_topic_coordinates_no_group() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster)
        await commit(cluster, 1)
        here = await coordinator(cluster)
        for other in {1, 2, 3} - {here}:
            response = await (await cluster.connect(other)).ask(8, commit_request(2))
            assert response.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
        index = next(index for index in range(3) if copy_of(cluster, here, OFFSETS_TOPIC, index).log.end_offset > 0)
        ends = {copy_of(cluster, each, OFFSETS_TOPIC, index).log.end_offset for each in (1, 2, 3)}
        assert len(ends) == 1

    on_cluster(script, settings=SETTINGS)

"""Groups while the offsets topic is below min ISR: changes are rejected, reads and heartbeats continue."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from broker_scene import Scene, Talker, on_broker
from cluster_scene import Cluster, on_cluster
from group_members import Member, find_coordinator, join_request, settle
from replica_scene import copy_of, create
from test_groups_consumer import Consumer
from test_replica_groups import SETTINGS, commit, coordinator

from moldau.broker.internal_topics import OFFSETS_TOPIC, partition_for
from moldau.broker.partitions.partition import Partition
from moldau.model.errors import ErrorCode
from moldau.wire import messages

UNAVAILABLE = ErrorCode.COORDINATOR_NOT_AVAILABLE
HEARTBEAT = messages.ConsumerGroupHeartbeatRequest
OFFSETS = messages.OffsetDeleteRequest

CHANGES: dict[str, tuple[int, Any]] = {
    "DeleteGroups": (2, messages.DeleteGroupsRequest(groups_names=["{group}"])),
    "OffsetDelete": (
        0,
        OFFSETS(
            group_id="{group}",
            topics=[
                OFFSETS.OffsetDeleteRequestTopic(
                    name="t", partitions=[OFFSETS.OffsetDeleteRequestPartition(partition_index=0)]
                )
            ],
        ),
    ),
    "JoinGroup": (3, join_request("{group}")),
    "SyncGroup": (3, messages.SyncGroupRequest(group_id="{group}", generation_id=1, member_id="m")),
    "LeaveGroup": (
        4,
        messages.LeaveGroupRequest(
            group_id="{group}", members=[messages.LeaveGroupRequest.MemberIdentity(member_id="m")]
        ),
    ),
    "ConsumerGroupHeartbeat": (
        1,
        HEARTBEAT(
            group_id="{group}",
            member_id="m",
            rebalance_timeout_ms=1_000,
            subscribed_topic_names=["t"],
            topic_partitions=[],
        ),
    ),
}


async def group_of_controller(cluster: Cluster) -> str:
    """Return a group that is coordinated by the remaining node and has an offset."""
    for number in range(20):
        group = f"g{number}"
        if await coordinator(cluster, group) == 1:
            await commit(cluster, 1, group)
            return group
    raise AssertionError("no group is with the controller")


def copy_for(cluster: Cluster, group: str, node_id: int = 1) -> Partition:
    return copy_of(cluster, node_id, OFFSETS_TOPIC, partition_for(group, 3))


async def leave_alone(cluster: Cluster, group: str) -> None:
    """Kill the other two nodes, and wait until the remaining one knows."""
    cluster.kill(2)
    cluster.kill(3)
    leading = copy_for(cluster, group).role.leading
    assert leading is not None
    await cluster.until(lambda: leading.machine.is_under_min_isr, 15.0)


async def bring_back(cluster: Cluster, group: str) -> None:
    await cluster.start(2)
    await cluster.start(3)
    leading = copy_for(cluster, group).role.leading
    assert leading is not None
    await cluster.until(lambda: len(leading.machine.isr) == 3, 15.0)


def of_group(request: Any, group: str) -> Any:
    if isinstance(request, messages.DeleteGroupsRequest):
        return messages.DeleteGroupsRequest(groups_names=[group])
    request.group_id = group
    return request


def code_of(response: Any) -> int:
    return int(
        response.results[0].error_code if isinstance(response, messages.DeleteGroupsResponse) else response.error_code
    )


async def listed(talker: Talker) -> tuple[int, list[str]]:
    response = await talker.ask(4, messages.ListGroupsRequest())
    return response.error_code, [each.group_id for each in response.groups]


@pytest.mark.proves("H2", part="too few in-sync replicas")
@pytest.mark.parametrize("name", CHANGES)
def test_change_is_rejected_at_once_and_committed_state_is_readable(name: str) -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster)
        group = await group_of_controller(cluster)
        await leave_alone(cluster, group)
        end_offset = copy_for(cluster, group).log.end_offset
        talker = await cluster.connect(1)
        began_s = cluster.simulation.now_s
        version, request = CHANGES[name]
        assert code_of(await talker.ask(version, of_group(request, group))) == UNAVAILABLE
        assert await listed(talker) == (0, [group])
        response = await talker.ask(5, messages.DescribeGroupsRequest(groups=[group]))
        assert (response.groups[0].error_code, response.groups[0].group_state) == (0, "Empty")
        response = await talker.ask(1, messages.ConsumerGroupDescribeRequest(group_ids=["unknown"]))
        assert response.groups[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert cluster.simulation.now_s - began_s < 0.5
        assert copy_for(cluster, group).log.end_offset == end_offset
        await bring_back(cluster, group)
        await commit(cluster, 2, group)

    on_cluster(script, settings=SETTINGS)


async def silence(cluster: Cluster) -> Talker:
    """Kill one replica and isolate another one in the ISR; return a client of the third."""
    cluster.kill(3)
    await asyncio.sleep(0.5)
    talker = await cluster.connect(1)
    cluster.simulation.network.cut_both("n1", "n2")
    return talker


SILENT = (*SETTINGS, "broker.session.timeout.ms=60000")


@pytest.mark.proves("H2", part="too few in-sync replicas")
def test_uncommitted_writes_do_not_block_requests_forever() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster)
        group = await group_of_controller(cluster)
        talker = await silence(cluster)
        began_s = cluster.simulation.now_s
        clients = [await cluster.connect(1) for _ in range(3)]
        log = copy_for(cluster, group).log
        end_offset = log.end_offset
        deleting = asyncio.ensure_future(talker.ask(2, messages.DeleteGroupsRequest(groups_names=[group])))
        await cluster.until(lambda: log.end_offset > end_offset, 1.0)
        requested: Sequence[tuple[int, Any]] = [
            (4, messages.ListGroupsRequest()),
            (5, messages.DescribeGroupsRequest(groups=[group])),
            (4, messages.HeartbeatRequest(group_id=group, member_id="m", generation_id=1)),
        ]
        responses = await asyncio.gather(
            deleting, *(each.ask(version, request) for each, (version, request) in zip(clients, requested, strict=True))
        )
        assert 4.9 < cluster.simulation.now_s - began_s < 5.5
        deleted, found, described, beaten = responses
        assert code_of(deleted) == found.error_code == described.groups[0].error_code == UNAVAILABLE
        assert beaten.error_code == UNAVAILABLE
        cluster.simulation.network.heal()
        await asyncio.sleep(3)
        assert await listed(talker) == (0, [])

    on_cluster(script, settings=SILENT)


class TwoGroups:
    """A classic and a consumer group with two members each, one of which sends heartbeats."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self.cluster = cluster
        same = partition_for(group, 3)
        names = [name for name in map("h{}".format, range(99)) if partition_for(name, 3) == same]
        self.classic_group, self.consumer_group = names[:2]

    async def settle(self) -> None:
        cluster = self.cluster
        classic = [Member(await cluster.connect(1), self.classic_group) for _ in range(2)]
        await settle(classic, partitions=2)
        consumers = [Consumer(await cluster.connect(1), name, self.consumer_group) for name in ("loud", "silent")]
        for _ in range(4):
            for each in consumers:
                assert await (each.acknowledge() if each.epoch else each.beat()) is ErrorCode.NONE
        self.member, self.consumer = classic[0], consumers[0]

    async def beat(self) -> set[ErrorCode]:
        """Send one heartbeat for each of the two, on separate connections."""
        self.member.talker, self.consumer.talker = [await self.cluster.connect(1) for _ in range(2)]
        codes = {await self.member.heartbeat(), await self.consumer.beat()}
        for each in (self.member, self.consumer):
            each.talker.connection.close()
        return codes

    async def members(self) -> list[list[str]]:
        talker = await self.cluster.connect(1)
        classic = await talker.ask(5, messages.DescribeGroupsRequest(groups=[self.classic_group]))
        consumer = await talker.ask(1, messages.ConsumerGroupDescribeRequest(group_ids=[self.consumer_group]))
        return [[each.member_id for each in response.groups[0].members] for response in (classic, consumer)]


@pytest.mark.proves("C5", part="a silent member is evicted")
def test_only_members_without_heartbeats_expire_after_the_isr_recovers() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[1, 2, 3], [1, 2, 3]])
        group = await group_of_controller(cluster)
        groups = TwoGroups(cluster, group)
        await groups.settle()
        await leave_alone(cluster, group)
        end_offset = copy_for(cluster, group).log.end_offset
        for _ in range(20):
            assert await groups.beat() == {ErrorCode.NONE}
            await asyncio.sleep(3)
        assert copy_for(cluster, group).log.end_offset == end_offset
        assert [len(each) for each in await groups.members()] == [2, 2]
        await bring_back(cluster, group)
        for _ in range(5):
            codes = await groups.beat()
            await asyncio.sleep(3)
        assert ErrorCode.UNKNOWN_MEMBER_ID not in codes
        (classic, consumers) = await groups.members()
        assert (groups.member.member_id in classic, consumers) == (True, ["loud"])

    on_cluster(script, settings=SETTINGS)


def test_join_may_wait_longer_than_the_commit_timeout() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        await find_coordinator(talker)
        began_s = scene.simulation.now_s
        assert (await Member(talker).join(version=3)).error_code == 0
        assert scene.simulation.now_s - began_s >= 3.0

    on_broker(script, settings=["offsets.commit.timeout.ms=500", "group.initial.rebalance.delay.ms=3000"])

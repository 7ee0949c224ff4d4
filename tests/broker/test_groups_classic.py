"""Classic groups over the wire: join, sync, heartbeat, leave, expire."""

import asyncio

import pytest
from broker_scene import Scene, on_broker
from group_members import (
    SESSION_MS,
    TOPIC,
    Member,
    assigned,
    assignment,
    find_coordinator,
    join_request,
    members,
    settle,
    subscription,
    sync_request,
)

from moldau.model.errors import ErrorCode
from moldau.wire import messages

DELAY_S = 3.0  # group.initial.rebalance.delay.ms


async def _ready(scene: Scene, partitions: int = 4) -> None:
    await scene.create(TOPIC, partitions=partitions)
    await find_coordinator(await scene.connect())


@pytest.mark.proves("C2")
def test_members_that_join_together_share_all_partitions() -> None:
    async def script(scene: Scene) -> None:
        await _ready(scene, partitions=7)
        group = await members(scene, 3)
        await settle(group, partitions=7)
        assert {member.generation for member in group} == {1}
        owned = [index for member in group for index in member.partitions[TOPIC]]
        assert sorted(owned) == list(range(7))
        assert [await member.heartbeat() for member in group] == [ErrorCode.NONE] * 3

    on_broker(script)


@pytest.mark.proves("C2")
def test_several_groups_each_have_all_partitions() -> None:
    async def script(scene: Scene) -> None:
        await _ready(scene)
        groups = [await members(scene, 2, group_id=f"group-{number}") for number in range(5)]
        await asyncio.gather(*(settle(group, partitions=4) for group in groups))
        for group in groups:
            assert sorted(index for member in group for index in member.partitions[TOPIC]) == [0, 1, 2, 3]

    on_broker(script, settings=["offsets.topic.num.partitions=1"])


@pytest.mark.proves("C5")
def test_new_member_triggers_a_rebalance() -> None:
    async def script(scene: Scene) -> None:
        await _ready(scene)
        first, second = await members(scene, 2)
        await first.settle(4)
        joining = asyncio.create_task(second.settle(4))
        while await first.heartbeat() is ErrorCode.NONE:
            await asyncio.sleep(0.1)
        assert await first.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
        await first.settle(4)
        await joining
        assert first.generation == second.generation == 2
        assert sorted(first.partitions[TOPIC] + second.partitions[TOPIC]) == [0, 1, 2, 3]

    on_broker(script)


@pytest.mark.proves("C5")
def test_leave_responds_at_once_and_triggers_a_rebalance() -> None:
    async def script(scene: Scene) -> None:
        await _ready(scene)
        first, second = group = await members(scene, 2)
        await settle(group, 4)
        began_s = scene.simulation.now_s
        response = await second.leave()
        assert scene.simulation.now_s - began_s < 0.1
        assert (response.error_code, response.members[0].error_code) == (0, 0)
        assert await first.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
        assert await second.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
        await first.settle(4)
        assert first.partitions[TOPIC] == [0, 1, 2, 3]

    on_broker(script)


@pytest.mark.proves("C5")
def test_only_silent_member_is_evicted_at_its_session_timeout() -> None:
    async def script(scene: Scene) -> None:
        await _ready(scene)
        alive, silent = group = await members(scene, 2)
        await settle(group, 4)
        began_s = scene.simulation.now_s
        while await alive.heartbeat() is ErrorCode.NONE:
            await asyncio.sleep(1)
        passed_ms = (scene.simulation.now_s - began_s) * 1000
        assert SESSION_MS - 100 <= passed_ms <= SESSION_MS + 1_500
        await alive.settle(4)
        assert alive.partitions[TOPIC] == [0, 1, 2, 3]
        assert await silent.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID

    on_broker(script)


@pytest.mark.proves("C5")
def test_static_member_restart_fences_the_old_one_without_a_rebalance() -> None:
    async def script(scene: Scene) -> None:
        await _ready(scene)
        other = Member(await scene.connect())
        old = Member(await scene.connect(), instance_id="kitchen")
        await settle([other, old], 4)
        old.talker.connection.close()
        new = Member(await scene.connect(), instance_id="kitchen")
        response = await new.join()
        assert (response.error_code, response.generation_id) == (0, old.generation)
        assert new.member_id != old.member_id
        assert (await new.sync()).error_code == 0
        assert new.partitions == old.partitions
        assert await other.heartbeat() is ErrorCode.NONE
        old.talker = await scene.connect()
        assert await old.heartbeat() is ErrorCode.FENCED_INSTANCE_ID
        assert (await old.join()).error_code == ErrorCode.FENCED_INSTANCE_ID
        assert await old.commit({0: 1}) == [ErrorCode.FENCED_INSTANCE_ID]

    on_broker(script)


def test_static_member_is_removed_by_its_instance_id() -> None:
    async def script(scene: Scene) -> None:
        await _ready(scene)
        member = Member(await scene.connect(), instance_id="kitchen")
        await member.settle(4)
        identities = [
            messages.LeaveGroupRequest.MemberIdentity(member_id="", group_instance_id=name)
            for name in ("kitchen", "cellar")
        ]
        admin = await scene.connect()
        response = await admin.ask(5, messages.LeaveGroupRequest(group_id="g", members=identities))
        assert [each.error_code for each in response.members] == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
        assert await member.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID

    on_broker(script)


def test_new_member_must_rejoin_with_its_assigned_id() -> None:
    async def script(scene: Scene) -> None:
        await _ready(scene)
        talker = await scene.connect()
        response = await talker.ask(4, join_request())
        assert response.error_code == ErrorCode.MEMBER_ID_REQUIRED
        prefix, _, uuid = response.member_id.partition("-")
        assert (prefix, len(uuid)) == ("scene", 36)
        assert (await talker.ask(4, join_request(member_id=response.member_id))).error_code == 0
        assert (await talker.ask(3, join_request("other"))).error_code == 0, "before version 4 it is a member at once"

    on_broker(script)


@pytest.mark.parametrize("version", range(10))
def test_join_and_sync_work_in_every_version(version: int) -> None:
    async def script(scene: Scene) -> None:
        await _ready(scene)
        member = Member(await scene.connect())
        await member.settle(4, version=version)
        assert member.partitions[TOPIC] == [0, 1, 2, 3]
        assert await member.heartbeat(version=min(version, 4)) is ErrorCode.NONE
        assert (await member.leave(version=min(version, 5))).error_code == 0

    on_broker(script)


def test_join_rejects_invalid_requests() -> None:
    async def script(scene: Scene) -> None:
        await _ready(scene)
        member = Member(await scene.connect())
        await member.settle(4)
        talker = await scene.connect()

        async def code(request: messages.JoinGroupRequest) -> ErrorCode:
            response = await talker.ask(9, request)
            assert response.generation_id == -1
            return ErrorCode(response.error_code)

        assert await code(join_request("")) is ErrorCode.INVALID_GROUP_ID
        assert await code(join_request(session_timeout_ms=1)) is ErrorCode.INVALID_SESSION_TIMEOUT
        assert await code(join_request(session_timeout_ms=10_000_000)) is ErrorCode.INVALID_SESSION_TIMEOUT
        assert await code(join_request(member_id="unknown")) is ErrorCode.UNKNOWN_MEMBER_ID
        assert await code(join_request("new", member_id="unknown")) is ErrorCode.UNKNOWN_MEMBER_ID
        assert await code(join_request(protocol_type="connect")) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert await code(join_request(protocols={"other": b""})) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert await code(join_request("new", protocols={})) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL

    on_broker(script)


def test_full_group_rejects_new_members() -> None:
    async def script(scene: Scene) -> None:
        await _ready(scene)
        first, second, third = await members(scene, 3)
        await settle([first, second], 4)
        assert (await third.join()).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
        assert await first.heartbeat() is ErrorCode.NONE

    on_broker(script, settings=["group.max.size=2"])


def test_stale_members_get_kafkas_error_codes() -> None:
    async def script(scene: Scene) -> None:
        await _ready(scene)
        member, stranger = await members(scene, 2)
        assert await member.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
        await member.settle(4)
        stranger.member_id, stranger.generation, stranger.protocol = "stranger", 1, "range"
        assert await stranger.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
        assert (await stranger.sync()).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert (await stranger.leave()).members[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert (await stranger.leave(version=2)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        member.generation += 1
        assert await member.heartbeat() is ErrorCode.ILLEGAL_GENERATION
        assert (await member.sync()).error_code == ErrorCode.ILLEGAL_GENERATION
        member.generation -= 1
        member.protocol = "roundrobin"
        assert (await member.sync()).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        member.group_id = ""
        assert await member.heartbeat() is ErrorCode.INVALID_GROUP_ID
        assert (await member.leave()).error_code == ErrorCode.INVALID_GROUP_ID
        assert (await member.sync()).error_code == ErrorCode.INVALID_GROUP_ID

    on_broker(script)


def test_protocol_with_the_most_votes_is_chosen() -> None:
    async def script(scene: Scene) -> None:
        await _ready(scene)
        group = await members(scene, 3)
        said = subscription(TOPIC)
        preferences = [
            {"range": said, "sticky": said},
            {"sticky": said, "range": said},
            {"sticky": said, "range": said},
        ]
        responses = await asyncio.gather(
            *(member.join(protocols=each) for member, each in zip(group, preferences, strict=True))
        )
        assert {response.protocol_name for response in responses} == {"sticky"}
        (leader,) = [member for member in group if member.is_leader]
        assert sorted(each.member_id for each in leader.last_join.members) == sorted(m.member_id for m in group)
        assert all(not member.last_join.members for member in group if member is not leader)

    on_broker(script)


def test_followers_wait_for_the_leader_to_assign() -> None:
    async def script(scene: Scene) -> None:
        await _ready(scene)
        group = await members(scene, 2)
        await asyncio.gather(*(member.join() for member in group))
        leader, follower = sorted(group, key=lambda member: not member.is_leader)
        waiting = follower.talker.begin(5, sync_request(follower))
        await asyncio.sleep(1)
        assert not waiting.done()
        shares = {leader.member_id: assignment({TOPIC: [0]}), follower.member_id: assignment({TOPIC: [1, 2, 3]})}
        assert (await leader.sync(shares)).error_code == 0
        assert assigned((await waiting).assignment) == {TOPIC: [1, 2, 3]}

    on_broker(script)


def test_waiting_join_does_not_block_later_requests_and_responds_first() -> None:
    async def script(scene: Scene) -> None:
        await _ready(scene)
        talker = await scene.connect()
        joining = talker.begin(3, join_request())
        listing = talker.begin(5, messages.ListGroupsRequest())
        await asyncio.sleep(DELAY_S / 2)
        assert not joining.done()
        assert not listing.done(), "responses keep the order of requests"
        joined, listed = await joining, await listing
        assert joined.error_code == 0
        assert [(group.group_id, group.group_state) for group in listed.groups] == [("g", "PreparingRebalance")]

    on_broker(script)


def test_waiting_member_that_disconnects_does_not_block_the_group() -> None:
    async def script(scene: Scene) -> None:
        await _ready(scene)
        stays, goes = await members(scene, 2)
        joining = asyncio.create_task(stays.settle(4))
        response = await goes.talker.ask(9, join_request())
        goes.talker.begin(9, join_request(member_id=response.member_id)).cancel()
        await asyncio.sleep(0.1)
        goes.talker.connection.abort()
        await joining
        assert stays.generation >= 1

    on_broker(script)

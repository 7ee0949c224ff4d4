"""Classic groups through the wire: members join, share the partitions, live, leave, and hear what they must know."""

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
def test_members_that_join_together_share_every_partition_once() -> None:
    async def script(scene: Scene) -> None:
        await _ready(scene, partitions=7)
        everybody = await members(scene, 3)
        await settle(everybody, partitions=7)
        assert {member.generation for member in everybody} == {1}
        owned = [index for member in everybody for index in member.partitions[TOPIC]]
        assert sorted(owned) == list(range(7))
        assert [await member.heartbeat() for member in everybody] == [ErrorCode.NONE] * 3

    on_broker(script)


@pytest.mark.proves("C2")
def test_several_groups_each_have_all_partitions() -> None:
    async def script(scene: Scene) -> None:
        await _ready(scene)
        groups = [await members(scene, 2, group_id=f"group-{number}") for number in range(5)]
        await asyncio.gather(*(settle(group, partitions=4) for group in groups))
        for group in groups:
            assert sorted(index for member in group for index in member.partitions[TOPIC]) == [0, 1, 2, 3]

    on_broker(script, settings=["offsets.topic.num.partitions=1"])  # so that one shard has to tell them apart


@pytest.mark.proves("C5")
def test_a_newcomer_makes_the_others_join_again() -> None:
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
def test_leaving_is_answered_at_once_and_the_rest_share_anew() -> None:
    async def script(scene: Scene) -> None:
        await _ready(scene)
        first, second = everybody = await members(scene, 2)
        await settle(everybody, 4)
        began_s = scene.simulation.now_s
        answer = await second.leave()
        assert scene.simulation.now_s - began_s < 0.1
        assert (answer.error_code, answer.members[0].error_code) == (0, 0)
        assert await first.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
        assert await second.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
        await first.settle(4)
        assert first.partitions[TOPIC] == [0, 1, 2, 3]

    on_broker(script)


@pytest.mark.proves("C5")
def test_whoever_is_silent_for_its_session_is_out_and_whoever_is_not_stays() -> None:
    async def script(scene: Scene) -> None:
        await _ready(scene)
        alive, silent = everybody = await members(scene, 2)
        await settle(everybody, 4)
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
def test_a_static_member_that_restarts_costs_no_rebalance_and_fences_its_old_self() -> None:
    async def script(scene: Scene) -> None:
        await _ready(scene)
        other = Member(await scene.connect())
        old = Member(await scene.connect(), instance_id="kitchen")
        await settle([other, old], 4)
        old.talker.connection.close()
        new = Member(await scene.connect(), instance_id="kitchen")
        answer = await new.join()
        assert (answer.error_code, answer.generation_id) == (0, old.generation)
        assert new.member_id != old.member_id
        assert (await new.sync()).error_code == 0
        assert new.partitions == old.partitions
        assert await other.heartbeat() is ErrorCode.NONE
        old.talker = await scene.connect()
        assert await old.heartbeat() is ErrorCode.FENCED_INSTANCE_ID
        assert (await old.join()).error_code == ErrorCode.FENCED_INSTANCE_ID
        assert await old.commit({0: 1}) == [ErrorCode.FENCED_INSTANCE_ID]

    on_broker(script)


def test_an_admin_sends_a_static_member_away_by_its_instance() -> None:
    async def script(scene: Scene) -> None:
        await _ready(scene)
        member = Member(await scene.connect(), instance_id="kitchen")
        await member.settle(4)
        identities = [
            messages.LeaveGroupRequest.MemberIdentity(member_id="", group_instance_id=name)
            for name in ("kitchen", "cellar")
        ]
        admin = await scene.connect()
        answer = await admin.ask(5, messages.LeaveGroupRequest(group_id="g", members=identities))
        assert [each.error_code for each in answer.members] == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
        assert await member.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID

    on_broker(script)


def test_a_new_member_is_given_an_id_and_must_come_back_with_it() -> None:
    async def script(scene: Scene) -> None:
        await _ready(scene)
        talker = await scene.connect()
        answer = await talker.ask(4, join_request())
        assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
        prefix, _, uuid = answer.member_id.partition("-")
        assert (prefix, len(uuid)) == ("scene", 36)
        assert (await talker.ask(4, join_request(member_id=answer.member_id))).error_code == 0
        assert (await talker.ask(3, join_request("other"))).error_code == 0, "before version 4 it is a member at once"

    on_broker(script)


@pytest.mark.parametrize("version", range(10))
def test_every_version_of_joining_and_syncing_leads_to_an_assignment(version: int) -> None:
    async def script(scene: Scene) -> None:
        await _ready(scene)
        member = Member(await scene.connect())
        await member.settle(4, version=version)
        assert member.partitions[TOPIC] == [0, 1, 2, 3]
        assert await member.heartbeat(version=min(version, 4)) is ErrorCode.NONE
        assert (await member.leave(version=min(version, 5))).error_code == 0

    on_broker(script)


def test_what_a_join_is_refused_for() -> None:
    async def script(scene: Scene) -> None:
        await _ready(scene)
        member = Member(await scene.connect())
        await member.settle(4)
        talker = await scene.connect()

        async def code(request: messages.JoinGroupRequest) -> ErrorCode:
            answer = await talker.ask(9, request)
            assert answer.generation_id == -1
            return ErrorCode(answer.error_code)

        assert await code(join_request("")) is ErrorCode.INVALID_GROUP_ID
        assert await code(join_request(session_timeout_ms=1)) is ErrorCode.INVALID_SESSION_TIMEOUT
        assert await code(join_request(session_timeout_ms=10_000_000)) is ErrorCode.INVALID_SESSION_TIMEOUT
        assert await code(join_request(member_id="nobody")) is ErrorCode.UNKNOWN_MEMBER_ID
        assert await code(join_request("new", member_id="nobody")) is ErrorCode.UNKNOWN_MEMBER_ID
        assert await code(join_request(protocol_type="connect")) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert await code(join_request(protocols={"other": b""})) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert await code(join_request("new", protocols={})) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL

    on_broker(script)


def test_a_full_group_turns_further_members_away() -> None:
    async def script(scene: Scene) -> None:
        await _ready(scene)
        first, second, third = await members(scene, 3)
        await settle([first, second], 4)
        assert (await third.join()).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
        assert await first.heartbeat() is ErrorCode.NONE

    on_broker(script, settings=["group.max.size=2"])


def test_what_members_are_told_that_are_not_where_they_think() -> None:
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


def test_the_protocol_that_most_members_prefer_is_chosen() -> None:
    async def script(scene: Scene) -> None:
        await _ready(scene)
        everybody = await members(scene, 3)
        said = subscription(TOPIC)
        preferences = [
            {"range": said, "sticky": said},
            {"sticky": said, "range": said},
            {"sticky": said, "range": said},
        ]
        answers = await asyncio.gather(
            *(member.join(protocols=each) for member, each in zip(everybody, preferences, strict=True))
        )
        assert {answer.protocol_name for answer in answers} == {"sticky"}
        (leader,) = [member for member in everybody if member.is_leader]
        assert sorted(each.member_id for each in leader.last_join.members) == sorted(m.member_id for m in everybody)
        assert all(not member.last_join.members for member in everybody if member is not leader)

    on_broker(script)


def test_followers_wait_for_the_leader_to_assign() -> None:
    async def script(scene: Scene) -> None:
        await _ready(scene)
        everybody = await members(scene, 2)
        await asyncio.gather(*(member.join() for member in everybody))
        leader, follower = sorted(everybody, key=lambda member: not member.is_leader)
        waiting = follower.talker.begin(5, sync_request(follower))
        await asyncio.sleep(1)
        assert not waiting.done()
        shares = {leader.member_id: assignment({TOPIC: [0]}), follower.member_id: assignment({TOPIC: [1, 2, 3]})}
        assert (await leader.sync(shares)).error_code == 0
        assert assigned((await waiting).assignment) == {TOPIC: [1, 2, 3]}

    on_broker(script)


def test_a_waiting_join_lets_requests_behind_it_begin_and_is_answered_first() -> None:
    async def script(scene: Scene) -> None:
        await _ready(scene)
        talker = await scene.connect()
        joining = talker.begin(3, join_request())
        listing = talker.begin(5, messages.ListGroupsRequest())
        await asyncio.sleep(DELAY_S / 2)
        assert not joining.done()
        assert not listing.done(), "answers keep the order of requests"
        joined, listed = await joining, await listing
        assert joined.error_code == 0
        assert [(group.group_id, group.group_state) for group in listed.groups] == [("g", "PreparingRebalance")]

    on_broker(script)


def test_a_member_that_is_gone_while_it_waits_does_not_stop_the_others() -> None:
    async def script(scene: Scene) -> None:
        await _ready(scene)
        stays, goes = await members(scene, 2)
        joining = asyncio.create_task(stays.settle(4))
        answer = await goes.talker.ask(9, join_request())
        goes.talker.begin(9, join_request(member_id=answer.member_id)).cancel()
        await asyncio.sleep(0.1)
        goes.talker.connection.abort()
        await joining
        assert stays.generation >= 1

    on_broker(script)

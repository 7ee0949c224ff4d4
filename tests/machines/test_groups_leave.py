"""LeaveGroup in classic groups: single members, batches, admins."""

import pytest
from groups_scene import Scene

from moldau.machines.groups.classic.group import Phase
from moldau.model.errors import ErrorCode, InvalidGroupId
from moldau.wire import messages


def test_leave_responds_at_once_and_others_rebalance() -> None:
    scene = Scene()
    leader, follower = scene.settle(None, None)
    assert scene.leave((leader, None)) == [ErrorCode.NONE]
    assert scene.heartbeat(follower, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    response = scene.responses[scene.send_join(follower)]
    assert (response.generation_id, response.leader) == (2, follower)


def test_last_member_leaves_an_empty_group() -> None:
    scene = Scene()
    (member_id,) = scene.settle()
    scene.leave((member_id, None))
    stored = scene.machine.state.classic["g"]
    assert (stored.generation, list(stored.members), stored.current_state_timestamp) == (2, [], scene.wall_ms)
    assert not [event for event in scene.timers if "g" in str(getattr(event, "group_id", ""))]


def test_batch_leave_returns_an_error_per_member() -> None:
    scene = Scene()
    leader, two, three = scene.settle("one", "two", None)
    pending = scene.new_id()
    responses = scene.leave(
        ("", "one"), (two, "two"), (three, None), (pending, None), ("mallory", None), ("", "x"), ("", None)
    )
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    assert responses == [0, 0, 0, 0, unknown, unknown, unknown]
    assert scene.machine.state.classic["g"].generation == 2
    assert scene.heartbeat(leader, 1) == unknown


def test_leave_response_names_each_member() -> None:
    scene = Scene()
    leader, _ = scene.settle("one", "two")
    identity = messages.LeaveGroupRequest.MemberIdentity(member_id=leader, group_instance_id="one")
    request = messages.LeaveGroupRequest(group_id="g", members=[identity])
    (member,) = scene.run(lambda: scene.machine.decide_leave(request, api_version=3, now=scene.now)).members
    assert (member.member_id, member.group_instance_id) == (leader, "one")


@pytest.mark.parametrize(("is_member", "error"), [(True, ErrorCode.NONE), (False, ErrorCode.UNKNOWN_MEMBER_ID)])
def test_version_2_leaves_for_the_sender_only(is_member: bool, error: ErrorCode) -> None:
    scene = Scene()
    (member_id,) = scene.settle()
    request = messages.LeaveGroupRequest(group_id="g", member_id=member_id if is_member else "mallory")
    response = scene.run(lambda: scene.machine.decide_leave(request, api_version=2, now=scene.now))
    assert (response.error_code, len(response.members)) == (error, 0)


def test_leave_of_an_unknown_group_is_rejected() -> None:
    scene = Scene()
    assert scene.leave(("a", None), ("", "b")) == [ErrorCode.UNKNOWN_MEMBER_ID] * 2
    with pytest.raises(InvalidGroupId):
        scene.leave(("a", None), group_id="")


def test_leave_of_empty_group_is_rejected() -> None:
    scene = Scene()
    (member_id,) = scene.settle()
    scene.leave((member_id, None))
    assert scene.leave((member_id, None)) == [ErrorCode.UNKNOWN_MEMBER_ID]


def test_leave_fails_the_members_waiting_join() -> None:
    scene = Scene()
    leader, follower = scene.settle(None, None)
    newcomer, ticket = scene.enter()
    joins = [scene.send_join(each) for each in (leader,)]
    assert scene.leave((newcomer, None), (follower, None)) == [0, 0]
    assert scene.error(ticket) == ErrorCode.UNKNOWN_MEMBER_ID
    assert scene.responses[joins[0]].generation_id == 2


def test_leave_fails_the_members_waiting_sync() -> None:
    scene = Scene()
    tickets = [scene.enter()[1] for _ in range(2)]
    scene.pass_time(6_000)
    follower = scene.responses[tickets[1]].member_id
    sync = scene.send_sync(follower, 1)
    scene.leave((follower, None))
    assert scene.error(sync) == ErrorCode.UNKNOWN_MEMBER_ID


def test_rejected_leave_causes_no_rebalance() -> None:
    scene = Scene()
    scene.settle(None, None)
    scene.leave(("mallory", None))
    assert scene.group().phase is Phase.STABLE


def test_pending_member_leaves_without_a_rebalance() -> None:
    scene = Scene()
    scene.settle(None, None)
    pending = scene.new_id()
    assert scene.leave((pending, None)) == [ErrorCode.NONE]
    assert scene.group().phase is Phase.STABLE
    assert not scene.group().pending


def test_pending_member_that_leaves_is_not_awaited() -> None:
    scene = Scene()
    leader, follower = scene.settle(None, None)
    pending = scene.new_id()
    tickets = [scene.send_join(each, protocols=[("range", b"other")]) for each in (leader, follower)]
    assert set(tickets) <= scene.waiting
    scene.leave((pending, None))
    assert not scene.waiting


def test_expired_pending_id_is_not_awaited() -> None:
    scene = Scene()
    leader, follower = scene.settle(None, None)
    scene.new_id(session_ms=6_000)
    scene.send_join(leader)
    scene.send_join(follower)
    assert scene.waiting
    scene.pass_time(6_000)
    assert not scene.waiting

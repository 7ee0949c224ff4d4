"""Static members (KIP-345): a restart causes no rebalance, and an instance id has one member."""

from collections.abc import Hashable
from typing import Any

import pytest
from groups_scene import REBALANCE_MS, SESSION_MS, Scene

from moldau.machines.groups import GroupSettings
from moldau.machines.groups.classic.group import Phase
from moldau.model.errors import ErrorCode


def test_static_member_needs_no_second_join() -> None:
    scene = Scene()
    ticket = scene.send_join(instance_id="one")
    scene.pass_time(3_000)
    assert scene.responses[ticket].member_id.startswith("one-")
    assert scene.responses[ticket].members[0].group_instance_id == "one"


@pytest.mark.proves("C5")
def test_restarted_static_follower_gets_its_assignment_without_a_rebalance() -> None:
    scene = Scene()
    leader, follower = scene.settle("one", "two")
    response = scene.responses[scene.send_join(instance_id="two")]
    assert (response.error_code, response.generation_id, response.leader, response.members) == (0, 1, leader, [])
    assert response.member_id != follower
    assert scene.heartbeat(leader, 1, instance_id="one") == ErrorCode.NONE
    sync = scene.send_sync(response.member_id, 1, instance_id="two")
    assert scene.responses[sync].assignment == follower.encode()
    assert {each.member_id for each in scene.machine.state.classic["g"].members} == {leader, response.member_id}


def test_restarted_static_leader_gets_skip_assignment() -> None:
    scene = Scene()
    leader, follower = scene.settle("one", "two")
    response = scene.responses[scene.send_join(instance_id="one")]
    assert response.skip_assignment
    assert response.leader == response.member_id == scene.group().leader
    assert {each.member_id for each in response.members} == {response.member_id, follower}
    assert scene.responses[scene.send_sync(response.member_id, 1)].assignment == leader.encode()
    assert scene.group().phase is Phase.STABLE


def test_static_leader_of_old_version_appears_as_follower() -> None:
    scene = Scene()
    leader, _ = scene.settle("one", "two")
    response = scene.responses[scene.send_join(instance_id="one", version=8)]
    assert (response.skip_assignment, response.leader, response.members) == (False, leader, [])
    assert scene.group().leader == response.member_id


def test_full_group_accepts_a_restarted_static_member() -> None:
    scene = Scene(GroupSettings(group_max_size=2))
    scene.settle("one", "two")
    assert scene.error(scene.send_join(instance_id="two")) == ErrorCode.NONE
    assert scene.error(scene.send_join(instance_id="three")) == ErrorCode.GROUP_MAX_SIZE_REACHED


@pytest.mark.proves("C5")
def test_old_id_is_fenced_after_a_restart() -> None:
    scene = Scene()
    _, follower = scene.settle("one", "two")
    scene.send_join(instance_id="two")
    fenced = ErrorCode.FENCED_INSTANCE_ID
    assert scene.heartbeat(follower, 1, instance_id="two") == fenced
    assert scene.error(scene.send_sync(follower, 1, instance_id="two")) == fenced
    assert scene.error(scene.send_join(follower, instance_id="two")) == fenced
    assert scene.commit(1, member_id=follower, generation=1, instance_id="two") == fenced
    assert scene.leave((follower, "two")) == [fenced]
    assert scene.heartbeat(follower, 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_join_waiting_under_the_old_id_is_fenced() -> None:
    scene = Scene()
    waiting = scene.send_join(instance_id="one")
    scene.send_join(instance_id="one")
    assert scene.error(waiting) == ErrorCode.FENCED_INSTANCE_ID
    scene.pass_time(6_000)
    (member_id,) = scene.group().members
    assert scene.heartbeat(member_id, 1, instance_id="one") == ErrorCode.NONE


def test_sync_waiting_under_the_old_id_is_fenced() -> None:
    scene = Scene()
    tickets = [scene.send_join(instance_id=each) for each in ("one", "two")]
    scene.pass_time(6_000)
    follower = scene.responses[tickets[1]].member_id
    sync = scene.send_sync(follower, 1, instance_id="two")
    ticket = scene.send_join(instance_id="two")
    assert scene.error(sync) == ErrorCode.FENCED_INSTANCE_ID
    assert ticket in scene.waiting  # the leader may be assigning to the old id, so the generation is restarted
    assert scene.group().phase is Phase.PREPARING


def test_restart_during_a_rebalance_joins_it() -> None:
    scene = Scene()
    leader, _ = scene.settle("one", "two")
    first = scene.send_join(leader, instance_id="one")
    second = scene.send_join(instance_id="two")
    assert {scene.responses[each].generation_id for each in (first, second)} == {2}


def test_restart_with_another_subscription_keeps_the_generation() -> None:
    scene = Scene()
    scene.settle("one", "two")
    scene.send_join(instance_id="two", protocols=[("range", b"other")])
    assert scene.group().phase is Phase.STABLE
    assert [each.subscription for each in scene.machine.state.classic["g"].members] == [b"r", b"other"]


@pytest.mark.proves("A1")
def test_restart_that_the_log_could_not_hold_triggers_a_rebalance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moldau.machines.groups.classic.group.DECISION_BYTES_MAX", 100)
    scene = Scene()
    leader, _ = scene.settle("one", "two")
    count = len(scene.log)
    scene.send_join(instance_id="two", protocols=[("range", bytes(101))])
    assert len(scene.log) == count
    assert scene.heartbeat(leader, 1) == ErrorCode.REBALANCE_IN_PROGRESS


def test_restart_that_changes_the_assignor_triggers_a_rebalance() -> None:
    scene = Scene()
    both = [("range", b""), ("sticky", b"")]
    leader, _ = scene.settle("one", "two", protocols=both)
    ticket = scene.send_join(instance_id="two", protocols=[("sticky", b"")])
    assert scene.heartbeat(leader, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    scene.send_join(leader, instance_id="one", protocols=both)
    assert scene.responses[ticket].protocol_name == "sticky"


def test_absent_static_member_stays_through_a_rebalance() -> None:
    scene = Scene()
    leader, away = scene.settle("one", "two", session_ms=5 * REBALANCE_MS)
    ticket = scene.send_join(leader, instance_id="one", session_ms=5 * REBALANCE_MS)
    scene.pass_time(REBALANCE_MS)
    response = scene.responses[ticket]
    assert {each.member_id for each in response.members} == {leader, away}
    scene.send_sync(leader, 2, [(leader, b"some"), (away, b"rest")])
    scene.pass_time(2 * REBALANCE_MS)  # its sync is not awaited either
    assert scene.group().phase is Phase.STABLE
    back = scene.responses[scene.send_join(instance_id="two", session_ms=5 * REBALANCE_MS)]
    assert scene.responses[scene.send_sync(back.member_id, 2)].assignment == b"rest"


def test_absent_static_leader_does_not_lead_the_next_generation() -> None:
    scene = Scene()
    _, follower = scene.settle("one", "two", session_ms=5 * REBALANCE_MS)
    ticket = scene.send_join(follower, instance_id="two", protocols=[("range", b"other")], session_ms=5 * REBALANCE_MS)
    scene.pass_time(REBALANCE_MS)
    assert scene.responses[ticket].leader == follower


def test_absent_static_members_remain_until_their_sessions_expire() -> None:
    scene = Scene()
    _, _, dynamic = scene.settle("one", "two", None, session_ms=3 * REBALANCE_MS)
    scene.leave((dynamic, None))
    scene.pass_time(2 * REBALANCE_MS)
    assert scene.group().phase is Phase.PREPARING
    assert len(scene.group().members) == 2
    scene.pass_time(2 * REBALANCE_MS)
    assert not scene.machine.state.classic["g"].members


def test_silent_static_member_expires() -> None:
    scene = Scene()
    leader, _ = scene.settle("one", "two")
    scene.pass_time(SESSION_MS - 1)
    scene.heartbeat(leader, 1)
    scene.pass_time(1)
    assert list(scene.group().static_ids) == ["one"]


def test_unused_instance_id_is_unknown() -> None:
    scene = Scene()
    leader, _ = scene.settle("one", "two")
    assert scene.error(scene.send_join(leader, instance_id="three")) == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.proves("C5")
def test_static_member_may_restart_after_a_failover() -> None:
    scene = Scene()
    _, follower = scene.settle("one", "two")
    scene.elect()
    response = scene.responses[scene.send_join(instance_id="two")]
    assert response.generation_id == 1
    assert scene.responses[scene.send_sync(response.member_id, 1)].assignment == follower.encode()
    scene.elect()
    assert scene.heartbeat(follower, 1, instance_id="two") == ErrorCode.FENCED_INSTANCE_ID


@pytest.mark.parametrize("phase", ["stable", "gathering"])
def test_restart_extends_the_session(phase: str) -> None:
    scene = Scene()
    leader, _ = scene.settle("one", "two", rebalance_ms=3 * SESSION_MS)
    if phase == "gathering":
        scene.send_join(leader, instance_id="one")
    scene.pass_time(SESSION_MS - 1)
    scene.send_join(instance_id="two")
    scene.pass_time(1)
    assert "two" in scene.group().static_ids


@pytest.mark.proves("C5", part="a new member gets partitions")
def test_static_member_with_zero_rebalance_timeout_causes_no_busy_timer() -> None:
    scene = Scene()
    ticket = scene.send_join(instance_id="one", session_ms=1_800_000)
    scene.pass_time(3_000)
    member_id = scene.responses[ticket].member_id
    scene.send_sync(member_id, 1, [(member_id, b"all")], instance_id="one")
    scene.send_join(instance_id="one", session_ms=1_800_000, rebalance_ms=0)
    scene.send_join(version=3, rebalance_ms=0)  # it is awaited no longer than the others, and is alone then
    looks = 0
    decide_timed_out = scene.machine.decide_timed_out

    def counted(event: Hashable, now_ms: float) -> Any:
        nonlocal looks
        looks += 1
        assert looks < 20, "it spins"
        return decide_timed_out(event, now_ms)

    scene.machine.decide_timed_out = counted  # type: ignore[method-assign]
    scene.pass_time(5_000)
    assert looks >= 5

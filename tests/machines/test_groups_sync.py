"""SyncGroup and Heartbeat in classic groups: assignments and session timeouts."""

import pytest
from groups_scene import REBALANCE_MS, SESSION_MS, Scene

from moldau.machines.decision import Ticket
from moldau.machines.groups.classic.group import Phase
from moldau.model.errors import ErrorCode
from moldau.wire import messages


def gathered(scene: Scene, count: int = 2, **options: object) -> list[str]:
    """Return a generation that waits for its leader: the ids of its members, the leader's first."""
    tickets = [scene.enter(**options)[1] for _ in range(count)]
    while tickets[0] in scene.waiting:
        scene.pass_time(500)
    responses: list[messages.JoinGroupResponse] = [scene.responses[each] for each in tickets]
    return sorted((each.member_id for each in responses), key=lambda each: each != responses[0].leader)


def test_members_get_the_leaders_assignment() -> None:
    scene = Scene()
    leader, follower = gathered(scene)
    early = scene.send_sync(follower, 1)
    assert early in scene.waiting
    last = scene.send_sync(leader, 1, [(leader, b"mine"), (follower, b"yours")])
    assert (scene.responses[early].assignment, scene.responses[last].assignment) == (b"yours", b"mine")
    assert (scene.responses[last].protocol_type, scene.responses[last].protocol_name) == ("consumer", "range")
    stored = scene.machine.state.classic["g"]
    assert (stored.generation, stored.protocol, stored.leader) == (1, "range", leader)
    assert {each.member_id: each.assignment for each in stored.members} == {leader: b"mine", follower: b"yours"}


@pytest.mark.proves("C2")
def test_assignment_is_written_before_the_response() -> None:
    scene = Scene()
    leader, _ = gathered(scene)
    request = messages.SyncGroupRequest(group_id="g", generation_id=1, member_id=leader)
    decision = scene.machine.decide_sync(request, ticket=Ticket(99), now=scene.now)
    assert len(decision.records) == 1
    assert Ticket(99) in decision.responses


def test_assignment_covers_members_only() -> None:
    scene = Scene()
    leader, follower = gathered(scene)
    scene.send_sync(leader, 1, [("mallory", b"all of it"), (leader, b"mine")])
    assert scene.responses[scene.send_sync(follower, 1)].assignment == b""
    assert {each.member_id for each in scene.machine.state.classic["g"].members} == {leader, follower}


@pytest.mark.proves("C2")
def test_only_the_leader_assigns() -> None:
    scene = Scene()
    leader, follower = gathered(scene)
    ticket = scene.send_sync(follower, 1, [(follower, b"all of it")])
    assert ticket in scene.waiting
    scene.send_sync(leader, 1, [(follower, b"some")])
    assert scene.responses[ticket].assignment == b"some"


def test_late_sync_gets_the_assignment() -> None:
    scene = Scene()
    leader, follower = scene.settle(None, None)
    assert scene.responses[scene.send_sync(follower, 1)].assignment == follower.encode()
    assert scene.responses[scene.send_sync(leader, 1)].assignment == leader.encode()


def test_leader_of_a_stable_group_does_not_assign_again() -> None:
    scene = Scene()
    leader, follower = scene.settle(None, None)
    scene.send_sync(leader, 1, [(leader, b"all of it")])
    assert scene.responses[scene.send_sync(follower, 1)].assignment == follower.encode()


def test_later_sync_of_a_member_replaces_the_earlier() -> None:
    scene = Scene()
    leader, follower = gathered(scene)
    first, second = scene.send_sync(follower, 1), scene.send_sync(follower, 1)
    assert scene.error(first) == ErrorCode.REBALANCE_IN_PROGRESS
    scene.send_sync(leader, 1, [(follower, b"some")])
    assert scene.responses[second].assignment == b"some"


@pytest.mark.proves("C2")
@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group_id": "other"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "mallory"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"instance_id": "unknown"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation": 0}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation": 2}, ErrorCode.ILLEGAL_GENERATION),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_name": "sticky"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": None, "protocol_name": None}, ErrorCode.NONE),
    ],
)
def test_sync_that_does_not_fit_the_generation_is_rejected(options: dict[str, object], error: ErrorCode) -> None:
    scene = Scene()
    leader, _ = scene.settle(None, None)
    assert scene.error(scene.send_sync(**{"member_id": leader, "generation": 1, **options})) == error  # type: ignore[arg-type]


def test_sync_during_a_rebalance_requires_a_rejoin() -> None:
    scene = Scene()
    leader, follower = scene.settle(None, None)
    scene.send_join(leader)
    assert scene.error(scene.send_sync(follower, 1)) == ErrorCode.REBALANCE_IN_PROGRESS


def test_assignment_that_the_log_could_not_hold_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moldau.machines.groups.classic.group.DECISION_BYTES_MAX", 100)
    scene = Scene()
    leader, follower = gathered(scene)
    assert scene.error(scene.send_sync(leader, 1, [(follower, bytes(101))])) == ErrorCode.UNKNOWN_SERVER_ERROR
    assert not scene.log
    assert scene.error(scene.send_sync(leader, 1, [(follower, bytes(50))])) == ErrorCode.NONE


def test_new_member_fails_waiting_syncs_with_rebalance() -> None:
    scene = Scene()
    leader, follower = gathered(scene)
    sync = scene.send_sync(follower, 1)
    _, ticket = scene.enter()
    assert scene.error(sync) == ErrorCode.REBALANCE_IN_PROGRESS
    others = [scene.send_join(each) for each in (leader, follower)]
    assert {scene.responses[each].generation_id for each in (ticket, *others)} == {2}


def test_member_that_does_not_sync_is_evicted() -> None:
    scene = Scene()
    leader, silent, follower = gathered(scene, 3, session_ms=5 * REBALANCE_MS)
    scene.send_sync(leader, 1)
    scene.send_sync(follower, 1)
    scene.pass_time(REBALANCE_MS - 1)
    assert scene.group().phase is Phase.STABLE
    scene.pass_time(1)
    assert scene.group().phase is Phase.PREPARING
    assert silent not in scene.group().members
    assert scene.heartbeat(follower, 1) == ErrorCode.REBALANCE_IN_PROGRESS


def test_leader_that_never_assigns_is_replaced() -> None:
    scene = Scene()
    leader, follower = gathered(scene, session_ms=5 * REBALANCE_MS)
    sync = scene.send_sync(follower, 1)
    scene.pass_time(REBALANCE_MS)
    assert scene.error(sync) == ErrorCode.REBALANCE_IN_PROGRESS
    response = scene.responses[scene.send_join(follower)]
    assert (response.generation_id, response.leader) == (2, follower)
    assert scene.error(scene.send_join(leader)) == ErrorCode.UNKNOWN_MEMBER_ID


def test_no_member_is_evicted_once_all_have_synced() -> None:
    scene = Scene()
    ids = scene.settle(None, None, session_ms=5 * REBALANCE_MS)
    scene.pass_time(2 * REBALANCE_MS)
    assert list(scene.group().members) == ids


class TestHeartbeats:
    @pytest.mark.parametrize(
        ("options", "error"),
        [
            ({}, ErrorCode.NONE),
            ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
            ({"group_id": "other"}, ErrorCode.UNKNOWN_MEMBER_ID),
            ({"member_id": "mallory"}, ErrorCode.UNKNOWN_MEMBER_ID),
            ({"member_id": ""}, ErrorCode.UNKNOWN_MEMBER_ID),
            ({"instance_id": "unknown"}, ErrorCode.UNKNOWN_MEMBER_ID),
            ({"generation": 0}, ErrorCode.ILLEGAL_GENERATION),
            ({"generation": 2}, ErrorCode.ILLEGAL_GENERATION),
        ],
    )
    def test_heartbeat_checks_member_and_generation(self, options: dict[str, object], error: ErrorCode) -> None:
        scene = Scene()
        leader, _ = scene.settle(None, None)
        assert scene.heartbeat(**{"member_id": leader, "generation": 1, **options}) == error  # type: ignore[arg-type]

    def test_heartbeat_of_a_pending_member_is_unknown(self) -> None:
        scene = Scene()
        scene.settle()
        assert scene.heartbeat(scene.new_id(), 1) == ErrorCode.UNKNOWN_MEMBER_ID

    def test_heartbeat_is_accepted_while_the_leader_assigns(self) -> None:
        scene = Scene()
        leader, follower = gathered(scene)
        assert [scene.heartbeat(each, 1) for each in (leader, follower)] == [0, 0]

    @pytest.mark.proves("C5")
    def test_heartbeats_extend_the_session_in_every_phase(self) -> None:
        scene = Scene()
        leader, follower = gathered(scene, rebalance_ms=4 * SESSION_MS)
        for _ in range(3):
            scene.pass_time(SESSION_MS - 1)
            scene.heartbeat(leader, 1)
            scene.heartbeat(follower, 1)
        scene.sync_all({Ticket(0): scene.responses[scene.send_join(leader)]})
        scene.send_join(leader)
        for _ in range(3):
            scene.pass_time(SESSION_MS - 1)
            assert scene.heartbeat(follower, 1) == ErrorCode.REBALANCE_IN_PROGRESS
        assert list(scene.group().members) == [leader, follower]

    def test_heartbeat_writes_nothing_and_moves_no_timer(self) -> None:
        scene = Scene()
        leader, _ = scene.settle(None, None)
        request = messages.HeartbeatRequest(group_id="g", member_id=leader, generation_id=1)
        decision = scene.machine.decide_heartbeat(request, scene.now_ms)
        assert (decision.records, decision.timers, decision.effects) == ((), (), ())

    def test_member_without_heartbeats_is_evicted(self) -> None:
        scene = Scene()
        leader, silent = scene.settle(None, None)
        scene.pass_time(SESSION_MS - 1)
        assert scene.heartbeat(leader, 1) == ErrorCode.NONE
        scene.pass_time(1)
        assert list(scene.group().members) == [leader]
        assert scene.heartbeat(leader, 1) == ErrorCode.REBALANCE_IN_PROGRESS
        assert scene.heartbeat(silent, 1) == ErrorCode.UNKNOWN_MEMBER_ID

    def test_group_is_empty_once_all_members_expire(self) -> None:
        scene = Scene()
        scene.settle(None, None)
        scene.pass_time(SESSION_MS)
        stored = scene.machine.state.classic["g"]
        assert (stored.generation, list(stored.members), stored.leader, stored.protocol) == (2, [], None, None)
        assert stored.protocol_type == "consumer"
        assert not scene.machine._classic.live

    @pytest.mark.proves("C5")
    def test_each_member_has_its_own_session(self) -> None:
        scene = Scene()
        patient, ticket = scene.enter(session_ms=3 * SESSION_MS)
        _, other = scene.enter()
        scene.pass_time(6_000)
        scene.sync_all({each: scene.responses[each] for each in (ticket, other)})
        scene.pass_time(SESSION_MS)
        assert list(scene.group().members) == [patient]


def test_stalled_node_evicts_no_member() -> None:
    scene = Scene()
    leader, follower = scene.settle(None, None)
    pending = scene.new_id()
    scene.now_ms += 3 * SESSION_MS  # and no timer fired
    scene.pass_time(0)
    assert [scene.heartbeat(each, 1) for each in (leader, follower)] == [0, 0]
    assert pending in scene.group().pending
    scene.pass_time(SESSION_MS)
    assert not scene.machine._classic.live


def test_after_a_failover_sessions_restart_and_the_generation_continues() -> None:
    scene = Scene()
    leader, follower = scene.settle(None, None)
    scene.pass_time(SESSION_MS - 1)
    scene.elect()
    scene.pass_time(SESSION_MS - 1)
    assert [scene.heartbeat(each, 1) for each in (leader, follower)] == [0, 0]
    assert scene.responses[scene.send_sync(follower, 1)].assignment == follower.encode()
    assert scene.responses[scene.send_join(follower)].leader == leader


def test_absent_members_are_evicted_after_a_failover() -> None:
    scene = Scene()
    leader, follower = scene.settle(None, None)
    scene.elect()
    scene.pass_time(SESSION_MS - 1)
    scene.heartbeat(leader, 1)
    scene.pass_time(1)
    assert follower not in scene.group().members


def test_unwritten_assignment_is_lost_in_a_failover() -> None:
    scene = Scene()
    leader, follower = scene.settle(None, None)
    scene.send_join(leader)
    scene.send_join(follower)
    assert scene.group().generation == 2
    scene.elect()
    assert scene.error(scene.send_sync(leader, 2, [(leader, b"new")])) == ErrorCode.ILLEGAL_GENERATION
    assert scene.heartbeat(follower, 1) == ErrorCode.NONE

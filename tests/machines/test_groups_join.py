"""JoinGroup in classic groups: admission, rebalances, errors."""

import pytest
from groups_scene import REBALANCE_MS, SESSION_MS, Scene

from moldau.machines.groups import GroupSettings
from moldau.machines.groups.classic.group import Phase
from moldau.machines.groups.ids import member_id_from
from moldau.model.errors import ErrorCode
from moldau.model.units import MINUTE_MS

DELAY_MS = 3_000


def test_new_member_gets_an_id_and_rejoins_with_it() -> None:
    scene = Scene()
    response = scene.responses[scene.send_join(client_id="reader")]
    assert response.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert response.member_id.startswith("reader-")
    ticket = scene.send_join(response.member_id)
    scene.pass_time(DELAY_MS)
    assert (scene.responses[ticket].error_code, scene.responses[ticket].member_id) == (0, response.member_id)


def test_new_member_joins_at_once_before_version_4() -> None:
    scene = Scene()
    ticket = scene.send_join(version=3)
    scene.pass_time(DELAY_MS)
    assert scene.responses[ticket].generation_id == 1


def test_assigned_id_expires_with_the_session_timeout() -> None:
    scene = Scene()
    member_id = scene.new_id()
    assert list(scene.group().pending) == [member_id]
    scene.pass_time(SESSION_MS)
    assert scene.machine.group("g") is None
    assert scene.error(scene.send_join(member_id)) == ErrorCode.UNKNOWN_MEMBER_ID


def test_member_id_has_sixteen_random_bytes() -> None:
    with pytest.raises(ValueError, match="16"):
        member_id_from("client", b"short")


@pytest.mark.proves("A1")
@pytest.mark.parametrize("character", ["x", "🐢"])
def test_member_id_never_exceeds_the_string_limit(character: str) -> None:
    name = character * (32_767 // len(character.encode()))
    assert 32_000 > len(member_id_from(name, bytes(16)).encode()) - 40 > 7_900


@pytest.mark.parametrize("group_id", ["g", "other"])
def test_unassigned_member_id_is_unknown(group_id: str) -> None:
    scene = Scene()
    scene.settle()
    ticket = scene.send_join("mallory", group_id=group_id)
    assert scene.error(ticket) == ErrorCode.UNKNOWN_MEMBER_ID
    assert scene.responses[ticket].member_id == "mallory"


@pytest.mark.proves("C5", part="static members")
def test_pending_id_does_not_share_an_instance_id() -> None:
    scene = Scene()
    (holder,) = scene.settle("one")
    ticket = scene.send_join(scene.new_id(), instance_id="one")
    assert scene.error(ticket) in (ErrorCode.FENCED_INSTANCE_ID, ErrorCode.UNKNOWN_MEMBER_ID)
    group = scene.group()
    assert group.static_ids == {"one": holder}
    assert [each.member_id for each in group.members.values() if each.instance_id == "one"] == [holder]


def test_member_of_an_empty_group_is_unknown() -> None:
    scene = Scene()
    (member_id,) = scene.settle()
    scene.leave((member_id, None))
    assert scene.error(scene.send_join(member_id)) == ErrorCode.UNKNOWN_MEMBER_ID


def test_empty_group_id_is_invalid() -> None:
    assert (scene := Scene()).error(scene.send_join(group_id="")) == ErrorCode.INVALID_GROUP_ID


@pytest.mark.proves("A1")
def test_member_metadata_beyond_batch_size_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moldau.machines.groups.machine.JOIN_BYTES_MAX", 100)
    scene = Scene()
    protocols = [("range", bytes(50)), ("sticky", bytes(51))]
    assert scene.error(scene.send_join(protocols=protocols)) == ErrorCode.UNKNOWN_SERVER_ERROR
    assert scene.error(scene.send_join(protocols=protocols[:1])) == ErrorCode.MEMBER_ID_REQUIRED


@pytest.mark.parametrize(("session_ms", "is_accepted"), [(5_999, False), (6_000, True), (30 * MINUTE_MS, True)])
def test_session_timeout_has_bounds(session_ms: int, is_accepted: bool) -> None:
    scene = Scene()
    error = scene.error(scene.send_join(session_ms=session_ms))
    assert error == (ErrorCode.MEMBER_ID_REQUIRED if is_accepted else ErrorCode.INVALID_SESSION_TIMEOUT)
    assert scene.error(scene.send_join(session_ms=30 * MINUTE_MS + 1)) == ErrorCode.INVALID_SESSION_TIMEOUT


@pytest.mark.parametrize(
    "options",
    [
        {"protocol_type": "connect"},
        {"protocols": [("sticky", b"")]},
        {"protocols": []},
        {"protocol_type": ""},
    ],
)
@pytest.mark.parametrize("is_known", [True, False])
def test_members_need_a_common_type_and_assignor(options: dict[str, object], is_known: bool) -> None:
    scene = Scene()
    leader, _ = scene.settle(None, None)
    member_id = leader if is_known else ""
    assert scene.error(scene.send_join(member_id, **options)) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL  # type: ignore[arg-type]
    assert scene.group().phase is Phase.STABLE


@pytest.mark.parametrize("options", [{"protocols": []}, {"protocol_type": ""}])
def test_first_member_needs_a_type_and_an_assignor(options: dict[str, object]) -> None:
    scene = Scene()
    assert scene.error(scene.send_join(**options)) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL  # type: ignore[arg-type]
    assert scene.machine.group("g") is None


def test_empty_group_may_change_its_type() -> None:
    scene = Scene()
    (member_id,) = scene.settle()
    scene.leave((member_id, None))
    scene.settle(protocol_type="connect", protocols=[("eager", b"")])
    assert scene.machine.state.classic["g"].protocol_type == "connect"


def test_common_assignor_with_the_most_votes_is_chosen() -> None:
    scene = Scene()
    a, b, c = (b"a", b"b", b"c")
    tickets = [
        scene.enter(protocols=[("sticky", a), ("range", a), ("mine", a)])[1],
        scene.enter(protocols=[("range", b), ("sticky", b)])[1],
        scene.enter(protocols=[("range", c), ("sticky", c), ("mine", c)])[1],
    ]
    scene.pass_time(3 * DELAY_MS)
    responses = [scene.responses[ticket] for ticket in tickets]
    assert {each.protocol_name for each in responses} == {"range"}
    assert {each.protocol_type for each in responses} == {"consumer"}
    leader, *others = sorted(responses, key=lambda each: each.leader != each.member_id)
    assert [each.metadata for each in leader.members] == [a, b, c]
    assert all(not each.members and each.leader == leader.member_id for each in others)


def test_repeated_assignor_counts_once() -> None:
    scene = Scene()
    scene.settle(protocols=[("range", b"1"), ("range", b"2")])
    assert scene.group().support == {"range": 1}
    assert scene.machine.state.classic["g"].members[0].subscription == b"1"


class TestInitialRebalanceDelay:
    def test_delay_ends_without_further_joins(self) -> None:
        scene = Scene()
        _, ticket = scene.enter()
        scene.pass_time(DELAY_MS - 1)
        assert ticket in scene.waiting
        scene.pass_time(1)
        assert scene.responses[ticket].generation_id == 1

    def test_delay_is_extended_by_new_members(self) -> None:
        scene = Scene()
        first = scene.enter()[1]
        scene.pass_time(DELAY_MS - 1)
        second = scene.enter()[1]
        scene.pass_time(1)
        assert {first, second} <= scene.waiting
        scene.pass_time(DELAY_MS)
        assert {scene.responses[each].generation_id for each in (first, second)} == {1}

    def test_delay_is_limited_by_the_rebalance_timeout(self) -> None:
        scene = Scene()
        first = scene.enter(rebalance_ms=2 * DELAY_MS + 500)[1]
        for _ in range(2):
            scene.pass_time(DELAY_MS - 200)
            scene.enter()
            scene.pass_time(100)
        scene.enter()
        scene.pass_time(699)
        assert first in scene.waiting
        scene.pass_time(1)
        assert first not in scene.waiting

    def test_burst_of_joins_costs_one_delay(self) -> None:
        scene = Scene()
        first = scene.enter()[1]
        scene.pass_time(100)
        second = scene.enter()[1]
        scene.pass_time(DELAY_MS - 1)
        assert {first, second} <= scene.waiting
        scene.pass_time(1)
        assert {scene.responses[each].generation_id for each in (first, second)} == {1}

    def test_first_member_is_alone_without_a_delay(self) -> None:
        scene = Scene(GroupSettings(group_initial_rebalance_delay_ms=0))
        ticket = scene.enter()[1]
        scene.pass_time(0)
        assert scene.responses[ticket].generation_id == 1

    def test_pending_member_does_not_extend_the_delay(self) -> None:
        scene = Scene()
        ticket = scene.enter()[1]
        scene.new_id()
        scene.pass_time(DELAY_MS)
        assert ticket not in scene.waiting

    def test_all_members_may_leave_during_the_delay(self) -> None:
        scene = Scene()
        member_id, ticket = scene.enter()
        assert scene.leave((member_id, None)) == [0]
        assert scene.error(ticket) == ErrorCode.UNKNOWN_MEMBER_ID
        scene.enter(protocol_type="connect")  # there is no protocol to match
        scene.pass_time(2 * DELAY_MS)
        assert scene.group().phase is Phase.COMPLETING


class TestFullGroup:
    def test_new_members_are_rejected_when_stable(self) -> None:
        scene = Scene(GroupSettings(group_max_size=2))
        scene.settle(None, None)
        ticket = scene.send_join()
        assert (scene.error(ticket), scene.responses[ticket].member_id) == (ErrorCode.GROUP_MAX_SIZE_REACHED, "")
        assert scene.group().phase is Phase.STABLE

    def test_last_joins_are_rejected_during_a_rebalance(self) -> None:
        scene = Scene(GroupSettings(group_max_size=2))
        ids = [scene.new_id() for _ in range(3)]
        tickets = [scene.send_join(each) for each in ids]
        assert scene.error(tickets[2]) == ErrorCode.GROUP_MAX_SIZE_REACHED
        scene.pass_time(2 * DELAY_MS)
        assert [scene.error(each) for each in tickets[:2]] == [0, 0]
        assert list(scene.group().members) == ids[:2]

    def test_rejected_members_are_not_awaited(self) -> None:
        scene = Scene(GroupSettings(group_max_size=2))
        (leader,) = scene.settle()
        one, two = scene.new_id(), scene.new_id()
        tickets = [scene.send_join(one), scene.send_join(leader)]
        assert set(tickets) == scene.waiting
        assert scene.error(scene.send_join(two)) == ErrorCode.GROUP_MAX_SIZE_REACHED
        assert [scene.responses[each].generation_id for each in tickets] == [2, 2]

    def test_waiting_member_may_retry(self) -> None:
        scene = Scene(GroupSettings(group_max_size=1))
        member_id, first = scene.enter()
        again = scene.send_join(member_id)
        assert scene.error(first) == ErrorCode.REBALANCE_IN_PROGRESS
        scene.pass_time(DELAY_MS)
        assert scene.error(again) == ErrorCode.NONE

    def test_oversized_group_shrinks_when_it_is_loaded(self) -> None:
        scene = Scene()
        ids = scene.settle(None, None, None)
        scene.settings = GroupSettings(group_max_size=2)
        scene.elect()
        assert scene.heartbeat(ids[0], 1) == ErrorCode.REBALANCE_IN_PROGRESS
        tickets = [scene.send_join(each) for each in ids]
        assert [scene.error(each) for each in tickets] == [0, 0, ErrorCode.GROUP_MAX_SIZE_REACHED]
        assert list(scene.group().members) == ids[:2]

    def test_pending_member_ids_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("moldau.machines.groups.classic.join.PENDING_MAX", 3)
        scene = Scene()
        ids = [scene.new_id() for _ in range(3)]
        assert scene.error(scene.send_join()) == ErrorCode.GROUP_MAX_SIZE_REACHED
        scene.send_join(ids[0])
        scene.new_id()


class TestRejoin:
    def test_rejoin_gets_the_same_response_until_the_assignment(self) -> None:
        scene = Scene()
        tickets = [scene.enter()[1] for _ in range(2)]
        scene.pass_time(2 * DELAY_MS)
        for ticket in tickets:
            response = scene.responses[ticket]
            again = scene.responses[scene.send_join(response.member_id)]
            assert again == response
        assert scene.group().phase is Phase.COMPLETING

    def test_changed_subscription_triggers_a_rebalance(self) -> None:
        scene = Scene()
        leader, follower = scene.settle(None, None)
        ticket = scene.send_join(follower, protocols=[("range", b"other")])
        assert scene.group().phase is Phase.PREPARING
        assert scene.heartbeat(leader, 1) == ErrorCode.REBALANCE_IN_PROGRESS
        other = scene.send_join(leader)
        assert {scene.responses[each].generation_id for each in (ticket, other)} == {2}
        assert scene.responses[other].members[1].metadata == b"other"

    def test_changed_subscription_fails_waiting_syncs(self) -> None:
        scene = Scene()
        tickets = [scene.enter()[1] for _ in range(2)]
        scene.pass_time(2 * DELAY_MS)
        leader, follower = (scene.responses[each].member_id for each in tickets)
        sync = scene.send_sync(follower, 1)
        scene.send_join(leader, protocols=[("range", b"other")])
        assert scene.error(sync) == ErrorCode.REBALANCE_IN_PROGRESS

    def test_rejoin_of_the_leader_triggers_a_rebalance(self) -> None:
        scene = Scene()
        leader, follower = scene.settle(None, None)
        ticket = scene.send_join(leader)
        assert scene.group().phase is Phase.PREPARING
        scene.send_join(follower)
        assert scene.responses[ticket].generation_id == 2

    def test_unchanged_follower_gets_the_missed_response(self) -> None:
        scene = Scene()
        leader, follower = scene.settle(None, None)
        response = scene.responses[scene.send_join(follower)]
        assert (response.generation_id, response.leader, response.members) == (1, leader, [])
        assert scene.group().phase is Phase.STABLE

    def test_waiting_member_gets_one_response(self) -> None:
        scene = Scene()
        leader, _ = scene.settle(None, None)
        first, second = scene.send_join(leader), scene.send_join(leader)
        assert scene.error(first) == ErrorCode.REBALANCE_IN_PROGRESS
        assert second in scene.waiting


@pytest.mark.proves("C5")
def test_members_that_do_not_rejoin_in_time_are_removed() -> None:
    scene = Scene()
    leader, slow, _ = scene.settle(None, None, None, session_ms=5 * REBALANCE_MS)
    ticket = scene.send_join(slow, protocols=[("range", b"other")])
    scene.pass_time(REBALANCE_MS - 1)
    assert ticket in scene.waiting
    scene.pass_time(1)
    response = scene.responses[ticket]
    assert (response.generation_id, response.leader) == (2, slow)
    assert [each.member_id for each in response.members] == [slow]
    assert scene.heartbeat(leader, 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_rebalance_waits_for_the_slowest_member() -> None:
    scene = Scene()
    leader, _ = scene.settle(None, None, rebalance_ms=2 * REBALANCE_MS, session_ms=5 * REBALANCE_MS)
    ticket = scene.send_join(leader, rebalance_ms=REBALANCE_MS)
    scene.pass_time(2 * REBALANCE_MS - 1)
    assert ticket in scene.waiting
    scene.pass_time(1)
    assert ticket not in scene.waiting


def test_version_0_uses_the_session_timeout_for_the_rebalance() -> None:
    scene = Scene()
    scene.settle(rebalance_ms=-1)
    assert scene.group().rebalance_timeout_ms == SESSION_MS


def test_new_member_whose_join_waits_too_long_is_removed() -> None:
    scene = Scene()
    leader, _ = scene.settle(None, None, rebalance_ms=10 * MINUTE_MS, session_ms=30 * MINUTE_MS)
    _, ticket = scene.enter()
    scene.pass_time(5 * MINUTE_MS - 1)
    assert ticket in scene.waiting
    scene.pass_time(1)
    assert scene.error(ticket) == ErrorCode.UNKNOWN_MEMBER_ID
    assert scene.heartbeat(leader, 1) == ErrorCode.REBALANCE_IN_PROGRESS


def test_waiting_join_keeps_the_session_alive() -> None:
    scene = Scene()
    leader, _ = scene.settle(None, None, rebalance_ms=3 * SESSION_MS)
    ticket = scene.send_join(leader)
    scene.pass_time(3 * SESSION_MS)
    assert scene.error(ticket) == ErrorCode.NONE


@pytest.mark.proves("C5")
@pytest.mark.parametrize(("delay_ms", "generations"), [(0, 2), (DELAY_MS, 1)])
def test_200_members_joining_at_once_settle_within_two_generations(delay_ms: int, generations: int) -> None:
    scene = Scene(GroupSettings(group_initial_rebalance_delay_ms=delay_ms))
    ids, latest = [], {}
    for _ in range(200):
        ids.append(scene.new_id())
        scene.pass_time(1)
    for member_id in ids:
        latest[member_id] = scene.send_join(member_id)
        scene.pass_time(1)
    while set(latest.values()) & scene.waiting:
        scene.pass_time(3_000)
        for member_id, ticket in latest.items():  # what a member does on a rebalance
            if ticket not in scene.waiting:
                generation = scene.responses[ticket].generation_id
                if scene.heartbeat(member_id, generation) == ErrorCode.REBALANCE_IN_PROGRESS:
                    latest[member_id] = scene.send_join(member_id)
    group = scene.group()
    assert len(group.members) == 200
    assert group.generation == generations
    assert {scene.responses[ticket].generation_id for ticket in latest.values()} == {group.generation}

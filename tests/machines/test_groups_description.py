"""Administration of classic groups: list, describe, delete."""

import pytest
from groups_scene import Scene

from moldau.model.errors import ErrorCode


def several(scene: Scene) -> None:
    """Create one group in every state."""
    scene.commit(1, group_id="simple")
    (member_id,) = scene.settle(group_id="empty")
    scene.leave((member_id, None), group_id="empty")
    completing = scene.enter(group_id="completing")[1]
    scene.settle(group_id="stable")
    assert completing not in scene.waiting
    scene.enter(group_id="preparing", protocol_type="connect")
    scene.new_id(group_id="promised")


STATES = {
    "simple": ("Empty", ""),
    "empty": ("Empty", "consumer"),
    "completing": ("CompletingRebalance", "consumer"),
    "stable": ("Stable", "consumer"),
    "preparing": ("PreparingRebalance", "connect"),
    "promised": ("Empty", ""),
}


class TestListing:
    def test_every_group_is_listed_once_with_its_state_and_type(self) -> None:
        scene = Scene()
        several(scene)
        listed = scene.machine.list_groups()
        assert {each.group_id: (each.group_state, each.protocol_type) for each in listed} == STATES
        assert len(listed) == len(STATES)
        assert {each.group_type for each in listed} == {"classic"}

    @pytest.mark.parametrize(
        ("states", "types", "found"),
        [
            (["Stable"], [], {"stable"}),
            (["stable", "PREPARINGREBALANCE"], [], {"stable", "preparing"}),
            ([], ["Classic"], set(STATES)),
            ([], ["consumer"], set()),
            (["empty"], ["classic", "consumer"], {"simple", "empty", "promised"}),
            (["Nonsense"], [], set()),
        ],
    )
    def test_list_filters_by_state_and_type(self, states: list[str], types: list[str], found: set[str]) -> None:
        scene = Scene()
        several(scene)
        assert {each.group_id for each in scene.machine.list_groups(states=states, types=types)} == found


class TestDescribing:
    def test_stable_group_shows_member_metadata_and_assignments(self) -> None:
        scene = Scene()
        leader, follower = scene.settle("one", "two")
        group = scene.machine.describe_group("g", api_version=6)
        assert (group.error_code, group.group_id, group.group_state) == (0, "g", "Stable")
        assert (group.protocol_type, group.protocol_data) == ("consumer", "range")
        first, second = group.members
        assert (first.member_id, first.group_instance_id) == (leader, "one")
        assert (first.client_id, first.client_host) == ("client", "/10.0.0.1")
        assert (second.member_metadata, second.member_assignment) == (b"r", follower.encode())

    def test_rebalancing_group_describes_its_members(self) -> None:
        scene = Scene()
        leader, _ = scene.settle(None, None)
        scene.send_join(leader)
        group = scene.machine.describe_group("g", api_version=6)
        assert (group.group_state, group.protocol_data) == ("PreparingRebalance", "")
        assert [(each.member_metadata, each.member_assignment) for each in group.members] == [(b"", b""), (b"", b"")]

    def test_group_without_members_is_empty(self) -> None:
        scene = Scene()
        scene.commit(1)
        group = scene.machine.describe_group("g", api_version=6)
        assert (group.group_state, group.protocol_type, list(group.members)) == ("Empty", "", [])

    @pytest.mark.parametrize(("version", "error"), [(5, ErrorCode.NONE), (6, ErrorCode.GROUP_ID_NOT_FOUND)])
    def test_unknown_group_is_dead(self, version: int, error: ErrorCode) -> None:
        group = Scene().machine.describe_group("g", api_version=version)
        assert (group.group_id, group.group_state, group.error_code) == ("g", "Dead", error)
        assert (group.error_message is None) == (error == ErrorCode.NONE)


class TestDeleting:
    @pytest.mark.parametrize(
        ("group_id", "error"),
        [
            ("simple", ErrorCode.NONE),
            ("empty", ErrorCode.NONE),
            ("promised", ErrorCode.NONE),
            ("completing", ErrorCode.NON_EMPTY_GROUP),
            ("stable", ErrorCode.NON_EMPTY_GROUP),
            ("preparing", ErrorCode.NON_EMPTY_GROUP),
            ("other", ErrorCode.GROUP_ID_NOT_FOUND),
            ("", ErrorCode.INVALID_GROUP_ID),
        ],
    )
    def test_only_groups_without_members_are_deleted(self, group_id: str, error: ErrorCode) -> None:
        scene = Scene()
        several(scene)
        assert scene.delete_group(group_id) == error
        if error == ErrorCode.NONE:
            assert scene.machine.group(group_id) is None

    @pytest.mark.proves("C3")
    def test_delete_removes_the_offsets(self) -> None:
        scene = Scene()
        (member_id,) = scene.settle()
        scene.commit(1, member_id=member_id, generation=1)
        scene.commit(1, topic="u", partition=3, member_id=member_id, generation=1)
        scene.leave((member_id, None))
        scene.commit(1, group_id="h")
        results = scene.run(lambda: scene.machine.decide_delete_groups(["g", "g", "x"], now=scene.now))
        assert [(each.group_id, each.error_code) for each in results] == [("g", 0), ("x", ErrorCode.GROUP_ID_NOT_FOUND)]
        assert list(scene.machine.state.offsets) == ["h"]
        assert not scene.machine.state.classic

    def test_delete_removes_pending_members(self) -> None:
        scene = Scene()
        member_id = scene.new_id()
        scene.delete_group()
        assert scene.error(scene.send_join(member_id)) == ErrorCode.UNKNOWN_MEMBER_ID
        scene.pass_time(60_000)

    def test_deleted_group_id_can_be_used_again(self) -> None:
        scene = Scene()
        (member_id,) = scene.settle()
        scene.leave((member_id, None))
        scene.delete_group()
        scene.settle()
        assert scene.machine.state.classic["g"].generation == 1


def test_unknown_timer_event_is_a_bug() -> None:
    scene = Scene()
    with pytest.raises(AssertionError, match="unknown timer"):
        scene.machine.decide_timed_out("what", 0.0)

"""Share groups: members, assignments, and the initialization of share partitions."""

import pytest
from share_scene import ShareScene

from moldau.machines.groups import Caller, GroupSettings
from moldau.machines.groups.share.settings import (
    OffsetReset,
    ShareGroupSettings,
    check_share_group_config,
    parse_offset_reset,
    share_group_config,
)
from moldau.model.errors import (
    ErrorCode,
    FencedMemberEpoch,
    GroupIdNotFound,
    GroupMaxSizeReached,
    InvalidConfig,
    InvalidRequest,
    NonEmptyGroup,
    UnknownMemberId,
)
from moldau.wire import messages

pytestmark = pytest.mark.proves("C8")

SESSION_MS, HEARTBEAT_MS, UNSETTLED_MS, RETRY_MS = 45_000, 5_000, 1_000, 30_000


class TestMembership:
    def test_partitions_are_assigned_once_their_states_are_initialized(self) -> None:
        scene = ShareScene(a=3)
        joined = scene.share("m", 0, ["a"])
        assert (joined.member_id, joined.member_epoch, joined.heartbeat_interval_ms) == ("m", 1, UNSETTLED_MS)
        assert joined.assignment is not None
        assert joined.assignment.topic_partitions == []
        (effect,) = scene.effects
        assert (effect.group_id, effect.state_epoch) == ("g", 1)
        assert effect.partitions == {scene.id_of("a"): {0, 1, 2}}
        scene.confirm_states()
        assigned = scene.share("m", 1)
        assert assigned.member_epoch == 2
        (topic,) = assigned.assignment.topic_partitions  # type: ignore[union-attr]
        assert (topic.topic_id, topic.partitions) == (scene.id_of("a"), [0, 1, 2])
        scene.now_ms += HEARTBEAT_MS
        again = scene.share("m", 2)
        assert (again.member_epoch, again.assignment, again.heartbeat_interval_ms) == (2, None, HEARTBEAT_MS)
        assert not scene.effects

    def test_members_share_partitions_when_there_are_too_few(self) -> None:
        scene = ShareScene(a=2)
        members = [f"m{number}" for number in range(5)]
        scene.settle_shared(*members)
        given = [scene.assigned(each) for each in members]
        assert all(len(each) == 1 for each in given)
        counts = [sum(index in each for each in given) for index in range(2)]
        assert sorted(counts) == [2, 3]

    def test_stable_heartbeat_writes_nothing(self) -> None:
        scene = ShareScene(a=2)
        scene.settle_shared("m")
        before = len(scene.log)
        for _ in range(3):
            scene.now_ms += HEARTBEAT_MS
            scene.share("m", scene.share_group().epoch)
        assert len(scene.log) == before

    def test_full_heartbeat_returns_the_assignment_again(self) -> None:
        scene = ShareScene(a=2)
        scene.settle_shared("m")
        again = scene.share("m", scene.share_group().epoch, ["a"])
        assert again.assignment is not None
        assert [list(each.partitions) for each in again.assignment.topic_partitions] == [[0, 1]]

    def test_new_subscription_replaces_the_assignment(self) -> None:
        scene = ShareScene(a=1, b=2)
        scene.settle_shared("m")
        scene.share("m", scene.share_group().members["m"].epoch, ["b"])
        scene.settle_shared("m")
        assert (scene.assigned("m", "a"), scene.assigned("m", "b")) == ([], [0, 1])

    def test_changed_client_is_written(self) -> None:
        scene = ShareScene(a=1)
        scene.settle_shared("m")
        scene.share("m", scene.share_group().epoch, rack_id="r", caller=Caller("other", "/10.0.0.2", 1))
        member = scene.share_group().members["m"]
        assert (member.client_id, member.client_host, member.rack_id) == ("other", "/10.0.0.2", "r")

    def test_leaving_member_gives_its_partitions_to_the_others(self) -> None:
        scene = ShareScene(a=4)
        scene.settle_shared("m", "n")
        assert sorted(scene.assigned("m") + scene.assigned("n")) == [0, 1, 2, 3]
        left = scene.share("m", -1)
        assert (left.member_id, left.member_epoch) == ("m", -1)
        scene.settle_shared("n")
        assert scene.assigned("n") == [0, 1, 2, 3]

    def test_silent_member_is_removed_after_its_session(self) -> None:
        scene = ShareScene(a=2)
        scene.settle_shared("m", "n")
        for _ in range(9):
            scene.pass_time(SESSION_MS / 9)
            scene.share("m", scene.share_group().members["m"].epoch)
        assert scene.share_group().members.keys() == {"m"}
        scene.pass_time(2 * SESSION_MS)
        assert scene.share_group().state == "Empty"

    def test_member_keeps_its_session_under_a_new_coordinator(self) -> None:
        scene = ShareScene(a=2)
        scene.settle_shared("m")
        scene.pass_time(SESSION_MS - 1)
        scene.elect()
        scene.pass_time(3 * HEARTBEAT_MS - 1)
        assert scene.share("m", scene.share_group().epoch).assignment is None
        scene.pass_time(SESSION_MS - 1)
        assert scene.share_group().members
        scene.pass_time(1)
        assert not scene.share_group().members

    def test_member_whose_leave_was_lost_with_the_coordinator_is_removed_soon(self) -> None:
        scene = ShareScene(a=2)
        scene.settle_shared("left", "m")
        scene.elect()
        for _ in range(3):
            scene.pass_time(HEARTBEAT_MS)
            scene.share("m", scene.share_group().members["m"].epoch)
        scene.settle_shared("m")
        assert scene.share_group().members.keys() == {"m"}
        assert scene.assigned("m") == [0, 1]

    def test_group_config_sets_the_session_timeout_and_the_interval(self) -> None:
        scene = ShareScene(a=1)
        scene.set_group_config(share_session_timeout_ms="50000", share_heartbeat_interval_ms="9000")
        scene.settle_shared("m")
        scene.pass_time(9_000)
        assert scene.share("m", scene.share_group().epoch).heartbeat_interval_ms == 9_000
        scene.pass_time(49_999)
        assert scene.share_group().members
        scene.pass_time(1)
        assert not scene.share_group().members


class TestRejections:
    @pytest.mark.parametrize(
        ("member_id", "epoch", "topics"), [("", 0, ["a"]), ("m", -2, None), ("m", 0, None), ("m", 0, [])]
    )
    def test_invalid_request_is_rejected(self, member_id: str, epoch: int, topics: list[str] | None) -> None:
        with pytest.raises(InvalidRequest):
            ShareScene(a=1).share(member_id, epoch, topics)

    def test_unknown_group_and_member_are_rejected(self) -> None:
        scene = ShareScene(a=1)
        with pytest.raises(GroupIdNotFound):
            scene.share("m", 1)
        scene.settle_shared("m")
        with pytest.raises(UnknownMemberId):
            scene.share("n", 1)

    def test_member_epoch_is_fenced_except_the_previous_one(self) -> None:
        scene = ShareScene(a=1)
        scene.settle_shared("m")
        scene.settle_shared("m", "n")
        member = scene.share_group().members["m"]
        scene.share("m", member.previous_epoch)
        for stale in (member.previous_epoch - 1, member.epoch + 1):
            with pytest.raises(FencedMemberEpoch):
                scene.share("m", stale)

    def test_full_group_rejects_a_new_member(self) -> None:
        scene = ShareScene(GroupSettings(group_share_max_size=1), a=1)
        scene.settle_shared("m")
        with pytest.raises(GroupMaxSizeReached, match="maximum capacity of 1 members"):
            scene.share("n", 0, ["a"])
        scene.share("m", 0, ["a"])

    def test_group_types_exclude_each_other(self) -> None:
        scene = ShareScene(a=1)
        scene.settle_shared("m")
        with pytest.raises(GroupIdNotFound, match="not a consumer group"):
            scene.beat("c", 0, rebalance_timeout_ms=1_000, subscribed_topic_names=["a"], topic_partitions=[])
        assert scene.error(scene.send_join()) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        scene.beat("c", 0, group_id="x", rebalance_timeout_ms=1_000, subscribed_topic_names=["a"], topic_partitions=[])
        with pytest.raises(GroupIdNotFound, match="not a share group"):
            scene.share("m", 0, ["a"], group_id="x")

    def test_share_group_has_no_committed_offsets(self) -> None:
        scene = ShareScene(a=1)
        scene.settle_shared("m")
        request = messages.OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=-1)
        with pytest.raises(GroupIdNotFound):
            scene.machine.decide_commit_offsets(request, api_version=9, now=scene.now)


class TestStates:
    def test_initialization_is_requested_again_after_the_retry_interval(self) -> None:
        scene = ShareScene(a=1)
        scene.share("m", 0, ["a"])
        scene.effects.clear()
        scene.pass_time(RETRY_MS - 1)
        scene.share("m", 1)
        assert not scene.effects
        scene.pass_time(1)
        scene.share("m", 1)
        assert len(scene.effects) == 1

    def test_new_coordinator_requests_the_initialization_again(self) -> None:
        scene = ShareScene(a=1)
        scene.share("m", 0, ["a"])
        scene.elect()
        scene.share("m", 1)
        assert scene.effects[0].partitions == {scene.id_of("a"): {0}}
        scene.confirm_states()
        scene.share("m", 1)
        assert scene.assigned("m") == [0]

    def test_new_partitions_are_initialized_and_assigned(self) -> None:
        scene = ShareScene(a=1)
        scene.settle_shared("m")
        scene.add_topics(a=3)
        scene.share("m", scene.share_group().epoch)
        assert scene.effects[0].partitions == {scene.id_of("a"): {1, 2}}
        scene.settle_shared("m")
        assert scene.assigned("m") == [0, 1, 2]

    def test_topic_created_later_is_assigned(self) -> None:
        scene = ShareScene(a=1)
        scene.settle_shared("m", topics=("a", "b"))
        scene.add_topics(b=2)
        scene.settle_shared("m")
        assert scene.assigned("m", "b") == [0, 1]

    def test_deleted_topic_is_forgotten_and_a_new_one_is_initialized(self) -> None:
        scene = ShareScene(a=1)
        scene.settle_shared("m")
        old = scene.id_of("a")
        scene.drop_topic("a")
        scene.forget_topic(old, "a")
        assert scene.share_group().states.topic_ids() == frozenset()
        scene.settle_shared("m")
        assert scene.share_group().members["m"].assigned == {}
        scene.add_topics(a=2)
        scene.settle_shared("m")
        assert scene.id_of("a") != old
        assert scene.assigned("m") == [0, 1]

    def test_confirmation_for_a_deleted_topic_or_group_changes_nothing(self) -> None:
        scene = ShareScene(a=1)
        scene.share("m", 0, ["a"])
        old = scene.id_of("a")
        scene.drop_topic("a")
        scene.forget_topic(old, "a")
        before = len(scene.log)
        scene.confirm_states()
        assert len(scene.log) == before
        scene.run(lambda: scene.machine.decide_states_initialized("missing", {}, now=scene.now))
        assert len(scene.log) == before

    def test_altered_offsets_get_a_higher_state_epoch(self) -> None:
        scene = ShareScene(a=2)
        scene.settle_shared("m")
        partitions = {scene.id_of("a"): {0, 1}}
        with pytest.raises(NonEmptyGroup):
            scene.machine.decide_alter_share_offsets("g", partitions, now=scene.now)
        scene.share("m", -1)
        before = scene.share_group().epoch
        epoch = scene.run(lambda: scene.machine.decide_alter_share_offsets("g", partitions, now=scene.now))
        assert epoch == before + 1 == scene.share_group().epoch
        assert scene.machine.share_states("g") == partitions

    def test_altered_offsets_create_a_missing_group(self) -> None:
        scene = ShareScene(a=2)
        scene.run(lambda: scene.machine.decide_alter_share_offsets("g", {}, now=scene.now))
        assert "g" not in scene.machine.state.share  # every partition was invalid
        partitions = {scene.id_of("a"): frozenset({1})}
        epoch = scene.run(lambda: scene.machine.decide_alter_share_offsets("g", partitions, now=scene.now))
        assert epoch == scene.share_group().epoch == 1
        scene.elect()
        assert scene.machine.share_states("g") == partitions
        scene.settle_shared("m")
        assert scene.assigned("m") == [0, 1]

    def test_deleted_states_are_initialized_again_on_subscription(self) -> None:
        scene = ShareScene(a=2, b=1)
        scene.settle_shared("m", topics=("a", "b"))
        scene.share("m", -1)
        a, b = scene.id_of("a"), scene.id_of("b")
        gone = scene.run(lambda: scene.machine.decide_begin_share_deletion("g", [a], now=scene.now))
        assert gone == {a: {0, 1}}
        assert scene.machine.share_states("g") == {b: {0}}
        scene.elect()  # the coordinator fails before the confirmation: the same request finds the states again
        gone = scene.run(lambda: scene.machine.decide_begin_share_deletion("g", [a], now=scene.now))
        assert gone == {a: {0, 1}}
        scene.run(lambda: scene.machine.decide_share_states_deleted("g", [a], now=scene.now))
        assert scene.share_group().states.topic_ids() == {b}
        scene.settle_shared("m", topics=("a", "b"))
        assert scene.assigned("m") == [0, 1]


class TestAdmin:
    def test_group_is_listed_and_described_as_a_share_group(self) -> None:
        scene = ShareScene(a=1)
        scene.settle_shared("m")
        (listed,) = scene.machine.list_groups(types=["share"])
        assert (listed.group_id, listed.group_type, listed.protocol_type) == ("g", "share", "share")
        assert listed.group_state == "Stable"
        assert scene.machine.list_groups(types=["consumer", "classic"]) == []
        described, missing = scene.machine.describe_share_groups(["g", "x"])
        assert (described.group_state, described.assignor_name) == ("Stable", "simple")
        (member,) = described.members
        assert (member.member_id, list(member.subscribed_topic_names)) == ("m", ["a"])
        assert [(each.topic_name, each.partitions) for each in member.assignment.topic_partitions] == [("a", [0])]
        assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND

    def test_empty_group_is_kept_until_it_is_deleted(self) -> None:
        scene = ShareScene(a=1)
        scene.settle_shared("m")
        assert scene.delete_group("g") == ErrorCode.NON_EMPTY_GROUP
        scene.share("m", -1)
        scene.pass_time(30 * 24 * 3_600_000)
        assert scene.share_group().state == "Empty"
        assert scene.delete_group("g") == ErrorCode.NONE
        assert not scene.machine.state.share
        scene.elect()
        assert not scene.machine.state.share


class TestConfigs:
    def test_configs_are_limited_to_the_bounds_of_the_broker(self) -> None:
        found = share_group_config(
            ShareGroupSettings(),
            {
                "share.session.timeout.ms": "1",
                "share.delivery.count.limit": "99",
                "share.isolation.level": "read_committed",
                "share.renew.acknowledge.enable": "false",
            },
        )
        assert (found.session_timeout_ms, found.delivery_count_limit) == (SESSION_MS, 10)
        assert (found.is_read_committed, found.is_renewal_enabled) == (True, False)
        assert found.offset_reset == OffsetReset("latest")

    @pytest.mark.parametrize(
        ("text", "reset"),
        [
            ("earliest", OffsetReset("earliest")),
            ("by_duration:PT1H30M", OffsetReset("by_duration", 5_400_000)),
            ("by_duration:P1DT0.5S", OffsetReset("by_duration", 86_400_500)),
        ],
    )
    def test_offset_reset_is_parsed(self, text: str, reset: OffsetReset) -> None:
        assert parse_offset_reset(text) == reset

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("share.session.timeout.ms", "44999"),
            ("share.heartbeat.interval.ms", "15001"),
            ("share.record.lock.duration.ms", "14999"),
            ("share.delivery.count.limit", "11"),
            ("share.partition.max.record.locks", "4001"),
        ],
    )
    def test_config_outside_the_bounds_is_rejected(self, name: str, value: str) -> None:
        with pytest.raises(InvalidConfig, match="it must be from"):
            check_share_group_config(ShareGroupSettings(), {name: value}, {name})

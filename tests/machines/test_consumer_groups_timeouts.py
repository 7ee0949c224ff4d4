"""Timeouts of consumer groups: sessions, revocations, static members that restart, and the settings."""

import pytest
from consumer_scene import (
    HEARTBEAT_MS,
    JOIN,
    REBALANCE_TIMEOUT_MS,
    SESSION_TIMEOUT_MS,
    UNSETTLED_MS,
    Consumer,
    ConsumerScene,
    settle,
)

from moldau.machines.groups import GroupSettings
from moldau.machines.groups.consumer.records import removal_tombstones
from moldau.machines.groups.consumer.settings import ConsumerGroupSettings, heartbeat_config
from moldau.machines.groups.consumer.soft_state import MembersDue
from moldau.model.errors import ErrorCode
from moldau.model.settings import declared, parse_settings


class TestStaticMembers:
    @pytest.mark.proves("C5")
    def test_static_member_restart_causes_no_rebalance(self) -> None:
        scene = ConsumerScene(a=4)
        one = Consumer(scene, "m1", "a", instance_id="one").join()
        two = Consumer(scene, "m2", "a", instance_id="two").join()
        settle(one, two)
        epoch, owned = scene.consumer_group().epoch, one.owned
        left = scene.beat("m1", -2, instance_id="one")
        assert (left.member_id, left.member_epoch) == ("m1", -2)
        back = Consumer(scene, "m3", "a", instance_id="one").join()
        assert (back.owned, back.epoch) == (owned, epoch)
        assert scene.consumer_group().epoch == epoch
        assert "m1" not in scene.consumer_group().members
        assert not two.beat()

    def test_static_member_may_return_with_the_same_id(self) -> None:
        scene = ConsumerScene(a=4)
        one = Consumer(scene, "m1", "a", instance_id="one").join()
        scene.beat("m1", -2, instance_id="one")
        assert scene.member("m1").epoch == -2
        one.join()
        assert (one.count, one.epoch) == (4, 1)

    def test_old_epoch_is_fenced_while_the_static_member_is_away(self) -> None:
        scene = ConsumerScene(a=4)
        Consumer(scene, "m1", "a", instance_id="one").join()
        scene.beat("m1", -2, instance_id="one")
        assert scene.rejection("m1", 1, instance_id="one")[0] == ErrorCode.FENCED_MEMBER_EPOCH

    @pytest.mark.proves("C5")
    def test_instance_id_in_use_is_not_released(self) -> None:
        scene = ConsumerScene(a=4)
        Consumer(scene, "m1", "a", instance_id="one").join()
        assert scene.rejection("m2", 0, **JOIN, instance_id="one") == (
            ErrorCode.UNRELEASED_INSTANCE_ID,
            "Static member m2 with instance id one cannot join the group because the instance id is owned by m1 "
            "member.",
        )

    def test_retried_join_does_not_conflict_with_itself(self) -> None:
        scene = ConsumerScene(a=4)
        one = Consumer(scene, "m1", "a", instance_id="one").join()
        assert one.join().count == 4
        assert scene.consumer_group().epoch == 1

    def test_replaced_member_is_fenced(self) -> None:
        scene = ConsumerScene(a=4)
        Consumer(scene, "m1", "a", instance_id="one").join()
        scene.beat("m1", -2, instance_id="one")
        Consumer(scene, "m2", "a", instance_id="one").join()
        words = "Static member m1 with instance id one was fenced by member m2."
        assert scene.rejection("m1", 1, instance_id="one") == (ErrorCode.FENCED_INSTANCE_ID, words)
        assert scene.rejection("m1", -1, instance_id="one") == (ErrorCode.FENCED_INSTANCE_ID, words)

    @pytest.mark.proves("C5")
    def test_static_member_expires_at_the_session_timeout(self) -> None:
        scene = ConsumerScene(a=4)
        one = Consumer(scene, "m1", "a", instance_id="one").join()
        scene.beat("m1", -2, instance_id="one")
        scene.pass_time(SESSION_TIMEOUT_MS)
        assert scene.consumer_group().is_empty
        assert one.join().count == 4

    @pytest.mark.proves("C5")
    def test_partitions_being_revoked_are_free_when_the_member_leaves(self) -> None:
        scene = ConsumerScene(a=4)
        one, two = Consumer(scene, "m1", "a", instance_id="one").join(), Consumer(scene, "m2", "a").join()
        one.beat()
        assert scene.member("m1").revoking
        scene.beat("m1", -2, instance_id="one")
        two.beat()
        assert two.count == 2

    def test_static_member_returns_with_another_subscription(self) -> None:
        scene = ConsumerScene(a=2, b=2)
        Consumer(scene, "m1", "a", instance_id="one").join()
        scene.beat("m1", -2, instance_id="one")
        back = Consumer(scene, "m2", "b", instance_id="one").join()
        assert (back.owned, back.epoch) == ({"b": [0, 1]}, 2)

    def test_static_member_leaves_for_good_by_its_instance_id(self) -> None:
        scene = ConsumerScene(a=2)
        Consumer(scene, "m1", "a", instance_id="one").join()
        scene.beat("m1", -1, instance_id="one")
        assert (scene.consumer_group().is_empty, scene.consumer_group().static_ids) == (True, {})


class TestTime:
    def test_silent_member_is_evicted_and_its_partitions_reassigned(self) -> None:
        scene = ConsumerScene(a=4)
        silent, other = Consumer(scene, "m1", "a").join(), Consumer(scene, "m2", "a").join()
        settle(silent, other)
        for _ in range(9):
            scene.pass_time(HEARTBEAT_MS)
            other.beat()
        assert list(scene.consumer_group().members) == ["m2"]
        assert other.count == 4
        assert scene.rejection("m1", silent.epoch)[0] == ErrorCode.UNKNOWN_MEMBER_ID

    @pytest.mark.proves("C5")
    def test_heartbeats_keep_a_member_alive(self) -> None:
        scene = ConsumerScene(a=4)
        consumer = Consumer(scene, "m1", "a").join()
        for _ in range(30):
            scene.pass_time(SESSION_TIMEOUT_MS - 1)
            assert not consumer.beat()

    @pytest.mark.proves("C5")
    def test_member_that_does_not_revoke_in_time_is_fenced(self) -> None:
        scene = ConsumerScene(a=4)
        slow, other = Consumer(scene, "m1", "a").join(), Consumer(scene, "m2", "a").join()
        slow.beat()
        for _ in range(REBALANCE_TIMEOUT_MS // HEARTBEAT_MS):
            assert "m1" in scene.consumer_group().members
            scene.pass_time(HEARTBEAT_MS)
            if "m1" in scene.consumer_group().members:
                scene.beat("m1", slow.epoch, owned={"a": [0, 1, 2, 3]})
            other.beat()
        assert "m1" not in scene.consumer_group().members
        settle(other)
        assert other.count == 4

    def test_member_that_revokes_in_time_is_not_fenced(self) -> None:
        scene = ConsumerScene(a=4)
        first, second = Consumer(scene, "m1", "a").join(), Consumer(scene, "m2", "a").join()
        settle(first, second)
        for _ in range(2 * REBALANCE_TIMEOUT_MS // HEARTBEAT_MS):
            scene.pass_time(HEARTBEAT_MS)
            first.beat()
            second.beat()
        assert len(scene.consumer_group().members) == 2

    @pytest.mark.proves("C5")
    def test_sessions_and_revocation_timeouts_restart_after_a_failover(self) -> None:
        scene = ConsumerScene(a=4)
        slow, _ = Consumer(scene, "m1", "a").join(), Consumer(scene, "m2", "a").join()
        slow.beat()
        scene.pass_time(REBALANCE_TIMEOUT_MS - 1)
        scene.elect()
        scene.pass_time(REBALANCE_TIMEOUT_MS - 1)
        assert "m1" in scene.consumer_group().members
        scene.pass_time(1)
        assert "m1" not in scene.consumer_group().members
        scene.pass_time(SESSION_TIMEOUT_MS)
        assert scene.consumer_group().is_empty

    @pytest.mark.proves("C5")
    def test_silent_member_is_evicted_after_a_failover(self) -> None:
        scene = ConsumerScene(a=4)
        scene.join_consumer("m1", "a")
        scene.elect()
        scene.pass_time(SESSION_TIMEOUT_MS - 1)
        assert not scene.consumer_group().is_empty
        scene.pass_time(1)
        assert scene.consumer_group().is_empty

    def test_empty_group_is_loaded_without_a_timer(self) -> None:
        scene = ConsumerScene(a=4)
        scene.join_consumer("m1", "a")
        scene.beat("m1", -1)
        scene.elect()
        assert not [event for event in scene.timers if "Members" in type(event).__name__]

    def test_timer_of_a_deleted_group_does_nothing(self) -> None:
        scene = ConsumerScene(a=4)
        count = len(scene.log)
        scene.run(lambda: scene.machine.decide_timed_out(MembersDue("g"), scene.now_ms))
        assert len(scene.log) == count

    def test_tombstones_of_a_deleted_group_are_skipped(self) -> None:
        scene = ConsumerScene(a=4)
        for key, value in removal_tombstones("g", "m"):
            scene.append(key, value)
        assert scene.machine.state.consumer == {}

    def test_members_expiring_together_cost_one_epoch(self) -> None:
        scene = ConsumerScene(a=4)
        for number in range(5):
            scene.join_consumer(f"m{number}", "a")
        epoch = scene.consumer_group().epoch
        scene.pass_time(SESSION_TIMEOUT_MS)
        assert (scene.consumer_group().epoch, scene.consumer_group().is_empty) == (epoch + 1, True)
        assert not [event for event in scene.timers if "Members" in type(event).__name__]

    def test_heartbeat_moves_no_timer(self) -> None:
        scene = ConsumerScene(a=4)
        consumer = Consumer(scene, "m1", "a").join()
        consumer.beat()
        timers = dict(scene.timers)
        scene.pass_time(1_000)
        consumer.beat()
        assert scene.timers == timers

    def test_heartbeat_interval_is_shorter_while_reconciling(self) -> None:
        scene = ConsumerScene(a=4)
        first, second = Consumer(scene, "m1", "a").join(), Consumer(scene, "m2", "a").join()
        assert (first.interval_ms, second.interval_ms) == (UNSETTLED_MS, UNSETTLED_MS)
        settle(first, second)
        scene.pass_time(HEARTBEAT_MS)
        settle(first, second)
        assert (first.interval_ms, second.interval_ms) == (HEARTBEAT_MS, HEARTBEAT_MS)
        third = Consumer(scene, "m3", "a").join()
        scene.pass_time(2 * HEARTBEAT_MS)
        third.beat()
        assert third.interval_ms == UNSETTLED_MS  # still waits for the others

    def test_static_heartbeat_with_instance_id_is_a_keepalive(self) -> None:
        scene = ConsumerScene(a=4)
        consumer = Consumer(scene, "m1", "a", instance_id="one").join()
        settle(consumer)
        scene.pass_time(SESSION_TIMEOUT_MS - 1)
        consumer.beat()
        scene.pass_time(SESSION_TIMEOUT_MS - 1)
        assert not scene.consumer_group().is_empty

    def test_new_settings_take_effect_with_the_next_heartbeat(self) -> None:
        scene = ConsumerScene(a=4)
        consumer = Consumer(scene, "m1", "a").join()
        settle(consumer)
        scene.pass_time(2 * HEARTBEAT_MS)
        scene.machine.settings = GroupSettings(group_consumer_heartbeat_interval_ms=7_000)
        consumer.beat()
        assert consumer.interval_ms == 7_000

    def test_group_configs_apply_within_bounds(self) -> None:
        scene = ConsumerScene(GroupSettings(group_consumer_min_heartbeat_interval_ms=2_000), a=4)
        scene.set_group_config(consumer_session_timeout_ms="50000", consumer_heartbeat_interval_ms="3000")
        consumer = Consumer(scene, "m1", "a").join()
        scene.pass_time(49_999)
        assert "m1" in scene.consumer_group().members
        consumer.beat()
        assert consumer.interval_ms == 3_000
        scene.set_group_config(consumer_heartbeat_interval_ms="1")
        consumer.beat()
        assert consumer.interval_ms == 2_000
        scene.pass_time(SESSION_TIMEOUT_MS)
        assert scene.consumer_group().is_empty


class TestSettings:
    def test_every_setting_has_kafkas_name_and_default(self) -> None:
        by_name = {each.name: each.format(each.default) for each in declared(ConsumerGroupSettings).values()}
        assert by_name == {
            "group.consumer.session.timeout.ms": "45000",
            "group.consumer.min.session.timeout.ms": "45000",
            "group.consumer.max.session.timeout.ms": "60000",
            "group.consumer.heartbeat.interval.ms": "5000",
            "group.consumer.min.heartbeat.interval.ms": "5000",
            "group.consumer.max.heartbeat.interval.ms": "15000",
            "group.consumer.max.size": "2147483647",
            "group.consumer.assignors": "uniform,range",
            "group.consumer.migration.policy": "bidirectional",
            "group.consumer.regex.refresh.interval.ms": "600000",
            "moldau.group.consumer.unsettled.heartbeat.interval.ms": "1000",
        }

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("group.consumer.assignors", ""),
            ("group.consumer.assignors", "range,range"),
            ("group.consumer.assignors", "sticky"),
            ("group.consumer.migration.policy", "both"),
            ("group.consumer.regex.refresh.interval.ms", "9999"),
        ],
    )
    def test_invalid_values_are_rejected(self, name: str, value: str) -> None:
        with pytest.raises(Exception, match=name):
            parse_settings(GroupSettings, {name: value})

    def test_group_configs_are_kept_within_the_brokers_bounds(self) -> None:
        own = {"consumer.session.timeout.ms": "1", "consumer.heartbeat.interval.ms": "99999"}
        assert heartbeat_config(ConsumerGroupSettings(), own) == (45_000, 15_000)
        assert heartbeat_config(ConsumerGroupSettings(), {}) == (45_000, 5_000)

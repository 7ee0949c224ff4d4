"""Classic members in a consumer group: a changed assignment looks like a rebalance to them."""

from typing import Any

import pytest
from consumer_scene import ClassicConsumer, Consumer, ConsumerScene, owned_subscription, settle
from groups_scene import REBALANCE_MS, SESSION_MS

from moldau.machines.groups import GroupSettings
from moldau.machines.groups.consumer.member import MemberState
from moldau.model.errors import ErrorCode
from moldau.wire import messages


class TestClassicMembers:
    def test_classic_member_joins_a_consumer_group(self) -> None:
        scene = ConsumerScene(a=4)
        consumer = Consumer(scene, "m", "a").join()
        classic = ClassicConsumer(scene, "a").join()
        assert scene.member(classic.member_id).is_classic
        assert classic.sync() == ErrorCode.NONE
        assert classic.owned == {}
        settle(consumer, classic)
        assert (consumer.count, classic.owned["a"]) == (
            2,
            [index for index in range(4) if index not in consumer.owned["a"]],
        )

    def test_generation_is_the_member_epoch_and_there_is_no_leader(self) -> None:
        scene = ConsumerScene(a=4)
        Consumer(scene, "m", "a").join()
        classic = ClassicConsumer(scene, "a")
        classic.member_id = scene.responses[classic.send_join()].member_id
        response = scene.responses[classic.send_join()]
        assert (response.generation_id, response.leader, list(response.members)) == (2, "", [])
        assert (response.protocol_type, response.protocol_name) == ("consumer", "range")

    def test_no_second_join_is_needed_before_version_4(self) -> None:
        scene = ConsumerScene(a=4)
        Consumer(scene, "m", "a").join()
        ticket = ClassicConsumer(scene, "a", version=3).send_join()
        assert scene.error(ticket) == ErrorCode.NONE

    def test_changed_assignment_requires_a_rejoin(self) -> None:
        scene = ConsumerScene(a=4)
        consumer = Consumer(scene, "m", "a").join()
        classic = ClassicConsumer(scene, "a").join()
        classic.sync()
        assert scene.heartbeat(classic.member_id, classic.generation) == ErrorCode.NONE  # no partition is free yet
        settle(consumer)
        assert scene.heartbeat(classic.member_id, classic.generation) == ErrorCode.REBALANCE_IN_PROGRESS
        classic.join()
        classic.sync()
        assert len(classic.owned["a"]) == 2
        assert scene.heartbeat(classic.member_id, classic.generation) == ErrorCode.NONE

    def test_partitions_of_a_new_consumer_must_be_revoked(self) -> None:
        scene = ConsumerScene(a=4)
        first = Consumer(scene, "m", "a").join()
        classic = ClassicConsumer(scene, "a").join()
        settle(first, classic)
        second = Consumer(scene, "n", "a").join()
        third = Consumer(scene, "o", "a").join()
        assert classic.beat()
        assert scene.member(classic.member_id).state is MemberState.UNREVOKED_PARTITIONS
        settle(first, classic, second, third)
        assert sorted([first.count, len(classic.owned["a"]), second.count, third.count]) == [1, 1, 1, 1]

    def test_eager_member_advances_at_once(self) -> None:
        scene = ConsumerScene(a=4)
        first = Consumer(scene, "m", "a").join()
        eager = ClassicConsumer(scene, "a", is_cooperative=False).join()
        settle(first, eager)
        Consumer(scene, "n", "a").join()
        eager.beat()
        assert scene.member(eager.member_id).state is MemberState.STABLE

    def test_sync_in_an_old_epoch_requires_a_rejoin(self) -> None:
        scene = ConsumerScene(a=4)
        Consumer(scene, "m", "a").join()
        classic = ClassicConsumer(scene, "a").join()
        Consumer(scene, "n", "a").join()
        assert classic.sync() == ErrorCode.REBALANCE_IN_PROGRESS

    @pytest.mark.parametrize(
        ("options", "error"),
        [
            ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
            ({"protocol_name": "sticky"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
            ({"protocol_type": None, "protocol_name": None}, ErrorCode.NONE),
            ({"instance_id": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ],
    )
    def test_sync_must_match_the_join(self, options: dict[str, Any], error: ErrorCode) -> None:
        scene = ConsumerScene(a=4)
        Consumer(scene, "m", "a").join()
        classic = ClassicConsumer(scene, "a").join()
        assert scene.error(scene.send_sync(classic.member_id, classic.generation, **options)) == error

    def test_only_classic_members_may_sync_and_send_classic_heartbeats(self) -> None:
        scene = ConsumerScene(a=4)
        consumer = Consumer(scene, "m", "a").join()
        assert scene.error(scene.send_sync("m", consumer.epoch)) == ErrorCode.UNKNOWN_MEMBER_ID
        assert scene.heartbeat("m", consumer.epoch) == ErrorCode.UNKNOWN_MEMBER_ID
        assert scene.heartbeat("x", consumer.epoch) == ErrorCode.UNKNOWN_MEMBER_ID
        classic = ClassicConsumer(scene, "a").join()
        assert scene.heartbeat(classic.member_id, classic.generation + 1) == ErrorCode.ILLEGAL_GENERATION
        assert scene.error(scene.send_sync(classic.member_id, 99)) == ErrorCode.ILLEGAL_GENERATION

    @pytest.mark.parametrize(
        "options",
        [
            {"protocol_type": "connect"},
            {"protocols": ()},
            {"protocols": (("range", b""),)},
            {"protocols": (("range", b"\xff\xff"),)},
            {"protocols": (("range", b"\0\1\0\0\0\7"),)},
        ],
    )
    def test_join_without_consumer_protocol_is_rejected(self, options: dict[str, Any]) -> None:
        scene = ConsumerScene(a=4)
        Consumer(scene, "m", "a").join()
        ticket = scene.send_join(version=3, **options)
        assert scene.error(ticket) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL

    def test_classic_members_need_a_common_assignor(self) -> None:
        scene = ConsumerScene(a=4)
        Consumer(scene, "m", "a").join()
        ClassicConsumer(scene, "a").join()
        ticket = scene.send_join(version=3, protocols=(("sticky", owned_subscription("a")),))
        assert scene.error(ticket) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL

    def test_full_group_rejects_classic_members_too(self) -> None:
        scene = ConsumerScene(GroupSettings(group_consumer_max_size=1), a=4)
        Consumer(scene, "m", "a").join()
        assert scene.error(ClassicConsumer(scene, "a").send_join()) == ErrorCode.GROUP_MAX_SIZE_REACHED

    def test_join_is_rejected_without_metadata(self) -> None:
        scene = ConsumerScene(a=4)
        Consumer(scene, "m", "a").join()
        scene.image = type(scene.image)()
        ticket = ClassicConsumer(scene, "a", version=3).send_join()
        assert scene.error(ticket) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def test_static_member_takes_over_its_instance_and_fences_the_old_id(self) -> None:
        scene = ConsumerScene(a=4)
        Consumer(scene, "m", "a").join()
        old = ClassicConsumer(scene, "a", instance_id="i").join()
        new = ClassicConsumer(scene, "a", instance_id="i").join()
        assert new.member_id != old.member_id
        assert old.member_id not in scene.consumer_group().members
        assert scene.heartbeat(old.member_id, old.generation, instance_id="i") == ErrorCode.FENCED_INSTANCE_ID
        assert scene.error(old.send_join()) == ErrorCode.FENCED_INSTANCE_ID
        other = ClassicConsumer(scene, "a", instance_id="j")
        other.member_id = "made-up"
        assert scene.error(other.send_join()) == ErrorCode.UNKNOWN_MEMBER_ID

    def test_silent_member_expires_at_its_own_timeout(self) -> None:
        scene = ConsumerScene(a=4)
        consumer = Consumer(scene, "m", "a").join()
        classic = ClassicConsumer(scene, "a").join()
        classic.sync()
        scene.pass_time(SESSION_MS - 1)
        assert classic.member_id in scene.consumer_group().members
        scene.pass_time(1)
        assert list(scene.consumer_group().members) == [consumer.member_id]

    def test_member_that_never_syncs_is_evicted(self) -> None:
        scene = ConsumerScene(a=4)
        consumer = Consumer(scene, "m", "a").join()
        classic = ClassicConsumer(scene, "a", session_ms=300_000).join()
        for _ in range(REBALANCE_MS // 1_000):
            scene.pass_time(1_000)
            consumer.beat()
        assert classic.member_id not in scene.consumer_group().members

    def test_member_that_never_rejoins_is_evicted(self) -> None:
        scene = ConsumerScene(a=4)
        consumer = Consumer(scene, "m", "a").join()
        classic = ClassicConsumer(scene, "a").join()
        settle(consumer, classic)
        scene.add_topics(a=8)
        consumer.beat()
        for _ in range(REBALANCE_MS // 1_000):
            assert scene.heartbeat(classic.member_id, classic.generation) == ErrorCode.REBALANCE_IN_PROGRESS
            scene.pass_time(1_000)
            if classic.member_id in scene.consumer_group().members:
                consumer.beat()
        assert classic.member_id not in scene.consumer_group().members

    def test_leave_returns_an_error_per_member(self) -> None:
        scene = ConsumerScene(a=4)
        Consumer(scene, "m", "a").join()
        Consumer(scene, "s", "a", instance_id="i").join()
        Consumer(scene, "t", "a", instance_id="j").join()
        classic = ClassicConsumer(scene, "a").join()
        epoch = scene.consumer_group().epoch
        errors = scene.leave((classic.member_id, None), ("x", None), ("", "i"), ("x", "j"), ("", "none"))
        assert errors == [0, ErrorCode.UNKNOWN_MEMBER_ID, 0, ErrorCode.FENCED_INSTANCE_ID, ErrorCode.UNKNOWN_MEMBER_ID]
        assert list(scene.consumer_group().members) == ["m", "t"]
        assert scene.consumer_group().epoch == epoch + 1
        assert scene.leave(("x", None)) == [ErrorCode.UNKNOWN_MEMBER_ID]
        assert scene.consumer_group().epoch == epoch + 1

    def test_classic_member_in_state_of_later_version_rejoins(self) -> None:
        scene = ConsumerScene(a=4)
        Consumer(scene, "m", "a").join()
        classic = ClassicConsumer(scene, "a").join()
        value = messages.ConsumerGroupCurrentMemberAssignmentValue(member_epoch=2, previous_member_epoch=1, state=9)
        key = messages.ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id=classic.member_id)
        scene.append(key, value)
        assert scene.error(classic.send_join()) == ErrorCode.UNKNOWN_MEMBER_ID

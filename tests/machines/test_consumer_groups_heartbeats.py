"""ConsumerGroupHeartbeat: joining, assignments, and every error."""

from typing import Any

import pytest
from consumer_scene import (
    JOIN,
    Consumer,
    ConsumerScene,
    settle,
)

from moldau.machines.groups import GroupSettings
from moldau.machines.groups.consumer.member import MemberState
from moldau.machines.metadata.image import MetadataImage
from moldau.model.errors import ErrorCode
from moldau.wire import messages


class TestJoining:
    @pytest.mark.proves("C2")
    def test_first_member_gets_every_partition_at_once(self) -> None:
        scene = ConsumerScene(a=3, b=2)
        response = scene.join_consumer("m", "a", "b")
        assert (response.member_id, response.member_epoch) == ("m", 1)
        assert scene.named(response) == {"a": [0, 1, 2], "b": [0, 1]}
        assert scene.consumer_group().state == "Stable"

    def test_records_equal_those_of_kafka(self) -> None:
        scene = ConsumerScene(a=1)
        scene.join_consumer("m", "a", rack_id="r", server_assignor="range")
        group, value = scene.consumer_group(), scene.member("m")
        assert [type(key).__name__.removeprefix("ConsumerGroup") for key, _ in scene.records] == [
            "MemberMetadataKey",
            "MetadataKey",
            "TargetAssignmentMemberKey",
            "TargetAssignmentMetadataKey",
            "CurrentMemberAssignmentKey",
        ]
        assert (value.rack_id, value.assignor, value.client_id, value.client_host) == (
            "r",
            "range",
            "client",
            "/10.0.0.1",
        )
        assert (group.creation_time_ms, group.assignment_time_ms) == (scene.wall_ms, scene.wall_ms)

    def test_coordinator_assigns_the_member_id_before_version_1(self) -> None:
        scene = ConsumerScene(a=1)
        response = scene.join_consumer("", "a", version=0)
        assert response.member_id in scene.consumer_group().members
        assert response.member_id.startswith("client-")

    def test_missing_topics_are_assigned_once_they_exist(self) -> None:
        scene = ConsumerScene(a=1)
        consumer = Consumer(scene, "m", "a", "later").join()
        assert consumer.owned == {"a": [0]}
        scene.add_topics(later=2)
        settle(consumer)
        assert consumer.owned == {"a": [0], "later": [0, 1]}

    def test_member_may_subscribe_to_nothing(self) -> None:
        scene = ConsumerScene(a=1)
        assert scene.named(scene.join_consumer("m")) == {}

    def test_rejoining_member_gets_its_assignment_back(self) -> None:
        scene = ConsumerScene(a=2)
        first = scene.join_consumer("m", "a")
        again = scene.join_consumer("m", "a")
        assert (again.member_epoch, scene.named(again)) == (first.member_epoch, scene.named(first))
        assert len(scene.consumer_group().members) == 1

    @pytest.mark.proves("C2")
    def test_second_member_waits_for_revocation_by_the_first(self) -> None:
        scene = ConsumerScene(a=4)
        first, second = Consumer(scene, "m1", "a").join(), Consumer(scene, "m2", "a").join()
        assert (second.owned, second.epoch) == ({}, 2)
        assert scene.member("m2").state is MemberState.UNRELEASED_PARTITIONS
        second.beat()
        assert second.owned == {}
        first.beat()  # learns that it must revoke two, and keeps its epoch until it has
        assert (first.count, first.epoch) == (2, 1)
        assert scene.member("m1").state is MemberState.UNREVOKED_PARTITIONS
        second.beat()
        assert second.owned == {}
        first.beat()  # has revoked them
        assert first.epoch == 2
        second.beat()
        assert (first.count, second.count) == (2, 2)
        assert not set(first.owned["a"]) & set(second.owned["a"])
        assert scene.consumer_group().state == "Stable"

    def test_assignment_is_sent_on_change_and_for_full_requests(self) -> None:
        scene = ConsumerScene(a=2)
        response = scene.join_consumer("m", "a")
        assert scene.beat("m", response.member_epoch).assignment is None
        full: dict[str, Any] = {"rebalance_timeout_ms": 1_000, "subscribed_topic_names": ["a"], "owned": {"a": [0, 1]}}
        assert scene.named(scene.beat("m", response.member_epoch, **full)) == {"a": [0, 1]}
        partial: dict[str, Any] = {"subscribed_topic_names": ["a"], "owned": {"a": [0, 1]}}
        assert scene.beat("m", response.member_epoch, **partial).assignment is None


class TestErrors:
    @pytest.mark.parametrize(
        ("epoch", "fields", "words"),
        [
            (0, {"member_id": "", **JOIN}, "MemberId can't be empty."),
            (0, {"member_id": " ", "group_id": "", **JOIN}, "MemberId can't be empty."),
            (1, {"member_id": "", "version": 0}, "MemberId can't be empty."),
            (-1, {"member_id": "", "version": 0}, "MemberId can't be empty."),
            (0, {"group_id": "", **JOIN}, "GroupId can't be empty."),
            (0, {"group_id": "  ", **JOIN}, "GroupId can't be empty."),
            (0, {"instance_id": "", **JOIN}, "InstanceId can't be empty."),
            (0, {"rack_id": " ", **JOIN}, "RackId can't be empty."),
            (0, {**JOIN, "rebalance_timeout_ms": -1}, "RebalanceTimeoutMs must be provided in first request."),
            (0, {**JOIN, "topic_partitions": None}, "TopicPartitions must be empty when (re-)joining."),
            (
                0,
                {**JOIN, "topic_partitions": [messages.ConsumerGroupHeartbeatRequest.TopicPartitions()]},
                "TopicPartitions must be empty when (re-)joining.",
            ),
            (
                0,
                {**JOIN, "subscribed_topic_names": None},
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
            ),
            (-2, {}, "InstanceId can't be null."),
            (-3, {}, "MemberEpoch is invalid."),
            (0, {**JOIN, "subscribed_topic_names": ["x" * 249] * 10_000}, "SubscribedTopicNames is too large."),
        ],
    )
    def test_malformed_request_is_invalid(self, epoch: int, fields: dict[str, Any], words: str) -> None:
        scene = ConsumerScene(a=1)
        member_id = fields.pop("member_id", "m") if "member_id" in fields else "m"
        assert scene.rejection(member_id, epoch, **fields) == (ErrorCode.INVALID_REQUEST, words)

    def test_unknown_assignor_is_unsupported(self) -> None:
        scene = ConsumerScene(a=1)
        assert scene.rejection("m", 0, **JOIN, server_assignor="sticky") == (
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            "ServerAssignor sticky is not supported. Supported assignors: uniform, range.",
        )

    @pytest.mark.proves("C2")
    def test_full_group_rejects_further_members(self) -> None:
        scene = ConsumerScene(GroupSettings(group_consumer_max_size=1), a=1)
        scene.join_consumer("m", "a", instance_id="i")
        assert scene.rejection("n", 0, **JOIN) == (
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            "The consumer group has reached its maximum capacity of 1 members.",
        )
        scene.join_consumer("m", "a", instance_id=None)
        scene.beat("m", -2, instance_id="i")
        scene.join_consumer("n", "a", instance_id="i")  # takes over the instance

    def test_unknown_group_is_not_found(self) -> None:
        scene = ConsumerScene(a=1)
        assert scene.rejection("m", 3) == (ErrorCode.GROUP_ID_NOT_FOUND, "Consumer group g not found.")
        assert scene.rejection("m", -1) == (ErrorCode.GROUP_ID_NOT_FOUND, "Group g not found.")

    def test_classic_group_is_not_found_by_consumer_heartbeats(self) -> None:
        scene = ConsumerScene(a=1)
        scene.settle()
        words = "Group g is not a consumer group."
        assert scene.rejection("m", 3) == (ErrorCode.GROUP_ID_NOT_FOUND, words)
        assert scene.rejection("m", -1) == (ErrorCode.GROUP_ID_NOT_FOUND, words)

    def test_non_member_is_unknown(self) -> None:
        scene = ConsumerScene(a=1)
        scene.join_consumer("m", "a")
        words = "Member n is not a member of group g."
        assert scene.rejection("n", 1) == (ErrorCode.UNKNOWN_MEMBER_ID, words)
        assert scene.rejection("n", -1) == (ErrorCode.UNKNOWN_MEMBER_ID, words)
        unknown = (ErrorCode.UNKNOWN_MEMBER_ID, "Instance id i is unknown.")
        assert scene.rejection("n", 1, instance_id="i") == unknown
        assert scene.rejection("n", -2, instance_id="i") == unknown

    def test_member_in_another_epoch_is_fenced(self) -> None:
        scene = ConsumerScene(a=1)
        consumer = Consumer(scene, "m", "a").join()
        Consumer(scene, "n", "a").join().beat()
        settle(consumer)
        assert consumer.epoch == 2
        for epoch, word in ((3, "greater"), (1, "smaller")):
            assert scene.rejection("m", epoch) == (
                ErrorCode.FENCED_MEMBER_EPOCH,
                f"The consumer group member has a {word} member epoch ({epoch}) than the one known by the group "
                "coordinator (2). The member must abandon all its partitions and rejoin.",
            )

    @pytest.mark.proves("C2")
    def test_previous_epoch_is_accepted_after_a_lost_response(self) -> None:
        scene = ConsumerScene(a=2)
        Consumer(scene, "m", "a").join()
        scene.add_topics(b=1)
        first = scene.beat("m", 1, subscribed_topic_names=["a", "b"], owned={"a": [0, 1]})
        assert first.member_epoch == 2
        again = scene.beat("m", 1, rebalance_timeout_ms=1, subscribed_topic_names=["a", "b"], owned={"a": [0]})
        assert (again.member_epoch, scene.named(again)) == (2, {"a": [0, 1], "b": [0]})
        assert scene.rejection("m", 1)[0] == ErrorCode.FENCED_MEMBER_EPOCH  # does not name its partitions
        scene.add_topics(c=1)
        assert scene.rejection("m", 1, owned={"a": [0], "c": [0]})[0] == ErrorCode.FENCED_MEMBER_EPOCH

    @pytest.mark.proves("C2")
    def test_member_two_epochs_behind_is_fenced(self) -> None:
        scene = ConsumerScene(a=1)
        consumer = Consumer(scene, "m", "a").join()
        for count in (2, 3):
            scene.add_topics(a=count)
            consumer.beat()
        assert consumer.epoch == 3
        assert scene.rejection("m", 1, owned={"a": [0]})[0] == ErrorCode.FENCED_MEMBER_EPOCH

    def test_member_in_state_of_later_version_rejoins(self) -> None:
        scene = ConsumerScene(a=1)
        consumer = Consumer(scene, "m", "a").join()
        value = messages.ConsumerGroupCurrentMemberAssignmentValue(member_epoch=1, previous_member_epoch=0, state=9)
        scene.append(messages.ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id="m"), value)
        assert scene.rejection("m", 1) == (
            ErrorCode.FENCED_MEMBER_EPOCH,
            "The consumer group member is in a unknown state. The member must abandon all its partitions and rejoin.",
        )
        consumer.join()
        assert consumer.owned == {"a": [0]}

    def test_requests_are_rejected_without_metadata(self) -> None:
        scene = ConsumerScene(a=1)
        scene.join_consumer("m", "a")
        scene.image = MetadataImage()
        assert scene.rejection("m", 1)[0] == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def test_rejected_new_member_leaves_no_state(self) -> None:
        scene = ConsumerScene(GroupSettings(group_consumer_max_size=1), a=1)
        scene.join_consumer("m", "a")
        timers = dict(scene.timers)
        scene.rejection("n", 0, **JOIN)
        assert (len(scene.consumer_group().members), scene.timers) == (1, timers)


class TestLeaving:
    def test_leave_response_repeats_the_member(self) -> None:
        scene = ConsumerScene(a=4)
        scene.join_consumer("m", "a")
        response = scene.beat("m", -1)
        assert (response.member_id, response.member_epoch, response.assignment) == ("m", -1, None)

    def test_empty_group_stays_until_its_offsets_are_gone(self) -> None:
        scene = ConsumerScene(a=4)
        scene.join_consumer("m", "a")
        scene.beat("m", -1)
        group = scene.consumer_group()
        assert (group.state, group.epoch, group.owners, group.targets) == ("Empty", 2, {}, {})
        scene.pass_time(10 * 60_000)
        assert "g" not in scene.machine.state.consumer

    @pytest.mark.proves("C5")
    def test_partitions_of_a_leaving_member_are_reassigned(self) -> None:
        scene = ConsumerScene(a=4)
        first, second = Consumer(scene, "m1", "a").join(), Consumer(scene, "m2", "a").join()
        settle(first, second)
        scene.beat("m1", -1)
        assert scene.consumer_group().state == "Assigning"
        second.beat()
        assert (second.count, scene.consumer_group().state) == (4, "Stable")

"""Subscriptions of consumer groups: names, patterns, and topics that are created, extended and deleted."""

import pytest
from consumer_scene import (
    REQUESTER,
    SESSION_TIMEOUT_MS,
    Consumer,
    ConsumerScene,
    settle,
    topic_id,
)

from moldau.machines.groups import GroupSettings, GroupsMachine, Now
from moldau.model.errors import ErrorCode, InvalidRegularExpression
from moldau.wire import messages


class TestSubscriptions:
    def test_new_subscription_takes_effect_at_once(self) -> None:
        scene = ConsumerScene(a=2, b=2)
        consumer = Consumer(scene, "m", "a").join()
        consumer.beat(subscribed_topic_names=["b"], owned={"a": [0, 1]})
        assert consumer.owned == {}  # revokes the old topic first
        settle(consumer)
        assert (consumer.owned, consumer.epoch) == ({"b": [0, 1]}, 2)

    def test_member_that_already_revoked_gets_the_new_topic_in_one_step(self) -> None:
        scene = ConsumerScene(a=2, b=2)
        Consumer(scene, "m", "a").join()
        response = scene.beat("m", 1, subscribed_topic_names=["b"], owned={})
        assert (response.member_epoch, scene.named(response)) == (2, {"b": [0, 1]})

    def test_repeated_subscription_changes_nothing(self) -> None:
        scene = ConsumerScene(a=2, b=2)
        Consumer(scene, "m", "a", "b").join()
        count = len(scene.log)
        assert scene.beat("m", 1, subscribed_topic_names=["b", "a", "a"]).member_epoch == 1
        assert len(scene.log) == count

    def test_new_host_is_recorded_without_a_rebalance(self) -> None:
        scene = ConsumerScene(a=2)
        Consumer(scene, "m", "a").join()
        assert scene.beat("m", 1, host="/10.0.0.2").member_epoch == 1
        assert scene.member("m").client_host == "/10.0.0.2"

    @pytest.mark.proves("C2")
    def test_most_requested_assignor_is_used(self) -> None:
        scene = ConsumerScene(a=4, b=4)
        consumers = [Consumer(scene, f"m{number}", "a", "b") for number in range(3)]
        consumers[0].join(server_assignor="uniform")
        for each in consumers[1:]:
            each.join(server_assignor="range")
        settle(*consumers)
        assert [each.owned for each in consumers] == [
            {"a": [0, 1], "b": [0, 1]},
            {"a": [2], "b": [2]},
            {"a": [3], "b": [3]},
        ]
        (described,) = scene.machine.describe_consumer_groups(["g"])
        assert described.assignor_name == "range"

    def test_first_assignor_is_the_default(self) -> None:
        scene = ConsumerScene(GroupSettings(group_consumer_assignors=("range", "uniform")), a=4, b=4)
        consumers = [Consumer(scene, f"m{number}", "a", "b").join() for number in range(2)]
        settle(*consumers)
        assert consumers[0].owned == {"a": [0, 1], "b": [0, 1]}


class TestTopics:
    @pytest.mark.proves("C2")
    def test_new_partitions_are_assigned_with_the_next_heartbeat(self) -> None:
        scene = ConsumerScene(a=2)
        consumer = Consumer(scene, "m", "a").join()
        settle(consumer)
        scene.add_topics(a=4)
        consumer.beat()
        assert (consumer.owned, consumer.epoch) == ({"a": [0, 1, 2, 3]}, 2)

    def test_deleted_topic_is_revoked(self) -> None:
        scene = ConsumerScene(a=2, b=1)
        consumer = Consumer(scene, "m", "a", "b").join()
        scene.drop_topic("b")
        response = scene.beat("m", consumer.epoch)
        assert scene.named(response) == {"a": [0, 1]}
        assert scene.beat("m", 1, owned={"a": [0, 1]}).member_epoch == 2

    def test_recreated_topic_counts_as_another_topic(self) -> None:
        scene = ConsumerScene(a=1)
        Consumer(scene, "m", "a").join()
        old = scene.id_of("a")
        scene.drop_topic("a")
        scene.add_topics(a=1)
        assert scene.id_of("a") != old
        scene.beat("m", 1)
        response = scene.beat("m", 1, owned={})
        assert scene.named(response) == {"a": [0]}
        assert list(scene.member("m").assigned) == [scene.id_of("a")]

    def test_topics_without_subscribers_cost_nothing(self) -> None:
        scene = ConsumerScene(a=1)
        Consumer(scene, "m", "a").join()
        count = len(scene.log)
        scene.add_topics(b=5)
        assert scene.beat("m", 1).member_epoch == 1
        assert len(scene.log) == count

    def test_unchanged_topics_cause_no_rebalance_after_a_failover(self) -> None:
        scene = ConsumerScene(a=1)
        Consumer(scene, "m", "a").join()
        count = len(scene.log)
        scene.elect()
        assert scene.beat("m", 1).member_epoch == 1
        assert len(scene.log) == count

    def test_topic_metadata_of_an_older_kafka_is_removed(self) -> None:
        scene = ConsumerScene(a=1)
        Consumer(scene, "m", "a").join()
        value = messages.ConsumerGroupPartitionMetadataValue(
            topics=[
                messages.ConsumerGroupPartitionMetadataValue.TopicMetadata(
                    topic_id=topic_id("a"), topic_name="a", num_partitions=1
                )
            ]
        )
        scene.append(messages.ConsumerGroupPartitionMetadataKey(group_id="g"), value)
        assert scene.consumer_group().has_partition_metadata
        scene.elect()
        scene.beat("m", 1)
        assert not scene.consumer_group().has_partition_metadata


class TestRegexes:
    def test_pattern_is_resolved_at_once_and_recorded(self) -> None:
        scene = ConsumerScene(logs_a=2, logs_b=1, other=1)
        response = scene.join_consumer("m", subscribed_topic_names=None, subscribed_topic_regex="logs*")
        assert scene.named(response) == {"logs_a": [0, 1], "logs_b": [0]}
        resolved = scene.consumer_group().resolved["logs*"]
        assert resolved.topics == {"logs_a", "logs_b"}
        assert resolved.version == scene.image.offset
        assert resolved.timestamp_ms == scene.wall_ms

    def test_patterns_are_rejected_without_a_matcher(self) -> None:
        machine = GroupsMachine(GroupSettings(), image=lambda: ConsumerScene(a=1).image)
        request = messages.ConsumerGroupHeartbeatRequest(
            group_id="g", member_id="m", rebalance_timeout_ms=1, topic_partitions=[], subscribed_topic_regex="a*"
        )
        with pytest.raises(InvalidRegularExpression, match="not supported here"):
            machine.decide_consumer_heartbeat(request, REQUESTER, now=Now(0.0, 0), randomness=b"")

    def test_names_and_patterns_are_combined(self) -> None:
        scene = ConsumerScene(logs_a=1, other=1, third=1)
        response = scene.join_consumer("m", "other", subscribed_topic_regex="logs*")
        assert scene.named(response) == {"logs_a": [0], "other": [0]}

    def test_invalid_regex_is_rejected(self) -> None:
        scene = ConsumerScene(a=1)
        options = {"rebalance_timeout_ms": 1, "owned": {}, "subscribed_topic_regex": "a("}
        assert scene.rejection("m", 0, **options) == (
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            "SubscribedTopicRegex `a(` is not a valid regular expression: missing ).",
        )
        assert "g" not in scene.machine.state.consumer

    @pytest.mark.proves("C2")
    def test_new_topics_are_matched_at_most_every_ten_seconds(self) -> None:
        scene = ConsumerScene(logs_a=1)
        consumer = Consumer(scene, "m", subscribed_topic_names=None, subscribed_topic_regex="logs*").join()
        scene.add_topics(logs_b=1)
        consumer.beat()
        assert consumer.owned == {"logs_a": [0]}
        scene.pass_time(10_000)
        consumer.beat()
        assert consumer.owned == {"logs_a": [0], "logs_b": [0]}

    def test_deleted_topics_leave_the_resolved_pattern(self) -> None:
        scene = ConsumerScene(logs_a=1, logs_b=1)
        consumer = Consumer(scene, "m", subscribed_topic_names=None, subscribed_topic_regex="logs*").join()
        scene.drop_topic("logs_b")
        scene.pass_time(10_000)
        settle(consumer)
        assert scene.consumer_group().resolved["logs*"].topics == {"logs_a"}
        assert consumer.owned == {"logs_a": [0]}

    @pytest.mark.proves("C2")
    def test_regex_matches_describable_topics_and_is_refreshed(self) -> None:
        scene = ConsumerScene(logs_a=1, logs_b=1)
        request = messages.ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id="m",
            rebalance_timeout_ms=1,
            topic_partitions=[],
            subscribed_topic_regex="logs*",
            subscribed_topic_names=None,
        )
        scene.send_heartbeat(request, can_describe=lambda name: name != "logs_b")
        assert scene.consumer_group().resolved["logs*"].topics == {"logs_a"}
        bare = messages.ConsumerGroupHeartbeatRequest(
            group_id="g", member_id="m", member_epoch=1, rebalance_timeout_ms=-1
        )
        for _ in range(20):
            scene.pass_time(30_000)
            scene.send_heartbeat(bare)
        assert scene.consumer_group().resolved["logs*"].topics == {"logs_a", "logs_b"}

    def test_regex_is_removed_with_its_last_subscriber(self) -> None:
        scene = ConsumerScene(logs_a=2)
        consumers = [
            Consumer(scene, name, subscribed_topic_names=None, subscribed_topic_regex="logs*").join() for name in "mn"
        ]
        settle(*consumers)
        scene.beat("m", -1)
        assert "logs*" in scene.consumer_group().resolved
        scene.beat("n", 2, subscribed_topic_regex="", owned=consumers[1].owned)
        assert scene.consumer_group().resolved == {}

    @pytest.mark.proves("C2")
    def test_regex_is_removed_with_its_expired_subscriber(self) -> None:
        scene = ConsumerScene(logs_a=2)
        scene.join_consumer("m", subscribed_topic_names=None, subscribed_topic_regex="logs*")
        scene.pass_time(SESSION_TIMEOUT_MS)
        assert (scene.consumer_group().resolved, scene.consumer_group().metadata_hash) == ({}, 0)

    def test_patterns_are_resolved_again_after_a_failover(self) -> None:
        scene = ConsumerScene(logs_a=1)
        consumer = Consumer(scene, "m", subscribed_topic_names=None, subscribed_topic_regex="logs*").join()
        scene.add_topics(logs_b=1)
        scene.elect()
        consumer.beat()
        assert consumer.owned == {"logs_a": [0], "logs_b": [0]}

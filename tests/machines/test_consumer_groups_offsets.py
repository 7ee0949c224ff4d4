"""Offsets of consumer groups by member epoch; describe, list and delete."""

from typing import Any

import pytest
from consumer_scene import ClassicConsumer, Consumer, ConsumerScene, settle

from moldau.machines.groups import GroupSettings
from moldau.model.errors import ErrorCode, KafkaError
from moldau.wire import messages


def fetch_error(scene: ConsumerScene, member_id: str | None, epoch: int) -> ErrorCode:
    request = messages.OffsetFetchRequest.OffsetFetchRequestGroup(
        group_id="g", member_id=member_id, member_epoch=epoch, topics=None
    )
    return ErrorCode(scene.machine.fetch_offsets(request).error_code)


def commit_by_id(scene: ConsumerScene, epoch: int, *partitions: int, member_id: str = "m") -> ErrorCode:
    """Commit as a client that uses topic ids."""
    topic = messages.OffsetCommitRequest.OffsetCommitRequestTopic(
        name="a",
        topic_id=scene.id_of("a"),
        partitions=[
            messages.OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=index, committed_offset=5)
            for index in partitions
        ],
    )
    request = messages.OffsetCommitRequest(
        group_id="g", generation_id_or_member_epoch=epoch, member_id=member_id, topics=[topic]
    )
    return scene.code_of(lambda: scene.machine.decide_commit_offsets(request, api_version=10, now=scene.now))


class TestCommitting:
    def test_member_commits_in_its_epoch(self) -> None:
        scene = ConsumerScene(a=1)
        consumer = Consumer(scene, "m", "a").join()
        assert scene.commit(7, member_id="m", generation=consumer.epoch, topic="a") == ErrorCode.NONE
        assert scene.committed("a") == 7

    @pytest.mark.proves("C2")
    @pytest.mark.parametrize("epoch", [0, 2, -1])
    def test_commit_in_another_epoch_is_stale(self, epoch: int) -> None:
        scene = ConsumerScene(a=1)
        Consumer(scene, "m", "a").join()
        assert scene.commit(7, member_id="m", generation=epoch, topic="a") == ErrorCode.STALE_MEMBER_EPOCH

    def test_classic_member_commits_in_its_generation(self) -> None:
        scene = ConsumerScene(a=1)
        Consumer(scene, "m", "a").join()
        classic = ClassicConsumer(scene, "a").join()
        options: dict[str, Any] = {"member_id": classic.member_id, "topic": "a"}
        assert scene.commit(7, generation=classic.generation, version=8, **options) == ErrorCode.NONE
        assert scene.commit(7, generation=classic.generation - 1, **options) == ErrorCode.ILLEGAL_GENERATION

    def test_non_member_is_unknown(self) -> None:
        scene = ConsumerScene(a=1)
        Consumer(scene, "m", "a").join()
        assert scene.commit(7, member_id="n", generation=1) == ErrorCode.UNKNOWN_MEMBER_ID
        assert scene.commit(7) == ErrorCode.UNKNOWN_MEMBER_ID

    def test_old_request_version_cannot_carry_a_member_epoch(self) -> None:
        scene = ConsumerScene(a=1)
        Consumer(scene, "m", "a").join()
        assert scene.commit(7, member_id="m", generation=1, version=8) == ErrorCode.UNSUPPORTED_VERSION

    def test_any_commit_is_valid_without_members(self) -> None:
        scene = ConsumerScene(a=1)
        Consumer(scene, "m", "a").join()
        scene.beat("m", -1)
        assert scene.commit(7) == ErrorCode.NONE
        assert scene.commit(7, member_id="m", generation=1) == ErrorCode.UNKNOWN_MEMBER_ID

    @pytest.mark.proves("C2")
    def test_commit_in_an_older_epoch_applies_to_partitions_owned_since(self) -> None:
        scene = ConsumerScene(a=2)
        consumer = Consumer(scene, "m", "a").join()
        scene.add_topics(a=4)
        settle(consumer)
        assert consumer.epoch == 2
        assert commit_by_id(scene, 1, 0, 1) == ErrorCode.NONE
        assert commit_by_id(scene, 1, 0, 2) == ErrorCode.STALE_MEMBER_EPOCH  # assigned in epoch 2
        assert commit_by_id(scene, 2, 0, 1, 2, 3) == ErrorCode.NONE
        assert commit_by_id(scene, 3, 0) == ErrorCode.STALE_MEMBER_EPOCH

    def test_partition_being_revoked_can_still_be_committed(self) -> None:
        scene = ConsumerScene(a=2)
        consumer, other = Consumer(scene, "m", "a").join(), Consumer(scene, "n", "a").join()
        consumer.beat()
        gone = next(index for index in (0, 1) if index not in consumer.owned["a"])
        assert commit_by_id(scene, 1, gone) == ErrorCode.NONE
        settle(consumer, other)
        assert commit_by_id(scene, 1, gone) == ErrorCode.STALE_MEMBER_EPOCH
        assert commit_by_id(scene, 1, 1 - gone) == ErrorCode.NONE

    def test_commit_does_not_extend_the_session(self) -> None:
        scene = ConsumerScene(a=1)
        Consumer(scene, "m", "a").join()
        scene.pass_time(44_999)
        assert scene.commit(7, member_id="m", generation=1) == ErrorCode.NONE
        scene.pass_time(1)
        assert scene.consumer_group().is_empty

    def test_partitions_assigned_by_an_older_kafka_count_from_its_last_epoch(self) -> None:
        scene = ConsumerScene(a=2)
        Consumer(scene, "m", "a").join()
        held = messages.ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions(
            topic_id=scene.id_of("a"), partitions=[0, 1]
        )
        value = messages.ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=5, previous_member_epoch=4, assigned_partitions=[held]
        )
        scene.append(messages.ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id="m"), value)
        assert commit_by_id(scene, 5, 0, 1) == ErrorCode.NONE
        assert commit_by_id(scene, 4, 0) == ErrorCode.STALE_MEMBER_EPOCH


class TestFetching:
    def test_member_fetches_in_its_epoch_and_anonymous_fetch_is_valid(self) -> None:
        scene = ConsumerScene(a=1)
        Consumer(scene, "m", "a").join()
        classic = ClassicConsumer(scene, "a").join()
        assert fetch_error(scene, None, -1) == ErrorCode.NONE
        assert fetch_error(scene, "m", 1) == ErrorCode.NONE
        assert fetch_error(scene, "m", 2) == ErrorCode.STALE_MEMBER_EPOCH
        assert fetch_error(scene, "n", 1) == ErrorCode.UNKNOWN_MEMBER_ID
        assert fetch_error(scene, None, 1) == ErrorCode.UNKNOWN_MEMBER_ID
        assert fetch_error(scene, classic.member_id, 9) == ErrorCode.ILLEGAL_GENERATION


class TestAdministration:
    def test_group_is_described_with_current_and_target_assignment(self) -> None:
        scene = ConsumerScene(a=2)
        Consumer(scene, "m", "a", rack_id="r", instance_id="i").join()
        Consumer(scene, "n", subscribed_topic_regex="a*").join()
        classic = ClassicConsumer(scene, "a").join()
        (group,) = scene.machine.describe_consumer_groups(["g"])
        assert (group.error_code, group.group_id, group.group_state) == (0, "g", "Reconciling")
        assert (group.group_epoch, group.assignment_epoch, group.assignor_name) == (3, 3, "uniform")
        first, second, third = group.members
        assert (first.member_id, first.instance_id, first.rack_id, first.member_epoch) == ("m", "i", "r", 1)
        assert (first.client_id, first.client_host, first.member_type) == ("client", "/10.0.0.1", 1)
        assert (first.subscribed_topic_names, first.subscribed_topic_regex) == (["a"], "")
        assert (second.subscribed_topic_names, second.subscribed_topic_regex) == ([], "a*")
        assert [(each.topic_name, each.partitions) for each in first.assignment.topic_partitions] == [("a", [0, 1])]
        shares = [each.target_assignment.topic_partitions for each in group.members]
        assert sorted(index for share in shares for topic in share for index in topic.partitions) == [0, 1]
        assert (third.member_id, third.member_type) == (classic.member_id, 0)

    def test_partition_being_revoked_is_described_as_owned(self) -> None:
        scene = ConsumerScene(a=4)
        consumer, _ = Consumer(scene, "m", "a").join(), Consumer(scene, "n", "a").join()
        consumer.beat()
        (group,) = scene.machine.describe_consumer_groups(["g"])
        (shown,) = group.members[0].assignment.topic_partitions
        assert shown.partitions == [0, 1, 2, 3]
        assert [len(each.partitions) for each in group.members[0].target_assignment.topic_partitions] == [2]

    def test_deleted_topics_are_not_described(self) -> None:
        scene = ConsumerScene(a=2, b=1)
        Consumer(scene, "m", "a", "b").join()
        scene.drop_topic("b")
        (group,) = scene.machine.describe_consumer_groups(["g"])
        assert [each.topic_name for each in group.members[0].assignment.topic_partitions] == ["a"]

    def test_describe_of_another_group_type_is_not_found(self) -> None:
        scene = ConsumerScene(a=1)
        scene.settle()
        missing, other = scene.machine.describe_consumer_groups(["x", "g"])
        assert (missing.error_code, missing.error_message) == (ErrorCode.GROUP_ID_NOT_FOUND, "Group x not found.")
        assert (other.error_code, other.error_message) == (
            ErrorCode.GROUP_ID_NOT_FOUND,
            "Group g is not a consumer group.",
        )

    def test_group_is_listed_by_type_and_state(self) -> None:
        scene = ConsumerScene(a=1)
        Consumer(scene, "m", "a").join()
        scene.commit(1, member_id="m", generation=1)
        (listed,) = scene.machine.list_groups(types=["consumer"], states=["stable"])
        assert (listed.group_id, listed.group_state, listed.group_type) == ("g", "Stable", "consumer")
        assert scene.machine.list_groups(types=["classic"]) == []

    def test_group_is_dead_in_classic_describe(self) -> None:
        scene = ConsumerScene(a=1)
        Consumer(scene, "m", "a").join()
        scene.commit(1, member_id="m", generation=1)
        described = scene.machine.describe_group("g", api_version=6)
        assert (described.group_state, described.error_code) == ("Dead", ErrorCode.GROUP_ID_NOT_FOUND)
        assert described.error_message == "Group g is not a classic group."

    def test_group_is_deleted_only_without_members(self) -> None:
        scene = ConsumerScene(a=1)
        Consumer(scene, "m", "a", subscribed_topic_regex="a*").join()
        scene.commit(1, member_id="m", generation=1)
        assert scene.delete_group() == ErrorCode.NON_EMPTY_GROUP
        scene.beat("m", -1)
        assert scene.delete_group() == ErrorCode.NONE
        assert scene.machine.state == type(scene.machine.state)()

    def test_offsets_of_subscribed_topics_are_kept(self) -> None:
        scene = ConsumerScene(a=1, b=1, c=1)
        Consumer(scene, "m", "a", subscribed_topic_regex="b*").join()
        for topic in "abc":
            scene.commit(1, member_id="m", generation=1, topic=topic)
        assert scene.delete_offsets("a") == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        assert scene.delete_offsets("b") == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        assert scene.delete_offsets("c") == ErrorCode.NONE

    def test_offsets_of_unsubscribed_topics_expire_from_their_commit(self) -> None:
        settings = GroupSettings(offsets_retention_minutes=1, offsets_retention_check_interval_ms=10_000)
        scene = ConsumerScene(settings, a=1)
        consumer = Consumer(scene, "m", "a").join()
        scene.commit(1, member_id="m", generation=1, topic="a")
        scene.commit(1, member_id="m", generation=1, topic="old")
        scene.pass_time(40_000)
        consumer.beat()
        assert scene.committed("old") == 1
        scene.pass_time(40_000)
        assert (scene.committed("a"), scene.committed("old")) == (1, None)

    def test_error_names_the_unknown_member(self) -> None:
        scene = ConsumerScene(a=1)
        Consumer(scene, "m", "a").join()
        with pytest.raises(KafkaError, match=r"Member n is not a member of group g\."):
            scene.consumer_group().member("n")

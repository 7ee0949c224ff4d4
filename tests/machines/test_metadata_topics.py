"""CreateTopics, CreatePartitions and DeleteTopics: results and errors."""

import pytest
from metadata_scene import Scene

from moldau.machines.metadata import (
    MetadataSettings,
    MorePartitions,
    NewTopic,
    PartitionImage,
    Reassignment,
    Resource,
    ResourceType,
    TopicDeleted,
    TopicReference,
)
from moldau.machines.metadata.settings import PARTITIONS_PER_REQUEST_MAX
from moldau.machines.metadata.topics import topic_id_from
from moldau.model.errors import ErrorCode, PolicyViolation
from moldau.model.ids import NO_TOPIC_ID, TopicId


@pytest.mark.proves("T1")
def test_created_topic_is_in_the_image_by_name_and_id() -> None:
    scene = Scene(brokers=3)
    outcome = scene.create_one(NewTopic("orders", 2, 3, configs=[("retention.ms", "1000")]), start=1)
    assert (outcome.error, outcome.partitions, outcome.replication_factor) == (ErrorCode.NONE, 2, 3)
    image = scene.machine.image
    topic = image.topics["orders"]
    assert image.topics_by_id[outcome.topic_id] is topic
    assert image.topic_name(outcome.topic_id) == "orders"
    assert image.topic_configs("orders") == {"retention.ms": "1000"}
    directories = (b"\2" * 16, b"\3" * 16, b"\1" * 16)
    assert topic.partitions[0] == PartitionImage((2, 3, 1), (2, 3, 1), 2, 0, 0, directories)
    assert image.partition("orders", 1) is topic.partitions[1]
    assert image.partition("orders", 2) is None
    assert image.partition("payments", 0) is None


@pytest.mark.proves("T1")
def test_default_counts_come_from_the_settings() -> None:
    scene = Scene(brokers=3, settings=MetadataSettings(num_partitions=4, default_replication_factor=2))
    outcome = scene.create_one(NewTopic("orders"))
    assert (outcome.partitions, outcome.replication_factor) == (4, 2)


@pytest.mark.proves("T1")
def test_leaders_and_followers_are_spread_over_all_brokers() -> None:
    scene = Scene(brokers=4)
    scene.create_one(NewTopic("orders", 12, 2), start=7)
    partitions = scene.machine.image.topics["orders"].partitions
    assert sorted(partition.leader for partition in partitions) == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]
    assert len({partition.replicas for partition in partitions}) == 12  # no pair has more than its share


@pytest.mark.proves("T1")
def test_validate_only_returns_the_same_and_creates_nothing() -> None:
    scene = Scene()
    length = len(scene.log)
    (outcome,) = scene.create(NewTopic("orders", 3), validate_only=True)
    assert (outcome.error, outcome.partitions) == (ErrorCode.NONE, 3)
    assert len(scene.log) == length
    (rejected,) = scene.create(NewTopic("or ders"), validate_only=True)
    assert rejected.error is ErrorCode.INVALID_TOPIC_EXCEPTION


REJECTED = [
    (NewTopic(""), 17, "Topic name is invalid: the empty string is not allowed"),
    (NewTopic("."), 17, "Topic name is invalid: '.' is not allowed"),
    (NewTopic(".."), 17, "Topic name is invalid: '..' is not allowed"),
    (NewTopic("x" * 250), 17, f"Topic name is invalid: the length of '{'x' * 250}' is longer than the max"),
    (NewTopic("über"), 17, "contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"),
    (NewTopic("line\n"), 17, "contains one or more characters other than ASCII alphanumerics"),
    (NewTopic("taken_name"), 36, "Topic 'taken_name' already exists."),
    (NewTopic("taken.name"), 17, "Topic 'taken.name' collides with existing topic: taken_name"),
    (NewTopic("t", 0), 37, "Number of partitions was set to an invalid non-positive value."),
    (NewTopic("t", -2), 37, "Number of partitions was set to an invalid non-positive value."),
    (NewTopic("t", 1, 0), 38, "Replication factor must be larger than 0, or -1 to use the default value."),
    (NewTopic("t", 1, -5), 38, "Replication factor must be larger than 0, or -1 to use the default value."),
    (NewTopic("t", 1, 4), 38, "factor of 4 cannot be reached because only 3 broker(s) are registered."),
    (NewTopic("t", 1, -1, [(0, [1])]), 42, "but numPartitions was not set to -1."),
    (NewTopic("t", -1, 1, [(0, [1])]), 42, "but replication factor was not set to -1."),
    (NewTopic("t", assignments=[(0, [])]), 39, "includes an empty replica list."),
    (NewTopic("t", assignments=[(0, [9])]), 39, "includes broker 9, but no such broker is registered."),
    (NewTopic("t", assignments=[(0, [1, 2, 1])]), 39, "includes the broker 1 more than once."),
    (NewTopic("t", assignments=[(0, [1]), (0, [2])]), 39, "multiple manual partition assignments for partition 0"),
    (NewTopic("t", assignments=[(0, [1]), (2, [2])]), 39, "should be a consecutive 0-based integer sequence"),
    (NewTopic("t", assignments=[(0, [1, 2]), (1, [2])]), 39, "with 1 replica(s), but this is not consistent"),
    (NewTopic("t", assignments=[(0, [3])]), 39, "for partition 0 are fenced or in controlled shutdown."),
    (NewTopic("t", configs=[("retention.ms", "soon")]), 40, "Invalid value soon for configuration retention.ms"),
    (NewTopic("t", configs=[("no.such", "1")]), 40, "Unknown topic config name: no.such"),
    (NewTopic("t", configs=[("retention.ms", None)]), 40, "Null value not supported for topic configs: retention.ms"),
]


@pytest.mark.proves("T1")
@pytest.mark.parametrize(("topic", "code", "words"), REJECTED)
def test_invalid_topic_is_rejected_with_kafkas_code_and_message(topic: NewTopic, code: int, words: str) -> None:
    scene = Scene(brokers=2)
    scene.register(3)  # and left fenced
    scene.create_one(NewTopic("taken_name"))
    length = len(scene.log)
    outcome = scene.create_one(topic)
    assert outcome.error == code
    assert outcome.message is not None
    assert words in outcome.message
    assert len(scene.log) == length


def test_rejected_topic_does_not_affect_others_of_its_request() -> None:
    scene = Scene()
    outcomes = scene.create(NewTopic("a.b"), NewTopic("bad name"), NewTopic("a_b"), NewTopic("c"))
    assert [outcome.error.value for outcome in outcomes] == [0, 17, 17, 0]
    assert list(scene.machine.image.topics) == ["a.b", "c"]


def test_duplicate_topic_gets_one_result_and_is_rejected() -> None:
    scene = Scene()
    outcomes = scene.create(NewTopic("a"), NewTopic("b"), NewTopic("a", 5))
    assert [(outcome.name, outcome.error, outcome.message) for outcome in outcomes] == [
        ("a", ErrorCode.INVALID_REQUEST, "Duplicate topic name."),
        ("b", ErrorCode.NONE, None),
    ]
    assert list(scene.machine.image.topics) == ["b"]


def test_request_for_too_many_partitions_is_rejected_as_a_whole() -> None:
    scene = Scene()
    outcomes = scene.create(NewTopic("a"), NewTopic("b", PARTITIONS_PER_REQUEST_MAX))
    assert {outcome.error for outcome in outcomes} == {ErrorCode.POLICY_VIOLATION}
    assert scene.create_one(NewTopic("b", PARTITIONS_PER_REQUEST_MAX)).error is ErrorCode.NONE


def test_request_for_too_many_records_is_rejected_as_a_whole() -> None:
    scene = Scene()
    topics = [NewTopic(f"t{index}", configs=[("retention.ms", "1"), ("segment.bytes", "1")]) for index in range(6000)]
    with pytest.raises(PolicyViolation, match="Unable to perform excessively large batch operation"):
        scene.create(*topics)


def test_create_is_rejected_while_all_brokers_are_fenced() -> None:
    scene = Scene(brokers=0)
    scene.register(1)
    outcome = scene.create_one(NewTopic("t"))
    assert outcome.error is ErrorCode.INVALID_REPLICATION_FACTOR
    assert outcome.message is not None
    assert outcome.message.endswith("All brokers are currently fenced.")


def test_fenced_broker_gets_a_replica_only_if_needed_and_out_of_sync() -> None:
    scene = Scene(brokers=2)
    scene.register(3)
    scene.create(NewTopic("two", 4, 2), NewTopic("three", 2, 3))
    two, three = scene.machine.image.topics["two"], scene.machine.image.topics["three"]
    assert all(3 not in partition.replicas for partition in two.partitions)
    assert all(partition.replicas[-1] == 3 and 3 not in partition.isr for partition in three.partitions)


@pytest.mark.proves("T1")
def test_manual_assignments_are_used_unchanged() -> None:
    scene = Scene(brokers=3)
    scene.create_one(NewTopic("t", assignments=[(1, [3, 2]), (0, [1, 3])]))
    partitions = scene.machine.image.topics["t"].partitions
    assert [partition.replicas for partition in partitions] == [(1, 3), (3, 2)]


def test_topic_id_is_a_random_uuid_and_never_reserved() -> None:
    assert topic_id_from(bytes(16)) != NO_TOPIC_ID
    topic_id = topic_id_from(b"\xff" * 16)
    assert (topic_id[6] >> 4, topic_id[8] >> 6) == (4, 2)
    assert topic_id_from(b"\xf8" + bytes(15))[0] >> 2 != 62
    with pytest.raises(ValueError, match="16 random bytes"):
        topic_id_from(b"short")


def test_topic_id_in_use_is_not_assigned_again() -> None:
    scene = Scene()
    first, second = (
        scene.run(scene.machine.decide_create_topics([NewTopic(name)], randomness=[b"r" * 16], start=0))[0]
        for name in ("a", "b")
    )
    assert (first.error, second.error) == (ErrorCode.NONE, ErrorCode.UNKNOWN_SERVER_ERROR)
    assert scene.create_one(NewTopic("b")).error is ErrorCode.NONE


# Deletion


def delete(scene: Scene, *references: TopicReference) -> list[TopicDeleted]:
    return scene.run(scene.machine.decide_delete_topics(references))


@pytest.mark.proves("T1")
def test_topics_are_deleted_by_name_and_id_with_their_configs() -> None:
    scene = Scene()
    a, b = scene.create(NewTopic("a", configs=[("retention.ms", "1")]), NewTopic("b"))
    outcomes = delete(scene, TopicReference("a"), TopicReference(topic_id=b.topic_id))
    assert outcomes == [TopicDeleted("a", a.topic_id), TopicDeleted("b", b.topic_id)]
    assert not scene.machine.image.topics
    assert not scene.machine.image.topics_by_id
    assert list(scene.machine.image.configs) == [Resource(ResourceType.BROKER, "")]
    assert scene.create_one(NewTopic("a")).topic_id != a.topic_id
    assert scene.machine.image.topic_configs("a") == {}


def test_invalid_topic_deletions_are_rejected() -> None:
    scene = Scene()
    topic = scene.create_one(NewTopic("a"))
    unknown = TopicId(b"u" * 16)
    cases = [
        ([TopicReference("x")], 3, "This server does not host this topic-partition."),
        ([TopicReference(topic_id=unknown)], 100, "This server does not host this topic ID."),
        ([TopicReference()], 42, "Neither topic name nor id were specified."),
        ([TopicReference("a", topic.topic_id)], 42, "You may not specify both topic name and topic id."),
        ([TopicReference("a"), TopicReference("a")], 42, "Duplicate topic name."),
        ([TopicReference(topic_id=topic.topic_id)] * 2, 42, "Duplicate topic id."),
    ]
    for references, code, words in cases:
        (outcome,) = delete(scene, *references)
        assert (outcome.error, outcome.message) == (code, words)
    by_name, by_id = delete(scene, TopicReference("a"), TopicReference(topic_id=topic.topic_id))
    assert by_name.message == "The provided topic name maps to an ID that was already supplied."
    assert by_id == TopicDeleted("a", topic.topic_id)


def test_delete_is_rejected_when_disabled() -> None:
    scene = Scene(settings=MetadataSettings(delete_topic_enable=False))
    scene.create_one(NewTopic("a"))
    (outcome,) = delete(scene, TopicReference("a"))
    assert outcome.error is ErrorCode.TOPIC_DELETION_DISABLED
    assert "a" in scene.machine.image.topics


# Growth


def replicas(scene: Scene) -> list[tuple[int, ...]]:
    return [partition.replicas for partition in scene.machine.image.topics["t"].partitions]


@pytest.mark.proves("T1")
def test_added_partitions_have_the_topics_replication_factor() -> None:
    scene = Scene(brokers=3)
    scene.create_one(NewTopic("t", 2, 2))
    before = scene.machine.image.topics["t"].partitions
    (outcome,) = scene.run(scene.machine.decide_create_partitions([MorePartitions("t", 5)], start=1))
    assert outcome.error is ErrorCode.NONE
    after = scene.machine.image.topics["t"].partitions
    assert after[:2] == before
    assert [len(partition.replicas) for partition in after] == [2] * 5


@pytest.mark.proves("T1")
def test_added_partitions_during_a_reassignment_use_its_target_factor() -> None:
    scene = Scene(brokers=4)
    scene.create_one(NewTopic("t", assignments=[(0, [1, 2])]))
    scene.run(scene.machine.decide_alter_reassignments([Reassignment("t", 0, [3, 4])]))
    assert replicas(scene) == [(3, 4, 1, 2)]
    for wanted in (MorePartitions("t", 2), MorePartitions("t", 3, [[1, 4]])):
        (outcome,) = scene.run(scene.machine.decide_create_partitions([wanted], start=0))
        assert outcome.error is ErrorCode.NONE
    assert [len(each) for each in replicas(scene)] == [4, 2, 2]


def test_manual_assignment_of_new_partitions_and_validate_only() -> None:
    scene = Scene(brokers=3)
    scene.create_one(NewTopic("t", 1, 2))
    wanted = [MorePartitions("t", 3, [[3, 1], [2, 3]])]
    scene.run(scene.machine.decide_create_partitions(wanted, start=0, validate_only=True))
    assert replicas(scene) == [(1, 2)]
    scene.run(scene.machine.decide_create_partitions(wanted, start=0))
    assert replicas(scene) == [(1, 2), (3, 1), (2, 3)]


GROWTH_REJECTED = [
    (MorePartitions("x", 2), 3, "This server does not host this topic-partition."),
    (MorePartitions("t", 2), 37, "Topic already has 2 partition(s)."),
    (MorePartitions("t", 1), 37, "The topic t currently has 2 partition(s); 1 would not be an increase."),
    (MorePartitions("t", -1), 37, "The topic t currently has 2 partition(s); -1 would not be an increase."),
    (MorePartitions("t", 4, [[1]]), 39, "Attempted to add 2 additional partition(s), but only 1 assignment(s) were"),
    (MorePartitions("t", 3, [[]]), 39, "includes an empty replica list."),
    (MorePartitions("t", 3, [[1, 2]]), 39, "which have 1 replica(s)."),
    (MorePartitions("t", 3, [[7]]), 39, "no such broker is registered."),
    (MorePartitions("t", 20_000), 44, "Excessively large number of partitions per request."),
    (MorePartitions("t", 2**31 - 1), 44, "Excessively large number of partitions per request."),
]


@pytest.mark.proves("T1")
@pytest.mark.parametrize(("wanted", "code", "words"), GROWTH_REJECTED)
def test_invalid_create_partitions_has_kafkas_code_and_message(wanted: MorePartitions, code: int, words: str) -> None:
    scene = Scene(brokers=2)
    scene.create_one(NewTopic("t", 2))
    length = len(scene.log)
    (outcome,) = scene.run(scene.machine.decide_create_partitions([wanted], start=0))
    assert outcome.error == code
    assert outcome.message is not None
    assert words in outcome.message
    assert len(scene.log) == length


def test_duplicate_create_partitions_topic_is_rejected() -> None:
    scene = Scene()
    scene.create_one(NewTopic("t"))
    wanted = [MorePartitions("t", 2), MorePartitions("t", 3)]
    (outcome,) = scene.run(scene.machine.decide_create_partitions(wanted, start=0))
    assert (outcome.error, outcome.message) == (ErrorCode.INVALID_REQUEST, "Duplicate topic name.")

"""Metadata images and deltas: immutable, sharing what did not change."""

import pytest
from metadata_scene import Scene, replayed

from moldau.machines.metadata import (
    Alteration,
    ConfigChange,
    MetadataDelta,
    MetadataImage,
    MorePartitions,
    NewTopic,
    Resource,
    ResourceType,
    TopicReference,
)
from moldau.machines.metadata.builder import ImageBuilder, ImpossibleRecord
from moldau.machines.metadata.records import METADATA_VERSION_HIGHEST, EpochBegan, Record
from moldau.machines.metadata.snapshot import records_of
from moldau.model.ids import TopicId
from moldau.wire import messages

CONTROLLER = messages.RegisterControllerRecord(
    controller_id=3000,
    incarnation_id=b"c" * 16,
    end_points=[
        messages.RegisterControllerRecord.ControllerEndpoint(
            name="CONTROLLER", host="localhost", port=9093, security_protocol=0
        )
    ],
    features=[
        messages.RegisterControllerRecord.ControllerFeature(
            name="metadata.version", min_supported_version=7, max_supported_version=27
        )
    ],
)


def test_image_does_not_change_with_further_records() -> None:
    scene = Scene()
    scene.create_one(NewTopic("a", configs=[("retention.ms", "1")]))
    before = scene.machine.image
    names, partitions, configs = set(before.topics), before.topics["a"].partitions, dict(before.topic_configs("a"))
    scene.create_one(NewTopic("b"))
    scene.run(scene.machine.decide_create_partitions([MorePartitions("a", 4)], start=0))
    change = Alteration(Resource(ResourceType.TOPIC, "a"), [ConfigChange("retention.ms", 0, "2")])
    scene.run(scene.machine.decide_incremental_alter_configs([change]))
    assert scene.machine.image is not before
    assert (set(before.topics), before.topics["a"].partitions) == (names, partitions)
    assert before.topic_configs("a") == configs


def test_unchanged_parts_are_shared() -> None:
    scene = Scene()
    scene.create_one(NewTopic("a"))
    before = scene.machine.image
    scene.run(scene.machine.decide_allocate_producer_ids(1, before.brokers[1].epoch))
    after = scene.machine.image
    assert after.topics is before.topics
    assert after.topics_by_id is before.topics_by_id
    assert after.configs is before.configs
    assert after.brokers is before.brokers
    assert scene.machine.image is after


def test_image_has_its_offset_and_epoch() -> None:
    scene = Scene()
    assert scene.machine.image.offset == len(scene.log) - 1
    scene.machine.apply(EpochBegan(7), 99)
    assert (scene.machine.image.offset, scene.machine.image.epoch) == (99, 7)


def test_delta_names_created_deleted_and_changed_topics() -> None:
    scene = Scene()
    old, kept = scene.create(NewTopic("old"), NewTopic("kept", 2))
    scene.machine.take_change()
    scene.run(scene.machine.decide_delete_topics([TopicReference("old")]))
    new = scene.create_one(NewTopic("old", 3, configs=[("retention.ms", "1")]))
    scene.run(scene.machine.decide_create_partitions([MorePartitions("kept", 3)], start=0))
    image, delta = scene.machine.take_change()
    assert delta.created == {new.topic_id}
    assert {topic_id: topic.name for topic_id, topic in delta.removed.items()} == {old.topic_id: "old"}
    assert delta.changed == {new.topic_id: {0, 1, 2}, kept.topic_id: {2}}
    assert delta.configs == {Resource(ResourceType.TOPIC, "old")}
    assert not delta.brokers
    assert not delta.has_new_features
    assert scene.machine.take_change() == (image, MetadataDelta())


def test_first_delta_names_brokers_and_features() -> None:
    _, delta = Scene(brokers=2).machine.take_change()
    assert delta.brokers == {1, 2}
    assert delta.has_new_features
    assert delta


def test_topic_created_and_deleted_within_one_delta_is_not_in_it() -> None:
    for looks_between in (False, True):
        scene = Scene()
        scene.machine.take_change()
        scene.create_one(NewTopic("brief", configs=[("retention.ms", "1")]))
        if looks_between:
            assert scene.machine.image.topics  # completes an image, so that two deltas are merged
        scene.run(scene.machine.decide_delete_topics([TopicReference("brief")]))
        _, delta = scene.machine.take_change()
        assert not delta.created
        assert not delta.removed
        assert not delta.changed


def test_snapshot_holds_the_whole_image() -> None:
    scene = Scene(brokers=3)
    scene.create(NewTopic("a", 3, 2, configs=[("retention.ms", "1"), ("segment.bytes", "2")]), NewTopic("b"))
    scene.register(3, b"n" * 16)
    scene.machine.apply(CONTROLLER, 70)
    scene.run(scene.machine.decide_allocate_producer_ids(1, scene.machine.image.brokers[1].epoch))
    image = scene.machine.image
    copy = replayed(list(records_of(image))).image
    assert (copy.topics, copy.topics_by_id, copy.configs) == (image.topics, image.topics_by_id, image.configs)
    assert (copy.brokers, copy.features) == (image.brokers, image.features)
    assert copy.controllers == image.controllers != {}
    assert copy.next_producer_id == image.next_producer_id
    assert not list(records_of(MetadataImage()))


def test_partition_records_may_come_in_any_order_without_gaps() -> None:
    scene = Scene()
    topic_id = scene.create_one(NewTopic("t")).topic_id
    for index in (2, 1):
        record = messages.PartitionRecord(partition_id=index, topic_id=topic_id, replicas=[1], isr=[1], leader=1)
        scene.machine.apply(record, 50)
    assert len(scene.machine.image.topics["t"].partitions) == 3
    record = messages.PartitionRecord(partition_id=4, topic_id=topic_id, replicas=[1], isr=[1], leader=1)
    scene.machine.apply(record, 51)
    with pytest.raises(ImpossibleRecord, match="topic t has 4 partitions but no 3"):
        _ = scene.machine.image


IMPOSSIBLE: list[Record] = [
    messages.TopicRecord(name="t", topic_id=b"n" * 16),
    messages.PartitionRecord(partition_id=0, topic_id=b"n" * 16),
    messages.PartitionChangeRecord(partition_id=9, topic_id=b"n" * 16),
    messages.RemoveTopicRecord(topic_id=b"n" * 16),
    messages.UnregisterBrokerRecord(broker_id=9, broker_epoch=0),
    messages.FenceBrokerRecord(id=1, epoch=-5),
    messages.BrokerRegistrationChangeRecord(broker_id=9, broker_epoch=1),
    messages.ProducerIdsRecord(next_producer_id=5),
]


@pytest.mark.parametrize("record", IMPOSSIBLE, ids=lambda record: type(record).__name__)
def test_contradicting_record_is_rejected(record: Record) -> None:
    scene = Scene()
    scene.create_one(NewTopic("t"))
    scene.run(scene.machine.decide_allocate_producer_ids(1, scene.machine.image.brokers[1].epoch))
    with pytest.raises(ImpossibleRecord):
        scene.machine.apply(record, 100)


def test_change_of_an_unknown_partition_is_rejected() -> None:
    scene = Scene()
    topic_id = scene.create_one(NewTopic("t")).topic_id
    with pytest.raises(ImpossibleRecord):
        scene.machine.apply(messages.PartitionChangeRecord(partition_id=1, topic_id=topic_id), 100)


def test_unknown_record_type_is_rejected() -> None:
    builder = ImageBuilder(MetadataImage())
    with pytest.raises(ImpossibleRecord, match="a object at offset 3 has an unknown type"):
        builder.apply(object(), 3)  # type: ignore[arg-type]
    builder.apply(messages.NoOpRecord(), 4)
    assert builder.finish()[0] == MetadataImage(offset=4)


def test_old_fencing_records_are_applied() -> None:
    scene = Scene()
    epoch = scene.machine.image.brokers[1].epoch
    scene.machine.apply(messages.FenceBrokerRecord(id=1, epoch=epoch), 50)
    assert scene.machine.image.brokers[1].is_fenced
    scene.machine.apply(messages.UnfenceBrokerRecord(id=1, epoch=epoch), 51)
    assert scene.machine.image.is_active(1)
    leaving = messages.BrokerRegistrationChangeRecord(
        broker_id=1, broker_epoch=epoch, in_controlled_shutdown=1, log_dirs=[b"d" * 16]
    )
    scene.machine.apply(leaving, 52)
    broker = scene.machine.image.brokers[1]
    assert (broker.is_active, broker.is_shutting_down, broker.directories) == (False, True, (b"d" * 16,))


def test_records_of_a_metadata_transaction_apply_at_its_end() -> None:
    scene = Scene()
    machine = scene.machine
    machine.apply(messages.BeginTransactionRecord(name="bootstrap"), 50)
    machine.apply(messages.TopicRecord(name="a", topic_id=b"a" * 16), 51)
    machine.apply(EpochBegan(9), 52)
    assert (machine.image.epoch, machine.image.offset) == (9, 52)
    assert not machine.image.topics
    machine.apply(messages.EndTransactionRecord(), 53)
    assert list(machine.image.topics) == ["a"]
    assert machine.image.offset == 53
    machine.apply(messages.BeginTransactionRecord(), 54)
    machine.apply(messages.RemoveTopicRecord(topic_id=b"a" * 16), 55)
    with pytest.raises(ImpossibleRecord):
        machine.apply(messages.BeginTransactionRecord(), 56)
    machine = replayed([messages.TopicRecord(name="a", topic_id=b"a" * 16), messages.BeginTransactionRecord()])
    machine.apply(messages.RemoveTopicRecord(topic_id=b"a" * 16), 2)
    machine.apply(messages.AbortTransactionRecord(), 3)
    assert list(machine.image.topics) == ["a"]
    with pytest.raises(ImpossibleRecord):
        machine.apply(messages.EndTransactionRecord(), 4)


def test_every_field_of_a_partition_can_change() -> None:
    scene = Scene(brokers=2)
    topic_id = TopicId(scene.create_one(NewTopic("t")).topic_id)
    change = messages.PartitionChangeRecord(
        partition_id=0,
        topic_id=topic_id,
        isr=[2],
        leader=2,
        replicas=[2, 1],
        removing_replicas=[1],
        adding_replicas=[2],
        leader_recovery_state=1,
        directories=[b"a" * 16, b"b" * 16],
        eligible_leader_replicas=[1],
        last_known_elr=[2],
    )
    scene.machine.apply(change, 60)
    partition = scene.machine.image.partition("t", 0)
    assert partition is not None
    assert (partition.isr, partition.leader, partition.replicas) == ((2,), 2, (2, 1))
    assert (partition.removing_replicas, partition.adding_replicas) == ((1,), (2,))
    assert (partition.leader_recovery_state, partition.directories) == (1, (b"a" * 16, b"b" * 16))
    assert (partition.eligible_leader_replicas, partition.last_known_elr) == ((1,), (2,))
    assert (partition.leader_epoch, partition.partition_epoch) == (1, 1)


@pytest.mark.proves("H6")
def test_records_of_the_newest_level_are_applied() -> None:
    builder = ImageBuilder(MetadataImage())
    records: list[Record] = [
        messages.FeatureLevelRecord(name="metadata.version", feature_level=METADATA_VERSION_HIGHEST),
        messages.ZkMigrationStateRecord(),
        messages.RegisterBrokerRecord(broker_id=1, broker_epoch=2, cordoned_log_dirs=[b"d" * 16]),
        messages.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=2, fenced=-1, cordoned_log_dirs=[]),
        messages.ClearElrRecord(),
        messages.NoOpRecord(),
    ]
    for offset, record in enumerate(records):
        builder.apply(record, offset)
    image, _ = builder.finish()
    assert image.features == {"metadata.version": METADATA_VERSION_HIGHEST}
    assert image.is_active(1)
    with pytest.raises(ImpossibleRecord, match="upgrade the software to run it"):
        builder.apply(
            messages.FeatureLevelRecord(name="metadata.version", feature_level=METADATA_VERSION_HIGHEST + 1), 9
        )
    with pytest.raises(ImpossibleRecord, match="eligible replicas of topic t"):
        builder.apply(messages.ClearElrRecord(topic_name="t"), 9)

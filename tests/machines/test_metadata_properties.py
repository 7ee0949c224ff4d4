"""Invariants of the metadata machine under any order of requests."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from metadata_scene import Scene, replayed

from moldau.machines.metadata import (
    Alteration,
    ConfigChange,
    MetadataImage,
    MetadataMachine,
    MorePartitions,
    NewTopic,
    Replacement,
    Resource,
    TopicReference,
)
from moldau.machines.metadata.records import record_version
from moldau.machines.metadata.snapshot import records_of
from moldau.model.errors import KafkaError
from moldau.wire.data_records import decode_metadata_record, encode_metadata_record

Request = Callable[[Scene], Any]

# Mostly valid requests, so that much happens, and some of every invalid kind.
NAMES = st.sampled_from(["a", "b", "c", "a.b", "a_b", "bad name", ""])
PARTITIONS = st.sampled_from([1, 2, 3, -1, 0])
FACTORS = st.sampled_from([2, 3, 1, -1, 9, 0])
BROKERS = st.integers(0, 4)
CONFIGS = st.sampled_from(["retention.ms", "cleanup.policy", "no.such"])
VALUES = st.sampled_from(["1", "compact", "x", None])
RESOURCES = st.builds(Resource, st.sampled_from([2, 4, 9]), st.sampled_from(["a", "b", "1", "", "x"]))


def creations() -> st.SearchStrategy[Request]:
    by_number = st.builds(NewTopic, NAMES, PARTITIONS, FACTORS)
    assignments = st.lists(st.tuples(st.integers(0, 2), st.lists(BROKERS, max_size=3)), max_size=3)
    pairs = st.lists(st.tuples(CONFIGS, VALUES), max_size=2)
    by_hand = st.builds(NewTopic, NAMES, st.just(-1), st.just(-1), assignments, pairs)
    return st.builds(
        lambda wanted, start, validate_only: (
            lambda scene: scene.create(*wanted, start=start, validate_only=validate_only)
        ),
        st.lists(by_number | by_number | by_hand, min_size=1, max_size=3),
        st.integers(0, 9),
        st.sampled_from([False, False, False, True]),
    )


def deletions() -> st.SearchStrategy[Request]:
    return st.builds(
        lambda names, by_id: (
            lambda scene: scene.run(
                scene.machine.decide_delete_topics(
                    [
                        TopicReference(topic_id=scene.machine.image.topic_id(name)) if by_id else TopicReference(name)
                        for name in names
                    ]
                )
            )
        ),
        st.lists(NAMES, max_size=2),
        st.booleans(),
    )


def growths() -> st.SearchStrategy[Request]:
    assignments = st.none() | st.lists(st.lists(BROKERS, max_size=2), max_size=2)
    wanted = st.builds(MorePartitions, NAMES, st.integers(-1, 7), assignments)
    return st.builds(
        lambda wanted, start: lambda scene: scene.run(scene.machine.decide_create_partitions(wanted, start=start)),
        st.lists(wanted, max_size=2),
        st.integers(0, 9),
    )


def alterations() -> st.SearchStrategy[Request]:
    changes = st.lists(st.builds(ConfigChange, CONFIGS, st.integers(0, 4), VALUES), max_size=3)
    incremental = st.lists(st.builds(Alteration, RESOURCES, changes), max_size=2)
    full = st.lists(st.builds(Replacement, RESOURCES, st.lists(st.tuples(CONFIGS, VALUES), max_size=2)), max_size=2)
    return st.builds(
        lambda wanted: lambda scene: scene.run(scene.machine.decide_incremental_alter_configs(wanted)), incremental
    ) | st.builds(lambda wanted: lambda scene: scene.run(scene.machine.decide_alter_configs(wanted)), full)


def broker_events() -> st.SearchStrategy[Request]:
    def event(kind: str, broker_id: int, life: int) -> Request:
        def request(scene: Scene) -> Any:
            epoch = scene.machine.image.brokers[broker_id].epoch if broker_id in scene.machine.image.brokers else 0
            match kind:
                case "register":
                    return scene.register(broker_id, bytes([life]) * 16)
                case "fence":
                    return scene.run(scene.machine.decide_fence_broker(broker_id, epoch))
                case "unfence":
                    return scene.run(scene.machine.decide_unfence_broker(broker_id, epoch))
                case "unregister":
                    return scene.run(scene.machine.decide_unregister_broker(broker_id))
                case _:
                    return scene.run(scene.machine.decide_allocate_producer_ids(broker_id, epoch))

        return request

    kinds = st.sampled_from(["fence", "unfence", "unfence", "register", "unregister", "producer ids"])
    return st.builds(event, kinds, st.integers(1, 4), st.integers(0, 2))


REQUESTS = st.lists(
    creations() | broker_events() | broker_events() | deletions() | growths() | alterations(), max_size=25
)


def ask(scene: Scene, request: Request) -> None:
    with suppress(KafkaError):  # rejected as a whole; rejections are tested elsewhere
        request(scene)


def check(image: MetadataImage) -> None:
    assert {topic.topic_id: topic for topic in image.topics.values()} == image.topics_by_id
    assert len(image.topics) == len(image.topics_by_id)
    assert all(name == topic.name for name, topic in image.topics.items())
    for topic in image.topics.values():
        assert topic.partitions
        for partition in topic.partitions:
            assert len(set(partition.replicas)) == len(partition.replicas) >= 1
            assert partition.isr or partition.eligible_leader_replicas or partition.last_known_elr
            assert set(partition.isr) <= set(partition.replicas)
            assert partition.leader in partition.isr or not partition.has_leader
            assert len(partition.directories) == len(partition.replicas)
            if partition.has_leader:
                assert image.is_active(partition.leader)
    for resource, configs in image.configs.items():
        assert configs
        assert resource.type != 2 or resource.name in image.topics


def check_index(machine: MetadataMachine) -> None:
    """Check that the index equals one built from scratch."""
    fresh = MetadataMachine(machine.settings, machine._rules, machine.image)._index
    index = machine._index
    assert index.brokers == fresh.brokers
    assert all(set(index.of(broker_id)) == set(fresh.of(broker_id)) for broker_id in fresh.brokers)
    assert set(index.leaderless) == set(fresh.leaderless)
    assert set(index.moving) == set(fresh.moving)
    assert set(index.with_eligible) == set(fresh.with_eligible)


def copied(image: MetadataImage) -> MetadataImage:
    """Return a deep copy."""
    return replace(
        image,
        topics=dict(image.topics),
        topics_by_id=dict(image.topics_by_id),
        configs={resource: dict(configs) for resource, configs in image.configs.items()},
        brokers=dict(image.brokers),
        features=dict(image.features),
    )


def check_step(old: MetadataImage, new: MetadataImage) -> None:
    assert new.next_producer_id - old.next_producer_id in (0, 1000)
    for topic_id, topic in new.topics_by_id.items():
        if topic_id in old.topics_by_id:
            before = old.topics_by_id[topic_id]
            assert before.name == topic.name
            assert len(topic.partitions) >= len(before.partitions)
            for was, now in zip(before.partitions, topic.partitions, strict=False):
                assert now.leader_epoch >= was.leader_epoch
                assert now.partition_epoch >= was.partition_epoch
                assert was == now or now.partition_epoch > was.partition_epoch
                assert was.leader == now.leader or now.leader_epoch > was.leader_epoch
    for broker_id, broker in new.brokers.items():
        if broker_id in old.brokers:
            before_broker = old.brokers[broker_id]
            assert broker.epoch >= before_broker.epoch
            is_new_life = broker.incarnation_id != before_broker.incarnation_id
            assert is_new_life == (broker.epoch > before_broker.epoch)


@pytest.mark.proves("T1")
@settings(max_examples=150, deadline=None)
@given(REQUESTS)
def test_metadata_stays_consistent_under_any_requests(requests: list[Request]) -> None:
    scene = Scene(brokers=3)
    seen = [(scene.machine.image, copied(scene.machine.image))]
    for request in requests:
        ask(scene, request)
        image = scene.machine.image
        check(image)
        check_index(scene.machine)
        check_step(seen[-1][1], image)
        seen.append((image, copied(image)))
    assert all(image == copy for image, copy in seen)  # earlier images are unchanged
    assert replayed(scene.log).image == scene.machine.image


@settings(max_examples=60, deadline=None)
@given(REQUESTS)
def test_log_and_snapshot_lead_to_the_same_image(requests: list[Request]) -> None:
    scene = Scene(brokers=2)
    for request in requests:
        ask(scene, request)
    image = scene.machine.image

    def through_bytes(records: Any) -> list[Any]:
        return [decode_metadata_record(encode_metadata_record(each, record_version(each))) for each in records]

    assert replayed(through_bytes(scene.log)).image == image
    copy = replayed(through_bytes(records_of(image))).image
    assert (copy.topics, copy.topics_by_id, copy.configs) == (image.topics, image.topics_by_id, image.configs)
    assert (copy.brokers, copy.features, copy.next_producer_id) == (
        image.brokers,
        image.features,
        image.next_producer_id,
    )


class DecideOnly(Scene):
    """Decides and does not apply."""

    def run(self, decision: Any) -> Any:
        self.decided = decision
        return None


@settings(max_examples=60, deadline=None)
@given(REQUESTS)
def test_decisions_change_nothing_and_are_deterministic(requests: list[Request]) -> None:
    scene = Scene(brokers=3)
    for request in requests:
        ask(scene, request)
    deaf = DecideOnly(brokers=0)
    deaf.machine, deaf.log = scene.machine, scene.log
    image = scene.machine.image
    copy = copied(image)
    for request in requests:
        decisions = []
        for _ in range(2):
            deaf._ids = 1000
            deaf.decided = None
            ask(deaf, request)
            decisions.append(deaf.decided)
        assert decisions[0] == decisions[1]
    assert scene.machine.image is image
    assert image == copy


@settings(max_examples=60, deadline=None)
@given(REQUESTS, st.sets(st.integers(0, 24)))
def test_combined_deltas_equal_the_difference_of_the_ends(requests: list[Request], looks: set[int]) -> None:
    scene = Scene(brokers=3)
    old, _ = scene.machine.take_change()
    for number, request in enumerate(requests):
        ask(scene, request)
        if number in looks:
            _ = scene.machine.image
    new, delta = scene.machine.take_change()
    assert delta.created == new.topics_by_id.keys() - old.topics_by_id.keys()
    assert delta.removed.keys() == old.topics_by_id.keys() - new.topics_by_id.keys()
    for topic_id, topic in new.topics_by_id.items():
        before = old.topics_by_id[topic_id].partitions if topic_id in old.topics_by_id else ()
        different = {
            index
            for index, partition in enumerate(topic.partitions)
            if index >= len(before) or partition != before[index]
        }
        assert different <= delta.changed.get(topic_id, set())
    for resource in old.configs.keys() | new.configs.keys():
        assert old.configs.get(resource) == new.configs.get(resource) or resource in delta.configs
    for broker_id in old.brokers.keys() | new.brokers.keys():
        assert old.brokers.get(broker_id) == new.brokers.get(broker_id) or broker_id in delta.brokers

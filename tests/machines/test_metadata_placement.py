"""Replica placement: spread over racks and brokers, avoiding unavailable ones."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from metadata_scene import Scene

from moldau.machines.metadata import BrokerHeartbeat, MorePartitions, NewTopic
from moldau.machines.metadata.configs import Alteration, ConfigChange
from moldau.machines.metadata.image import PartitionImage, Resource, ResourceType
from moldau.machines.metadata.reassignments import Reassignment
from moldau.model.errors import ErrorCode


def placed(racks: Sequence[str | None], partitions: int, factor: int, *, start: int = 0) -> tuple[PartitionImage, ...]:
    scene = Scene(brokers=len(racks), racks=racks)
    scene.create_one(NewTopic("t", partitions, factor), start=start)
    return scene.machine.image.topics["t"].partitions


@pytest.mark.proves("H1")
def test_replicas_are_in_different_racks() -> None:
    racks = ["a", "a", "b", "b", "c", "c"]
    partitions = placed(racks, 30, 3)
    for partition in partitions:
        assert sorted(racks[each - 1] for each in partition.replicas) == ["a", "b", "c"]
    assert set(Counter(partition.leader for partition in partitions).values()) == {5}
    held = Counter(each for partition in partitions for each in partition.replicas)
    assert max(held.values()) - min(held.values()) <= 6


def test_more_replicas_than_racks_are_spread_evenly() -> None:
    racks = ["a", "a", "b", "b"]
    for partition in placed(racks, 8, 3):
        assert sorted(Counter(racks[each - 1] for each in partition.replicas).values()) == [1, 2]


def test_added_partitions_are_placed_like_the_first() -> None:
    racks: list[str | None] = ["a", "b", "a", "b"]
    scene = Scene(brokers=4, racks=racks)
    scene.create_one(NewTopic("t", 2, 2))
    scene.run(scene.machine.decide_create_partitions([MorePartitions("t", 10)], start=5))
    for partition in scene.machine.image.topics["t"].partitions:
        assert len({racks[each - 1] for each in partition.replicas}) == 2


@pytest.mark.parametrize("stop", [False, True])
def test_unavailable_broker_gets_no_replica_while_others_are_available(stop: bool) -> None:
    scene = Scene(brokers=4, racks=["a", "b", "c", "a"])
    epoch = scene.machine.image.brokers[2].epoch
    heartbeat = BrokerHeartbeat(2, epoch, 10**6, wants_fence=not stop, wants_shut_down=stop)
    scene.run(scene.machine.decide_broker_heartbeat(heartbeat, 0.0))
    scene.create_one(NewTopic("t", 9, 3))
    assert all(2 not in partition.replicas for partition in scene.machine.image.topics["t"].partitions)


def test_fenced_broker_in_another_rack_is_preferred() -> None:
    scene = Scene(brokers=4, racks=["a", "a", "b", "a"])
    for broker_id in (2, 3, 4):
        scene.run(scene.machine.decide_fence_broker(broker_id, scene.machine.image.brokers[broker_id].epoch))
    scene.create_one(NewTopic("t", 6, 2))
    assert {partition.replicas for partition in scene.machine.image.topics["t"].partitions} == {(1, 3)}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=7),
    st.integers(1, 12),
    st.integers(1, 7),
    st.integers(0, 50),
)
def test_replicas_are_as_even_as_the_racks_allow(
    racks: list[str | None], partitions: int, factor: int, start: int
) -> None:
    factor = min(factor, len(racks))
    found = placed(racks, partitions, factor, start=start)
    leaders = Counter(partition.leader for partition in found)
    assert max(leaders.values()) <= -(-partitions // len(racks))
    sizes = Counter(racks)
    for partition in found:
        assert len(set(partition.replicas)) == factor
        assert partition.isr == partition.replicas
        assert partition.leader == partition.replicas[0]
        used = Counter(racks[each - 1] for each in partition.replicas)
        # No rack has two more than another that still had a broker left.
        assert all(used[one] <= used[other] + 1 or used[other] == sizes[other] for one in used for other in sizes)


def cordon(scene: Scene, broker_id: int, text: str | None = "*") -> None:
    operation = 0 if text is not None else 1
    change = ConfigChange("cordoned.log.dirs", operation, text)
    alteration = Alteration(Resource(ResourceType.BROKER, str(broker_id)), [change])
    scene.run(scene.machine.decide_incremental_alter_configs([alteration]))


def held_by(scene: Scene, broker_id: int) -> int:
    topics = scene.machine.image.topics.values()
    return sum(broker_id in partition.replicas for topic in topics for partition in topic.partitions)


@pytest.mark.proves("H8")
def test_cordoned_broker_gets_no_new_partitions_until_it_is_uncordoned() -> None:
    scene = Scene(brokers=4)
    cordon(scene, 2)
    scene.create_one(NewTopic("t", 8, 3))
    scene.run(scene.machine.decide_create_partitions([MorePartitions("t", 16)], start=1))
    assert held_by(scene, 2) == 0
    cordon(scene, 2, None)
    scene.create_one(NewTopic("u", 8, 3))
    assert held_by(scene, 2) > 0


def test_cordoned_broker_is_not_used_even_if_too_few_remain() -> None:
    scene = Scene(brokers=3)
    cordon(scene, 2)
    rejected = scene.create_one(NewTopic("t", 1, 3))
    assert rejected.error is ErrorCode.INVALID_REPLICATION_FACTOR
    assert "not counting 1 cordoned" in (rejected.message or "")


@pytest.mark.proves("H8", part="draining")
def test_partition_may_stay_on_a_cordoned_broker_but_not_move_to_it() -> None:
    scene = Scene(brokers=4)
    scene.create_one(NewTopic("t", assignments=((0, (1, 2)),)))
    cordon(scene, 2)
    cordon(scene, 3)
    wanted = [Reassignment("t", 0, (1, 3)), Reassignment("t", 0, (4, 2))]
    outcomes = [scene.run(scene.machine.decide_alter_reassignments([each]))[0] for each in wanted]
    assert [each.error for each in outcomes] == [ErrorCode.INVALID_REPLICA_ASSIGNMENT, ErrorCode.NONE]

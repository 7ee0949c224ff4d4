"""The partition index: replicas per broker, leaderless partitions, reassignments."""

import pytest

from moldau.machines.metadata.delta import delta_between
from moldau.machines.metadata.image import MetadataImage, PartitionImage, TopicImage
from moldau.machines.metadata.partition_index import PartitionIndex
from moldau.model.ids import TopicId

ID = TopicId(b"t" * 16)


def partition(replicas: tuple[int, ...], leader: int = 1, adding: tuple[int, ...] = ()) -> PartitionImage:
    return PartitionImage(replicas, replicas, leader, 0, 0, adding_replicas=adding)


def image(*partitions: PartitionImage) -> MetadataImage:
    topic = TopicImage("t", ID, partitions)
    return MetadataImage(topics={"t": topic}, topics_by_id={ID: topic})


def held(index: PartitionIndex) -> dict[int, list[int]]:
    return {broker_id: sorted(key.partition for key in index.of(broker_id)) for broker_id in index.brokers}


@pytest.mark.proves("H3")
def test_index_follows_replicas_leaders_and_moves_until_the_deletion() -> None:
    index = PartitionIndex()
    states = [
        (image(partition((1, 2)), partition((2, 3), 2)), {1: [0], 2: [0, 1], 3: [1]}, [], []),
        (image(partition((1, 2)), partition((2, 3), -1)), {1: [0], 2: [0, 1], 3: [1]}, [1], []),
        (
            image(partition((1, 2, 4), adding=(4,)), partition((2, 3), 3)),
            {1: [0], 2: [0, 1], 3: [1], 4: [0]},
            [],
            [0],
        ),
        (image(partition((4,), 4), partition((2, 3), 3)), {2: [1], 3: [1], 4: [0]}, [], []),
        (MetadataImage(), {}, [], []),
    ]
    old = MetadataImage()
    for new, holders, leaderless, moving in states:
        index.follow(old, new, delta_between(old, new))
        assert held(index) == holders
        assert [key.partition for key in index.leaderless] == leaderless
        assert [key.partition for key in index.moving] == moving
        old = new


def test_partitions_with_eligible_replicas_are_indexed() -> None:
    index = PartitionIndex()
    before = image(PartitionImage((1, 2), (1,), 1, 0, 0, eligible_leader_replicas=(2,)))
    index.follow(MetadataImage(), before, delta_between(MetadataImage(), before))
    assert [key.partition for key in index.with_eligible] == [0]
    after = image(partition((1, 2)))
    index.follow(before, after, delta_between(before, after))
    assert not index.with_eligible

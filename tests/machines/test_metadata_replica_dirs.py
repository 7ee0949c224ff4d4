"""AssignReplicasToDirs: lost replicas and the elections that follow."""

import pytest
from metadata_scene import Scene

from moldau.machines.metadata import NewTopic
from moldau.machines.metadata.image import PartitionImage
from moldau.machines.metadata.replica_dirs import LOST, ReplicaDirAssignment
from moldau.model.errors import ErrorCode, StaleBrokerEpoch
from moldau.model.ids import DirectoryId, TopicId


def scene_with(replicas: list[int], min_isr: int = 2) -> Scene:
    scene = Scene(brokers=3)
    scene.create_one(NewTopic("t", assignments=[(0, replicas)], configs=[("min.insync.replicas", str(min_isr))]))
    return scene


def partition(scene: Scene) -> PartitionImage:
    found = scene.machine.image.partition("t", 0)
    assert found is not None
    return found


def place(
    scene: Scene,
    broker_id: int,
    directory: DirectoryId = LOST,
    *,
    topic_id: TopicId | None = None,
    index: int = 0,
    epoch: int | None = None,
) -> ErrorCode:
    machine = scene.machine
    copy = ReplicaDirAssignment(topic_id or machine.image.topic_id("t"), index, directory)
    broker_epoch = machine.image.brokers[broker_id].epoch if epoch is None else epoch
    (noted,) = scene.run(machine.decide_assign_replicas_to_dirs(broker_id, broker_epoch, [copy, copy]))
    assert noted.copy == copy
    return noted.error


def fence(scene: Scene, *brokers: int) -> None:
    for broker_id in brokers:
        scene.run(scene.machine.decide_fence_broker(broker_id, scene.machine.image.brokers[broker_id].epoch))


@pytest.mark.proves("H4")
def test_leader_with_a_lost_replica_is_replaced() -> None:
    scene = scene_with([1, 2, 3])
    before = partition(scene)
    assert place(scene, 1) == ErrorCode.NONE
    after = partition(scene)
    assert (after.leader, after.isr, after.eligible_leader_replicas) == (2, (2, 3), ())
    assert after.leader_epoch == before.leader_epoch + 1


@pytest.mark.proves("H5")
def test_follower_with_a_lost_replica_leaves_the_isr_and_the_epoch_is_bumped() -> None:
    scene = scene_with([1, 2, 3])
    before = partition(scene)
    assert place(scene, 3) == ErrorCode.NONE
    after = partition(scene)
    assert (after.leader, after.isr) == (1, (1, 2))
    assert after.leader_epoch == before.leader_epoch + 1
    assert place(scene, 3) == ErrorCode.NONE  # it is not in the ISR, but the leader may know an old end offset
    assert partition(scene).leader_epoch == after.leader_epoch + 1


@pytest.mark.proves("H4")
def test_replica_that_was_lost_is_not_eligible() -> None:
    scene = scene_with([1, 2])
    assert place(scene, 1) == ErrorCode.NONE
    assert (partition(scene).leader, partition(scene).isr, partition(scene).eligible_leader_replicas) == (2, (2,), ())


@pytest.mark.proves("H4")
def test_only_complete_replica_cannot_be_lost() -> None:
    scene = scene_with([1, 2], min_isr=1)
    fence(scene, 2)
    before = partition(scene)
    assert (before.isr, before.eligible_leader_replicas) == ((1,), ())
    assert place(scene, 1) == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    assert partition(scene) == before


def test_last_known_leader_cannot_lose_its_replica() -> None:
    scene = scene_with([1, 2], min_isr=1)
    fence(scene, 2, 1)
    assert set(partition(scene).trusted) == {1}
    assert place(scene, 1) == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE


@pytest.mark.proves("H4")
def test_lost_replica_waits_for_an_eligible_replica_that_is_down() -> None:
    scene = scene_with([1, 2])
    fence(scene, 2)
    assert (partition(scene).isr, partition(scene).eligible_leader_replicas) == ((1,), (2,))
    assert place(scene, 1) == ErrorCode.NONE
    assert (partition(scene).leader, partition(scene).isr) == (-1, ())
    assert partition(scene).eligible_leader_replicas == (2,)
    scene.run(scene.machine.decide_unfence_broker(2, scene.machine.image.brokers[2].epoch))
    assert (partition(scene).leader, partition(scene).trusted) == (2, (2,))


@pytest.mark.proves("H3")
def test_lost_replica_is_not_awaited_without_eligible_replicas() -> None:
    scene = scene_with([1, 2])
    fence(scene, 2)
    assert place(scene, 1) == ErrorCode.NONE
    assert (partition(scene).eligible_leader_replicas, partition(scene).last_known_elr) == ((2,), (2,))
    epoch = scene.register(2, b"j" * 16, is_clean=False)
    assert (partition(scene).leader, partition(scene).eligible_leader_replicas) == (-1, ())
    scene.run(scene.machine.decide_unfence_broker(2, epoch))
    assert (partition(scene).leader, partition(scene).trusted) == (2, (2,))


def test_last_known_leader_is_cleared_when_its_replica_is_lost() -> None:
    scene = scene_with([1, 2, 3], min_isr=3)
    fence(scene, 2, 3, 1)
    assert (partition(scene).eligible_leader_replicas, partition(scene).last_known_elr) == ((1, 2, 3), (1,))
    assert place(scene, 1) == ErrorCode.NONE
    assert (partition(scene).eligible_leader_replicas, partition(scene).last_known_elr) == ((2, 3), (2,))


def test_directory_of_the_broker_is_noted_and_another_is_rejected() -> None:
    scene = scene_with([1, 2, 3])
    own = scene.machine.image.brokers[2].directories
    assert own
    before = partition(scene)
    assert place(scene, 2, DirectoryId(b"z" * 16)) == ErrorCode.INVALID_REQUEST
    for directory in own:
        assert place(scene, 2, DirectoryId(directory)) == ErrorCode.NONE
        assert partition(scene).directories[1] == directory
    assert (partition(scene).isr, partition(scene).leader_epoch) == (before.isr, before.leader_epoch)


def test_non_replica_and_unknown_partition_are_rejected() -> None:
    scene = scene_with([1, 2])
    assert place(scene, 3) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert place(scene, 1, index=7) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert place(scene, 1, topic_id=TopicId(b"x" * 16)) == ErrorCode.UNKNOWN_TOPIC_ID
    with pytest.raises(StaleBrokerEpoch):
        place(scene, 1, epoch=0)

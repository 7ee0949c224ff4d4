"""Partition reassignments and their cancellation."""

from collections.abc import Sequence

import pytest
from metadata_scene import Scene

from moldau.machines.metadata import IsrProposal, NewTopic, Reassigned, Reassignment
from moldau.machines.metadata.image import PartitionImage
from moldau.model.errors import ErrorCode, PolicyViolation


@pytest.fixture
def scene() -> Scene:
    scene = Scene(brokers=5)
    scene.create_one(NewTopic("t", assignments=[(0, [1, 2, 3]), (1, [2, 3, 1])]))
    return scene


def partition(scene: Scene, index: int = 0) -> PartitionImage:
    found = scene.machine.image.partition("t", index)
    assert found is not None
    return found


def move(scene: Scene, replicas: Sequence[int] | None, index: int = 0, *, may_change_factor: bool = True) -> Reassigned:
    wanted = [Reassignment("t", index, replicas)]
    (outcome,) = scene.run(scene.machine.decide_alter_reassignments(wanted, may_change_factor=may_change_factor))
    return outcome


def in_sync(scene: Scene, isr: Sequence[int]) -> None:
    found = partition(scene)
    members = [(each, scene.machine.image.brokers[each].epoch) for each in isr]
    topic_id = scene.machine.image.topic_id("t")
    proposal = IsrProposal(topic_id, 0, found.leader_epoch, found.partition_epoch, members)
    epoch = scene.machine.image.brokers[found.leader].epoch
    scene.run(scene.machine.decide_alter_partition(found.leader, epoch, [proposal]))


def plan(scene: Scene) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    found = partition(scene)
    return found.replicas, found.adding_replicas, found.removing_replicas


@pytest.mark.proves("H8")
def test_reassignment_waits_for_new_replicas_and_then_removes_old_ones(scene: Scene) -> None:
    assert not move(scene, [4, 5, 1]).error
    assert plan(scene) == ((4, 5, 1, 2, 3), (4, 5), (2, 3))
    assert [(each.topic, each.index) for each in scene.machine.reassignments(None)] == [("t", 0)]
    assert len(partition(scene).directories) == 5
    in_sync(scene, [1, 2, 3, 4])
    assert plan(scene) == ((4, 5, 1, 2, 3), (4, 5), (2, 3))
    in_sync(scene, [1, 2, 3, 4, 5])
    found = partition(scene)
    assert (plan(scene), found.isr, found.leader) == (((4, 5, 1), (), ()), (4, 5, 1), 1)
    assert found.directories == tuple(bytes([each]) * 16 for each in (4, 5, 1))
    assert scene.machine.reassignments(None) == []


@pytest.mark.proves("H8")
def test_cancelled_reassignment_restores_the_replicas(scene: Scene) -> None:
    move(scene, [4, 5, 1])
    in_sync(scene, [1, 2, 3, 4])
    assert not move(scene, None).error
    found = partition(scene)
    assert (plan(scene), found.isr, found.leader) == (((1, 2, 3), (), ()), (1, 2, 3), 1)
    assert move(scene, None).error == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def test_new_reassignment_replaces_the_previous_one(scene: Scene) -> None:
    move(scene, [4, 2, 3])
    in_sync(scene, [1, 2, 3])
    move(scene, [1, 5])
    assert plan(scene) == ((1, 5, 2, 3), (5,), (2, 3))
    in_sync(scene, [1, 2, 3, 5])
    assert plan(scene) == ((1, 5), (), ())


def test_removal_and_reordering_of_replicas_completes_at_once(scene: Scene) -> None:
    move(scene, [3, 2, 1])
    assert plan(scene) == ((3, 2, 1), (), ())
    assert partition(scene).leader == 1
    move(scene, [2, 3])
    found = partition(scene)
    assert (plan(scene), found.leader, found.isr) == (((2, 3), (), ()), 2, (2, 3))
    epoch = found.partition_epoch
    move(scene, [2, 3])
    assert partition(scene).partition_epoch == epoch


@pytest.mark.proves("H8")
def test_removal_waits_until_a_remaining_replica_is_in_sync(scene: Scene) -> None:
    in_sync(scene, [1])
    move(scene, [2])
    assert plan(scene) == ((2, 1, 3), (), (1, 3))
    assert partition(scene).leader == 1
    in_sync(scene, [1, 2])
    assert (plan(scene), partition(scene).leader) == (((2,), (), ()), 2)


@pytest.mark.proves("H8")
def test_removal_waits_until_all_remaining_replicas_are_in_sync(scene: Scene) -> None:
    scene.run(scene.machine.decide_fence_broker(2, scene.machine.image.brokers[2].epoch))
    move(scene, [1, 2])
    assert (plan(scene), partition(scene).isr) == (((1, 2, 3), (), (3,)), (1, 3))
    assert not move(scene, None).error
    assert (plan(scene), partition(scene).isr) == (((1, 2, 3), (), ()), (1, 3))
    move(scene, [1, 2])
    scene.run(scene.machine.decide_unfence_broker(2, scene.machine.image.brokers[2].epoch))
    in_sync(scene, [1, 2, 3])
    assert (plan(scene), partition(scene).isr) == (((1, 2), (), ()), (1, 2))


@pytest.mark.proves("H8")
def test_reassignment_waits_for_remaining_and_new_replicas(scene: Scene) -> None:
    in_sync(scene, [1, 2])
    move(scene, [3, 4])
    in_sync(scene, [1, 2, 4])
    assert (plan(scene), partition(scene).isr) == (((3, 4, 1, 2), (4,), (1, 2)), (4, 1, 2))
    in_sync(scene, [1, 2, 4, 3])
    assert (plan(scene), partition(scene).isr) == (((3, 4), (), ()), (3, 4))


@pytest.mark.proves("H8")
def test_reassignment_is_not_cancelled_when_only_new_replicas_are_in_sync(scene: Scene) -> None:
    move(scene, [4, 5])
    in_sync(scene, [1, 4])
    scene.run(scene.machine.decide_fence_broker(1, scene.machine.image.brokers[1].epoch))
    assert partition(scene).isr == (4,)
    outcome = move(scene, None)
    assert outcome.error == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert partition(scene).isr == (4,)


@pytest.mark.proves("H8")
def test_replication_factor_change_is_rejected_if_disallowed(scene: Scene) -> None:
    outcome = move(scene, [4, 5], may_change_factor=False)
    assert outcome.error == ErrorCode.INVALID_REPLICATION_FACTOR
    assert not move(scene, [4, 5, 1], may_change_factor=False).error
    assert not move(scene, [4, 2, 1], may_change_factor=False).error  # relative to the factor before the reassignment


REJECTED: list[tuple[Reassignment, ErrorCode]] = [
    (Reassignment("x", 0, [1]), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (Reassignment("t", 9, [1]), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (Reassignment("t", -1, None), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (Reassignment("t", 0, None), ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
    (Reassignment("t", 0, []), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    (Reassignment("t", 0, [1, 1]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    (Reassignment("t", 0, [1, 9]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
]


@pytest.mark.parametrize(("wanted", "code"), REJECTED)
def test_invalid_reassignments_are_rejected(scene: Scene, wanted: Reassignment, code: ErrorCode) -> None:
    outcomes = scene.run(scene.machine.decide_alter_reassignments([wanted, Reassignment("t", 1, [2, 3, 4])]))
    assert [outcome.error for outcome in outcomes] == [code, ErrorCode.NONE]
    assert partition(scene, 1).adding_replicas == (4,)


def test_request_names_a_partition_once_and_is_bounded(scene: Scene) -> None:
    wanted = Reassignment("t", 0, [1, 2, 4])
    (outcome,) = scene.run(scene.machine.decide_alter_reassignments([wanted, wanted]))
    assert not outcome.error
    with pytest.raises(PolicyViolation):
        scene.machine.decide_alter_reassignments([wanted] * 10_001)


def test_reassignments_are_listed_by_partition(scene: Scene) -> None:
    move(scene, [4, 2, 3])
    assert [each.index for each in scene.machine.reassignments([("t", 0), ("t", 1), ("x", 0), ("t", 0)])] == [0]


def test_broker_that_is_being_removed_may_be_down(scene: Scene) -> None:
    move(scene, [2, 3, 4])
    scene.run(scene.machine.decide_unregister_broker(1))
    assert (partition(scene).leader, partition(scene).isr) == (2, (2, 3))
    in_sync(scene, [2, 3, 4])
    assert plan(scene) == ((2, 3, 4), (), ())


@pytest.mark.proves("H8")
def test_reassignment_completes_when_its_last_replica_returns_to_lead() -> None:
    """The broker that is being removed may be down for good: nothing else would complete it."""
    scene = Scene(brokers=2)
    scene.create_one(NewTopic("t", assignments=[(0, [1, 2])], configs=[("min.insync.replicas", "2")]))
    epochs = {each: scene.machine.image.brokers[each].epoch for each in (1, 2)}
    scene.run(scene.machine.decide_fence_broker(1, epochs[1]))
    scene.run(scene.machine.decide_fence_broker(2, epochs[2]))
    assert not move(scene, [1]).error
    assert plan(scene) == ((1, 2), (), (2,))
    scene.run(scene.machine.decide_unfence_broker(1, epochs[1]))
    found = partition(scene)
    assert (plan(scene), found.leader, found.isr) == (((1,), (), ()), 1, (1,))
    assert (found.eligible_leader_replicas, len(found.directories)) == ((), 1)
    assert scene.machine.reassignments(None) == []

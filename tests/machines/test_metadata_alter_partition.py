"""AlterPartition: ISR proposals of leaders."""

from collections.abc import Sequence

import pytest
from metadata_scene import Scene

from moldau.machines.metadata import IsrProposal, IsrResult, NewTopic, Reassignment
from moldau.machines.metadata.image import PartitionImage
from moldau.machines.metadata.partition_draft import RECOVERED, RECOVERING
from moldau.model.errors import ErrorCode, StaleBrokerEpoch
from moldau.model.ids import TopicId


@pytest.fixture
def scene() -> Scene:
    scene = Scene(brokers=3)
    scene.create_one(NewTopic("t", assignments=[(0, [1, 2, 3])], configs=[("min.insync.replicas", "2")]))
    return scene


def partition(scene: Scene) -> PartitionImage:
    found = scene.machine.image.partition("t", 0)
    assert found is not None
    return found


def epoch_of(scene: Scene, broker_id: int) -> int:
    return scene.machine.image.brokers[broker_id].epoch


def proposal(
    scene: Scene,
    isr: Sequence[int],
    *,
    leader_epoch: int = 0,
    partition_epoch: int = 0,
    recovery: int = RECOVERED,
    epochs: dict[int, int] | None = None,
) -> IsrProposal:
    """Build a proposal relative to the current state."""
    found = partition(scene)
    known = {each: broker.epoch for each, broker in scene.machine.image.brokers.items()}
    members = [(each, {**known, **(epochs or {})}.get(each, -1)) for each in isr]
    return IsrProposal(
        scene.machine.image.topic_id("t"),
        0,
        found.leader_epoch + leader_epoch,
        found.partition_epoch + partition_epoch,
        members,
        recovery,
    )


def propose(scene: Scene, proposal: IsrProposal, leader: int = 1) -> IsrResult:
    decision = scene.machine.decide_alter_partition(leader, epoch_of(scene, leader), [proposal])
    (outcome,) = scene.run(decision)
    return outcome


def test_isr_change_returns_the_new_partition_state(scene: Scene) -> None:
    outcome = propose(scene, proposal(scene, [1, 3]))
    assert outcome.partition == partition(scene)
    assert (partition(scene).isr, partition(scene).partition_epoch, partition(scene).leader_epoch) == ((1, 3), 1, 0)
    propose(scene, proposal(scene, [1]))
    assert partition(scene).eligible_leader_replicas == (3,)
    propose(scene, proposal(scene, [2, 1, 3]))
    assert (partition(scene).isr, partition(scene).eligible_leader_replicas) == ((1, 2, 3), ())


@pytest.mark.proves("H5")
def test_proposing_current_isr_invalidates_older_proposals(scene: Scene) -> None:
    late = proposal(scene, [1, 2])
    outcome = propose(scene, proposal(scene, [1, 2, 3]))
    assert (outcome.error, outcome.partition) == (ErrorCode.NONE, partition(scene))
    assert (partition(scene).isr, partition(scene).partition_epoch) == ((1, 2, 3), 1)
    assert propose(scene, late).error == ErrorCode.INVALID_UPDATE_VERSION


@pytest.mark.proves("H5")
def test_isr_proposal_with_stale_epoch_is_rejected(scene: Scene) -> None:
    propose(scene, proposal(scene, [1, 2]))
    scene.run(scene.machine.decide_fence_broker(1, epoch_of(scene, 1)))
    scene.run(scene.machine.decide_unfence_broker(1, epoch_of(scene, 1)))
    before = partition(scene)
    assert (before.leader, before.leader_epoch) == (2, 1)
    cases = [
        (proposal(scene, [2], leader_epoch=-1), 2, ErrorCode.FENCED_LEADER_EPOCH),
        (proposal(scene, [2], leader_epoch=1), 2, ErrorCode.NOT_CONTROLLER),
        (proposal(scene, [2], partition_epoch=-1), 2, ErrorCode.INVALID_UPDATE_VERSION),
        (proposal(scene, [2], partition_epoch=1), 2, ErrorCode.NOT_CONTROLLER),
        (proposal(scene, [1, 2]), 1, ErrorCode.INVALID_REQUEST),
        (proposal(scene, [1]), 2, ErrorCode.INVALID_REQUEST),
        (proposal(scene, [2, 2]), 2, ErrorCode.INVALID_REQUEST),
        (proposal(scene, [2, 9]), 2, ErrorCode.INVALID_REQUEST),
        (proposal(scene, [2, 1], recovery=RECOVERING), 2, ErrorCode.INVALID_REQUEST),
        (proposal(scene, [2], recovery=RECOVERING), 2, ErrorCode.INVALID_REQUEST),
        (proposal(scene, [2], recovery=7), 2, ErrorCode.INVALID_REQUEST),
    ]
    for each, leader, code in cases:
        assert propose(scene, each, leader).error == code
    assert partition(scene) == before


def test_unknown_partition_and_stale_leader_are_rejected(scene: Scene) -> None:
    topic_id = scene.machine.image.topic_id("t")
    unknown = [IsrProposal(TopicId(b"x" * 16), 0, 0, 0, [(1, -1)]), IsrProposal(topic_id, 7, 0, 0, [(1, -1)])]
    outcomes = scene.run(scene.machine.decide_alter_partition(1, epoch_of(scene, 1), [*unknown, *unknown]))
    assert [outcome.error for outcome in outcomes] == [
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    with pytest.raises(StaleBrokerEpoch):
        scene.machine.decide_alter_partition(1, epoch_of(scene, 1) - 1, [])


@pytest.mark.proves("H1")
def test_fenced_or_restarted_replica_does_not_join_the_isr(scene: Scene) -> None:
    propose(scene, proposal(scene, [1]))
    old = epoch_of(scene, 2)
    scene.register(2, b"j" * 16, is_clean=False)
    assert propose(scene, proposal(scene, [1, 2])).error == ErrorCode.INELIGIBLE_REPLICA
    scene.run(scene.machine.decide_unfence_broker(2, epoch_of(scene, 2)))
    assert propose(scene, proposal(scene, [1, 2], epochs={2: old})).error == ErrorCode.INELIGIBLE_REPLICA
    assert propose(scene, proposal(scene, [1, 2])).error == ErrorCode.NONE
    scene.run(scene.machine.decide_unregister_broker(3))
    assert propose(scene, proposal(scene, [1, 2, 3], epochs={3: 1})).error == ErrorCode.INELIGIBLE_REPLICA


def test_proposal_without_epochs_is_accepted(scene: Scene) -> None:
    assert propose(scene, proposal(scene, [1, 2], epochs={1: -1, 2: -1})).error == ErrorCode.NONE


def test_recovering_leader_must_be_alone_in_the_isr_first(scene: Scene) -> None:
    for broker_id in (2, 3, 1):
        scene.register(broker_id, b"j" * 16, is_clean=False)
    for broker_id in (1, 2, 3):
        scene.run(scene.machine.decide_unfence_broker(broker_id, epoch_of(scene, broker_id)))
    assert (partition(scene).leader, partition(scene).leader_recovery_state) == (1, RECOVERING)
    assert propose(scene, proposal(scene, [1, 2], recovery=RECOVERING)).error == ErrorCode.INVALID_REQUEST
    assert propose(scene, proposal(scene, [1, 2])).error == ErrorCode.NONE
    assert partition(scene).leader_recovery_state == RECOVERED


# Reassignment


@pytest.mark.proves("H5")
def test_isr_that_completes_a_reassignment_bumps_the_leader_epoch(scene: Scene) -> None:
    scene.add_broker(4)
    scene.run(scene.machine.decide_alter_reassignments([Reassignment("t", 0, [1, 2, 4])]))
    outcome = propose(scene, proposal(scene, [1, 2, 3, 4]))
    assert outcome.error == ErrorCode.FENCED_LEADER_EPOCH
    found = partition(scene)
    assert (found.replicas, found.isr, found.leader, found.leader_epoch) == ((1, 2, 4), (1, 2, 4), 1, 1)


def test_isr_that_completes_a_move_off_the_leader_elects_another(scene: Scene) -> None:
    scene.add_broker(4)
    scene.run(scene.machine.decide_alter_reassignments([Reassignment("t", 0, [4, 2])]))
    outcome = propose(scene, proposal(scene, [1, 2, 3, 4]))
    assert outcome.error == ErrorCode.NEW_LEADER_ELECTED
    found = partition(scene)
    assert (found.replicas, found.isr, found.leader, found.leader_epoch) == ((4, 2), (4, 2), 4, 1)

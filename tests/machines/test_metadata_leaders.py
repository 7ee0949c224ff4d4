"""Preferred leader elections, and the completion of work interrupted by a failover."""

import pytest
from metadata_scene import Scene, replayed

from moldau.machines.decision import SetTimer
from moldau.machines.metadata import (
    Alteration,
    BrokerHeartbeat,
    ConfigChange,
    IsrProposal,
    MetadataSettings,
    NewTopic,
    Operation,
    Resource,
    ResourceType,
)
from moldau.machines.metadata.brokers import BrokerChangeContinued
from moldau.machines.metadata.elect_leaders import ELECTIONS_PER_CHECK_MAX, ElectionType, LeadersChecked
from moldau.machines.metadata.features import FeatureUpdate, UpgradeType
from moldau.machines.metadata.image import ELR_FEATURE
from moldau.machines.metadata.settings import PARTITIONS_PER_DECISION_MAX, RECORDS_PER_DECISION_MAX
from moldau.model.errors import ErrorCode, InvalidRequest, PolicyViolation

CHECK = SetTimer(LeadersChecked(), 300_000)


def epoch_of(scene: Scene, broker_id: int) -> int:
    return scene.machine.image.brokers[broker_id].epoch


def fence(scene: Scene, broker_id: int) -> list[object]:
    decision = scene.machine.decide_fence_broker(broker_id, epoch_of(scene, broker_id))
    scene.run(decision)
    return list(decision.timers)


def unfence(scene: Scene, broker_id: int) -> list[object]:
    decision = scene.machine.decide_unfence_broker(broker_id, epoch_of(scene, broker_id))
    scene.run(decision)
    return list(decision.timers)


def leaders(scene: Scene) -> list[int]:
    return [partition.leader for partition in scene.machine.image.topics["t"].partitions]


def back_in_sync(scene: Scene) -> None:
    """Let every follower catch up."""
    topic = scene.machine.image.topics["t"]
    for index, partition in enumerate(topic.partitions):
        members = [(each, -1) for each in partition.replicas if scene.machine.image.is_active(each)]
        proposal = IsrProposal(topic.topic_id, index, partition.leader_epoch, partition.partition_epoch, members)
        scene.run(scene.machine.decide_alter_partition(partition.leader, epoch_of(scene, partition.leader), [proposal]))


def disturbed(settings: MetadataSettings | None = None) -> Scene:
    """Return a scene in which broker 1 was down and leads none of its preferred partitions."""
    scene = Scene(brokers=3, settings=settings)
    scene.create_one(NewTopic("t", assignments=[(index, [1 + index % 3, 1 + (index + 1) % 3]) for index in range(6)]))
    fence(scene, 1)
    unfence(scene, 1)
    back_in_sync(scene)
    assert leaders(scene) == [2, 2, 3, 2, 2, 3]
    return scene


@pytest.mark.proves("H8")
def test_preferred_leaders_are_elected_periodically() -> None:
    scene = disturbed()
    assert scene.time_out(LeadersChecked(), 0.0) == [CHECK]
    assert leaders(scene) == [1, 2, 3, 1, 2, 3]
    assert not scene.machine.decide_timed_out(LeadersChecked(), 0.0).records


def test_automatic_leader_rebalance_can_be_disabled() -> None:
    scene = disturbed(MetadataSettings(auto_leader_rebalance_enable=False))
    assert scene.time_out(LeadersChecked(), 0.0) == [CHECK]
    assert leaders(scene) == [2, 2, 3, 2, 2, 3]


def test_many_preferred_leaders_are_elected_in_slices() -> None:
    scene = Scene(brokers=2)
    count = ELECTIONS_PER_CHECK_MAX + 1
    scene.create_one(NewTopic("t", assignments=[(index, [1, 2]) for index in range(count)]))
    fence(scene, 1)
    scene.time_out(BrokerChangeContinued(1), 0.0)
    unfence(scene, 1)
    back_in_sync(scene)
    assert scene.time_out(LeadersChecked(), 0.0) == [SetTimer(LeadersChecked(), 0)]
    assert leaders(scene).count(1) == ELECTIONS_PER_CHECK_MAX
    assert scene.time_out(LeadersChecked(), 0.0) == [CHECK]
    assert set(leaders(scene)) == {1}


@pytest.mark.proves("H8")
def test_preferred_replica_that_is_not_in_sync_is_not_elected() -> None:
    scene = Scene(brokers=2)
    scene.create_one(NewTopic("t", assignments=[(0, [1, 2])]))
    fence(scene, 1)
    unfence(scene, 1)
    scene.time_out(LeadersChecked(), 0.0)
    (outcome,) = scene.run(scene.machine.decide_elect_leaders(ElectionType.PREFERRED, [("t", 0)]))
    assert outcome.error == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert leaders(scene) == [2]


@pytest.mark.proves("H8")
def test_preferred_leaders_are_elected_on_request() -> None:
    scene = disturbed()
    wanted = [("t", 0), ("t", 1), ("t", 9), ("x", 0), ("t", 0)]
    outcomes = scene.run(scene.machine.decide_elect_leaders(ElectionType.PREFERRED, wanted))
    assert [outcome.error for outcome in outcomes] == [
        ErrorCode.NONE,
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert leaders(scene) == [1, 2, 3, 2, 2, 3]
    (outcome,) = scene.run(scene.machine.decide_elect_leaders(ElectionType.PREFERRED, None))
    assert (outcome.index, outcome.error) == (3, ErrorCode.NONE)
    assert leaders(scene) == [1, 2, 3, 1, 2, 3]
    fence(scene, 1)
    (outcome,) = scene.run(scene.machine.decide_elect_leaders(ElectionType.PREFERRED, [("t", 0)]))
    assert outcome.error == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


def test_unclean_leader_is_elected_on_request() -> None:
    scene = Scene(brokers=2)
    scene.create_one(NewTopic("t", assignments=[(0, [1, 2]), (1, [2, 1])]))
    fence(scene, 1)
    fence(scene, 2)
    outcomes = scene.run(scene.machine.decide_elect_leaders(ElectionType.UNCLEAN, None))
    assert [outcome.error for outcome in outcomes] == [ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE] * 2
    unfence(scene, 1)
    assert leaders(scene) == [-1, -1]
    outcomes = scene.run(scene.machine.decide_elect_leaders(ElectionType.UNCLEAN, [("t", 0)]))
    assert [outcome.error for outcome in outcomes] == [ErrorCode.NONE]
    assert leaders(scene) == [1, -1]
    outcomes = scene.run(scene.machine.decide_elect_leaders(ElectionType.UNCLEAN, [("t", 0)]))
    assert [outcome.error for outcome in outcomes] == [ErrorCode.ELECTION_NOT_NEEDED]


def test_unknown_election_type_and_too_many_partitions_are_rejected() -> None:
    scene = Scene()
    with pytest.raises(InvalidRequest):
        scene.machine.decide_elect_leaders(2, None)
    with pytest.raises(PolicyViolation):
        scene.machine.decide_elect_leaders(0, [("t", 0)] * 10_001)


def test_leaderless_partition_gets_a_leader_when_unclean_elections_are_enabled() -> None:
    scene = Scene(brokers=2)
    scene.create_one(NewTopic("t", assignments=[(0, [1, 2])]))
    fence(scene, 2)
    fence(scene, 1)
    unfence(scene, 2)
    assert leaders(scene) == [-1]
    change = ConfigChange("unclean.leader.election.enable", Operation.SET, "true")
    scene.run(scene.machine.decide_incremental_alter_configs([Alteration(Resource(ResourceType.TOPIC, "t"), [change])]))
    assert leaders(scene) == [2]


# More partitions than one decision changes


def large(has_elr: bool = True) -> Scene:
    scene = Scene(brokers=2, has_elr=has_elr)
    count = PARTITIONS_PER_DECISION_MAX + 500
    scene.create_one(NewTopic("t", assignments=[(index, [1, 2]) for index in range(count)]))
    return scene


@pytest.mark.proves("H3")
def test_leaderships_of_a_large_broker_move_in_slices() -> None:
    scene = large()
    assert fence(scene, 1) == [SetTimer(BrokerChangeContinued(1), 0)]
    assert leaders(scene).count(2) == PARTITIONS_PER_DECISION_MAX
    assert scene.time_out(BrokerChangeContinued(1), 0.0) == []
    assert leaders(scene).count(2) == PARTITIONS_PER_DECISION_MAX + 500
    fence(scene, 2)
    scene.time_out(BrokerChangeContinued(2), 0.0)
    assert set(leaders(scene)) == {-1}
    assert unfence(scene, 2) == [SetTimer(BrokerChangeContinued(2), 0)]
    assert scene.time_out(BrokerChangeContinued(2), 0.0) == []
    assert set(leaders(scene)) == {2}


@pytest.mark.proves("H3")
def test_broker_shuts_down_after_its_last_slice_has_moved() -> None:
    scene = large()
    heartbeat = BrokerHeartbeat(1, epoch_of(scene, 1), 10**6, wants_shut_down=True)
    assert scene.run(scene.machine.decide_broker_heartbeat(heartbeat, 0.0)) == (True, False, False)
    assert not scene.machine.image.is_active(1)
    assert scene.run(scene.machine.decide_broker_heartbeat(heartbeat, 0.0)) == (True, True, True)
    assert set(leaders(scene)) == {2}
    assert scene.time_out(BrokerChangeContinued(1), 0.0) == []


@pytest.mark.proves("H6")
def test_new_controller_completes_interrupted_work() -> None:
    scene = large()
    fence(scene, 1)
    timers = scene.machine.decide_elected(0.0).timers
    assert SetTimer(BrokerChangeContinued(1), 0) in timers
    assert SetTimer(BrokerChangeContinued(2), 0) not in timers
    assert CHECK in timers


@pytest.mark.proves("H6")
def test_new_controller_resumes_elections_for_unfenced_broker() -> None:
    scene = large()
    for broker_id in (2, 1):
        fence(scene, broker_id)
        scene.time_out(BrokerChangeContinued(broker_id), 0.0)
    assert set(leaders(scene)) == {-1}
    unfence(scene, 1)
    assert leaders(scene).count(1) == PARTITIONS_PER_DECISION_MAX
    scene.machine = replayed(scene.log)
    timers = scene.machine.decide_elected(0.0).timers
    assert SetTimer(BrokerChangeContinued(1), 0) in timers
    assert CHECK in timers  # the preferred leader check keeps its interval
    assert scene.time_out(BrokerChangeContinued(1), 0.0) == []
    assert set(leaders(scene)) == {1}


@pytest.mark.proves("H3", part="the new leader has all committed records")
def test_many_leaderless_partitions_get_leaders_in_slices() -> None:
    scene = large()
    fence(scene, 2)
    scene.time_out(BrokerChangeContinued(2), 0.0)
    fence(scene, 1)
    scene.time_out(BrokerChangeContinued(1), 0.0)
    unfence(scene, 2)
    assert set(leaders(scene)) == {-1}
    change = ConfigChange("unclean.leader.election.enable", Operation.SET, "true")
    wanted = [Alteration(Resource(ResourceType.BROKER, ""), [change])]
    decision = scene.machine.decide_incremental_alter_configs(wanted)
    scene.run(decision)
    assert leaders(scene).count(2) == PARTITIONS_PER_DECISION_MAX
    assert decision.timers == [SetTimer(LeadersChecked(), 0)]
    assert scene.time_out(LeadersChecked(), 0.0) == [CHECK]
    assert set(leaders(scene)) == {2}


@pytest.mark.proves("H2", part="too few in-sync replicas")
def test_changed_min_isr_applies_to_all_of_many_partitions() -> None:
    scene = Scene(brokers=2)
    count = RECORDS_PER_DECISION_MAX // 3 + 1
    for name in ("t", "u", "v"):
        scene.create_one(NewTopic(name, assignments=[(index, [1, 2]) for index in range(count)]))
    change = ConfigChange("min.insync.replicas", Operation.SET, "2")
    wanted = [Alteration(Resource(ResourceType.BROKER, ""), [change])]
    (outcome,) = scene.run(scene.machine.decide_incremental_alter_configs(wanted))
    assert outcome.error == ErrorCode.NONE
    topics = scene.machine.image.topics.values()
    assert {partition.partition_epoch for topic in topics for partition in topic.partitions} == {1}
    off = FeatureUpdate(ELR_FEATURE, 0, UpgradeType.SAFE_DOWNGRADE)
    scene.run(scene.machine.decide_update_features([off]))
    (switched,) = scene.run(scene.machine.decide_update_features([FeatureUpdate(ELR_FEATURE, 1)]))
    assert switched.error == ErrorCode.NONE

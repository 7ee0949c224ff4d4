"""Leader elections when brokers leave, return, or return after data loss."""

import pytest
from metadata_scene import Scene

from moldau.machines.metadata import (
    Alteration,
    ConfigChange,
    FeatureUpdate,
    NewTopic,
    Operation,
    Resource,
    ResourceType,
)
from moldau.machines.metadata.cluster_view import MIN_ISR, UNCLEAN
from moldau.machines.metadata.features import UpgradeType
from moldau.machines.metadata.image import ELR_FEATURE, PartitionImage
from moldau.machines.metadata.partition_draft import RECOVERED, RECOVERING
from moldau.wire import messages

TOPIC = Resource(ResourceType.TOPIC, "t")
ALL_BROKERS = Resource(ResourceType.BROKER, "")


def scene_with(replicas: list[int], *configs: tuple[str, str], has_elr: bool = True) -> Scene:
    scene = Scene(brokers=3, has_elr=has_elr)
    created = scene.create_one(NewTopic("t", assignments=[(0, replicas)], configs=configs))
    assert not created.error
    return scene


def partition(scene: Scene) -> PartitionImage:
    found = scene.machine.image.partition("t", 0)
    assert found is not None
    return found


def fence(scene: Scene, *brokers: int) -> None:
    for broker_id in brokers:
        scene.run(scene.machine.decide_fence_broker(broker_id, scene.machine.image.brokers[broker_id].epoch))


def unfence(scene: Scene, *brokers: int) -> None:
    for broker_id in brokers:
        scene.run(scene.machine.decide_unfence_broker(broker_id, scene.machine.image.brokers[broker_id].epoch))


def restart(scene: Scene, broker_id: int, *, is_clean: bool, life: bytes = b"j" * 16) -> None:
    epoch = scene.register(broker_id, life, is_clean=is_clean)
    scene.run(scene.machine.decide_unfence_broker(broker_id, epoch))


def standing(scene: Scene) -> tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    found = partition(scene)
    return found.leader, found.isr, found.eligible_leader_replicas, found.last_known_elr


def alter(scene: Scene, resource: Resource, name: str, value: str | None) -> str | None:
    operation = Operation.SET if value is not None else Operation.DELETE
    change = Alteration(resource, [ConfigChange(name, operation, value)])
    (outcome,) = scene.run(scene.machine.decide_incremental_alter_configs([change]))
    return outcome.message


@pytest.mark.proves("H3")
def test_replica_leaving_an_isr_below_min_isr_joins_the_elr() -> None:
    scene = scene_with([1, 2, 3], (MIN_ISR, "2"))
    fence(scene, 3)
    assert standing(scene) == (1, (1, 2), (), ())  # enough are left, and may acknowledge what 3 lacks
    fence(scene, 1)
    assert standing(scene) == (2, (2,), (1,), ())
    fence(scene, 2)
    assert standing(scene) == (-1, (), (1, 2), (2,))
    unfence(scene, 3)
    assert standing(scene) == (-1, (), (1, 2), (2,))
    unfence(scene, 1)
    assert standing(scene) == (1, (1,), (2,), ())
    assert partition(scene).leader_recovery_state == RECOVERED


@pytest.mark.proves("H3")
def test_min_isr_of_one_leaves_the_elr_empty() -> None:
    scene = scene_with([1, 2, 3])
    fence(scene, 3, 2)
    assert standing(scene) == (1, (1,), (), ())
    fence(scene, 1)
    assert standing(scene) == (-1, (), (1,), (1,))
    unfence(scene, 2, 3)
    assert not partition(scene).has_leader
    unfence(scene, 1)
    assert standing(scene) == (1, (1,), (), ())


@pytest.mark.proves("H3")
def test_replica_after_an_unclean_shutdown_is_neither_in_sync_nor_eligible() -> None:
    scene = scene_with([1, 2, 3], (MIN_ISR, "2"))
    restart(scene, 1, is_clean=False)
    assert standing(scene) == (2, (2, 3), (), ())
    fence(scene, 3)
    assert standing(scene) == (2, (2,), (3,), ())
    restart(scene, 3, is_clean=False)
    assert standing(scene) == (2, (2,), (), ())


@pytest.mark.proves("H3")
def test_replica_after_a_clean_shutdown_stays_eligible() -> None:
    scene = scene_with([1, 2], (MIN_ISR, "2"))
    scene.register(1, b"j" * 16, is_clean=True)
    assert standing(scene) == (2, (2,), (1,), ())
    fence(scene, 2)
    unfence(scene, 1)
    assert standing(scene) == (1, (1,), (2,), ())


@pytest.mark.proves("H3")
def test_last_known_leader_is_elected_when_all_lost_data() -> None:
    scene = scene_with([1, 2, 3], (MIN_ISR, "2"))
    for broker_id in (1, 3, 2):
        scene.register(broker_id, b"j" * 16, is_clean=False)
    assert standing(scene) == (-1, (), (), (2,))
    unfence(scene, 1, 3)
    assert not partition(scene).has_leader
    unfence(scene, 2)
    assert standing(scene) == (2, (2,), (), ())
    assert partition(scene).leader_recovery_state == RECOVERING


@pytest.mark.proves("H3")
def test_last_known_leader_is_not_elected_before_an_eligible_replica() -> None:
    scene = scene_with([1, 2, 3], (MIN_ISR, "2"))
    fence(scene, 3, 1)
    restart(scene, 2, is_clean=False)
    assert standing(scene) == (-1, (), (1,), (2,))
    unfence(scene, 1)
    assert standing(scene) == (1, (1,), (), ())


def test_last_in_sync_replica_is_awaited_even_after_data_loss() -> None:
    scene = scene_with([1, 2, 3], has_elr=False)
    restart(scene, 1, is_clean=False)
    assert standing(scene) == (2, (2, 3), (), ())
    fence(scene, 3, 2)
    assert standing(scene) == (-1, (2,), (), ())
    scene.register(2, b"j" * 16, is_clean=False)
    assert standing(scene) == (-1, (2,), (), ())
    unfence(scene, 3, 2)
    assert standing(scene) == (2, (2,), (), ())


@pytest.mark.proves("H4")
@pytest.mark.parametrize("has_elr", [True, False])
def test_incomplete_replica_leads_only_with_unclean_elections(has_elr: bool) -> None:
    scene = scene_with([1, 2, 3], has_elr=has_elr)
    fence(scene, 2, 1, 3)
    unfence(scene, 2)
    assert not partition(scene).has_leader
    scene = scene_with([1, 2, 3], (UNCLEAN, "true"), has_elr=has_elr)
    fence(scene, 2, 1, 3)
    unfence(scene, 2)
    assert standing(scene) == (2, (2,), (), ())
    assert partition(scene).leader_recovery_state == RECOVERING


def test_unclean_elections_are_enabled_for_all_topics_or_the_controller() -> None:
    scene = scene_with([1, 2])
    assert alter(scene, ALL_BROKERS, UNCLEAN, "true") is None
    fence(scene, 2, 1)
    unfence(scene, 2)
    assert partition(scene).leader == 2


def test_unregistered_broker_leads_nothing_and_returns_empty() -> None:
    scene = scene_with([1, 2], (MIN_ISR, "2"))
    scene.run(scene.machine.decide_unregister_broker(1))
    assert standing(scene) == (2, (2,), (1,), ())
    scene.register(1, b"j" * 16)
    assert standing(scene) == (2, (2,), (), ())


# Min ISR of eligible replicas


@pytest.mark.proves("H2")
def test_lower_min_isr_clears_the_elr() -> None:
    scene = scene_with([1, 2], (MIN_ISR, "2"))
    fence(scene, 2)
    assert standing(scene) == (1, (1,), (2,), ())
    epoch = partition(scene).partition_epoch
    assert alter(scene, TOPIC, MIN_ISR, "1") is None
    assert standing(scene) == (1, (1,), (), ())
    assert partition(scene).partition_epoch == epoch + 1


def test_leaderless_partition_keeps_its_elr_when_min_isr_is_lowered() -> None:
    scene = scene_with([1, 2], (MIN_ISR, "2"))
    fence(scene, 2, 1)
    assert alter(scene, TOPIC, MIN_ISR, None) is None
    assert standing(scene) == (-1, (), (1, 2), (1,))


@pytest.mark.proves("H3")
def test_leader_with_sufficient_isr_clears_the_elr() -> None:
    scene = scene_with([1, 2], (MIN_ISR, "2"))
    fence(scene, 2, 1)
    assert alter(scene, TOPIC, MIN_ISR, "1") is None
    unfence(scene, 1)
    assert standing(scene) == (1, (1,), (), ())  # it acknowledges alone, and 2 lacks that


def test_second_leader_is_awaited_like_the_first() -> None:
    scene = scene_with([1, 2, 3])
    fence(scene, 1)
    restart(scene, 1, is_clean=True)
    fence(scene, 3)
    scene.register(2, b"j" * 16, is_clean=False)
    assert standing(scene) == (-1, (), (), (2,))


@pytest.mark.proves("H2")
def test_raised_min_isr_bumps_the_partition_epoch() -> None:
    scene = scene_with([1, 2])
    epoch = partition(scene).partition_epoch
    assert alter(scene, ALL_BROKERS, MIN_ISR, "2") is None
    assert partition(scene).partition_epoch == epoch + 1
    assert partition(scene).leader_epoch == 0
    assert alter(scene, TOPIC, MIN_ISR, "2") is None  # the same through the topic config
    assert partition(scene).partition_epoch == epoch + 1


@pytest.mark.proves("H2")
def test_min_isr_is_cluster_wide_while_elr_is_enabled() -> None:
    scene = scene_with([1, 2])
    broker = Resource(ResourceType.BROKER, "1")
    assert alter(scene, broker, MIN_ISR, "2") == f"Broker-level {MIN_ISR} cannot be altered while ELR is enabled."
    assert alter(scene, ALL_BROKERS, MIN_ISR, None) == (
        f"Cluster-level {MIN_ISR} cannot be removed while ELR is enabled."
    )


def switch(scene: Scene, level: int) -> None:
    kind = UpgradeType.UPGRADE if level else UpgradeType.SAFE_DOWNGRADE
    (outcome,) = scene.run(scene.machine.decide_update_features([FeatureUpdate(ELR_FEATURE, level, kind)]))
    assert not outcome.error


@pytest.mark.proves("H2")
def test_enabling_elr_bumps_the_partition_epoch() -> None:
    scene = scene_with([1, 2], has_elr=False)
    broker = Resource(ResourceType.BROKER, "1")
    assert alter(scene, broker, MIN_ISR, "2") is None
    epoch = partition(scene).partition_epoch
    switch(scene, 1)
    assert partition(scene).partition_epoch == epoch + 1
    assert scene.machine.image.broker_configs(1) == {}
    switch(scene, 1)
    assert partition(scene).partition_epoch == epoch + 1


@pytest.mark.proves("H4")
def test_last_in_sync_replica_is_awaited_after_elr_is_enabled() -> None:
    """No last known leader was recorded before, and the first replica may be empty."""
    scene = scene_with([1, 2, 3], has_elr=False)
    fence(scene, 1, 2, 3)
    assert standing(scene) == (-1, (3,), (), ())
    switch(scene, 1)
    unfence(scene, 1)
    epoch = scene.register(3, b"j" * 16, is_clean=False)
    assert standing(scene) == (-1, (), (), (3,))
    unfence(scene, 2)
    assert not partition(scene).has_leader
    scene.run(scene.machine.decide_unfence_broker(3, epoch))
    assert standing(scene) == (3, (3,), (), ())


@pytest.mark.proves("H2")
def test_disabling_elr_keeps_only_the_awaited_replicas() -> None:
    scene = scene_with([1, 2], (MIN_ISR, "2"))
    scene.create_one(NewTopic("u", assignments=[(0, [2, 1])], configs=[(MIN_ISR, "2")]))
    fence(scene, 2, 1)
    unfence(scene, 1)
    scene.run(scene.machine.decide_unregister_broker(3))
    assert standing(scene) == (1, (1,), (2,), ())
    switch(scene, 0)
    assert standing(scene) == (1, (1,), (), ())
    scene = scene_with([1, 2], (MIN_ISR, "2"))
    fence(scene, 2, 1)
    switch(scene, 0)
    assert standing(scene) == (-1, (), (1, 2), (1,))
    unfence(scene, 2)
    assert standing(scene) == (2, (2,), (), ())


def test_clear_elr_record_is_applied() -> None:
    scene = scene_with([1, 2], (MIN_ISR, "2"))
    fence(scene, 2, 1)
    for name in ("t", ""):
        before = partition(scene).partition_epoch
        scene.machine.apply(messages.ClearElrRecord(topic_name=name), len(scene.log))
        assert standing(scene) == (-1, (), (), ())
        assert partition(scene).partition_epoch == before + (name == "t")

"""Brokers, their epochs and leaderships; producer ids; features."""

import pytest
from metadata_scene import Scene

from moldau.machines.metadata import (
    BrokerHeartbeat,
    FeatureUpdate,
    NewTopic,
    ProducerIdBlock,
    Registration,
    VersionRange,
)
from moldau.machines.metadata.features import (
    GROUP_VERSION_FEATURE,
    SHARE_VERSION,
    SHARE_VERSION_FEATURE,
    SUPPORTED_FEATURES,
    TRANSACTION_VERSION_FEATURE,
    UpgradeType,
)
from moldau.machines.metadata.image import ELR_FEATURE, ControllerImage, PartitionImage
from moldau.machines.metadata.producer_ids import BLOCK_LENGTH, PRODUCER_ID_MAX
from moldau.machines.metadata.records import (
    METADATA_VERSION,
    METADATA_VERSION_FEATURE,
    METADATA_VERSION_HIGHEST,
    METADATA_VERSION_LOWEST,
)
from moldau.model.errors import (
    BrokerIdNotRegistered,
    DuplicateBrokerRegistration,
    InvalidRequest,
    StaleBrokerEpoch,
    UnknownServerFailure,
    UnsupportedVersion,
)
from moldau.model.ids import Address
from moldau.wire import messages


def partition(scene: Scene, topic: str = "t", index: int = 0) -> PartitionImage:
    found = scene.machine.image.partition(topic, index)
    assert found is not None
    return found


def test_broker_registers_fenced_with_its_record_offset_as_epoch() -> None:
    scene = Scene(brokers=0)
    offset = len(scene.log)
    assert scene.register(1) == offset
    broker = scene.machine.image.brokers[1]
    assert (broker.epoch, broker.is_fenced, broker.rack) == (offset, True, "rack")
    assert broker.address("PLAINTEXT") == Address("host1", 9092)
    assert broker.address("SSL") is None
    assert not scene.machine.image.is_active(1)
    assert not scene.machine.image.is_active(2)


def test_same_incarnation_keeps_its_epoch_and_leaderships() -> None:
    scene = Scene()
    scene.create_one(NewTopic("t"))
    epoch = scene.machine.image.brokers[1].epoch
    assert scene.register(1) == epoch
    assert scene.machine.image.is_active(1)
    assert partition(scene).leader == 1


def test_new_incarnation_has_a_greater_epoch_and_leads_once_unfenced() -> None:
    scene = Scene()
    scene.create_one(NewTopic("t", 3))
    old = scene.machine.image.brokers[1].epoch
    epoch = scene.register(1, b"j" * 16)
    assert epoch > old
    found = partition(scene)
    assert (found.leader, found.isr, found.eligible_leader_replicas, found.leader_epoch) == (-1, (), (1,), 1)
    scene.run(scene.machine.decide_unfence_broker(1, epoch))
    assert (partition(scene, index=2).leader, partition(scene, index=2).leader_epoch) == (1, 2)
    assert partition(scene).partition_epoch == 2


def test_fencing_moves_leaderships_and_only_elections_move_them_back() -> None:
    scene = Scene(brokers=3)
    scene.create_one(NewTopic("t", assignments=[(0, [1, 2, 3])]))
    epoch = scene.machine.image.brokers[1].epoch
    scene.run(scene.machine.decide_fence_broker(1, epoch))
    assert (partition(scene).leader, partition(scene).isr) == (2, (2, 3))
    scene.run(scene.machine.decide_unfence_broker(1, epoch))
    assert (partition(scene).leader, partition(scene).isr) == (2, (2, 3))


def test_last_in_sync_replica_stays_in_the_isr_without_leading() -> None:
    scene = Scene(brokers=2, has_elr=False)
    scene.create_one(NewTopic("t", assignments=[(0, [1, 2])]))
    for broker_id in (1, 2):
        scene.run(scene.machine.decide_fence_broker(broker_id, scene.machine.image.brokers[broker_id].epoch))
    assert (partition(scene).leader, partition(scene).isr) == (-1, (2,))
    scene.run(scene.machine.decide_unfence_broker(1, scene.machine.image.brokers[1].epoch))
    assert not partition(scene).has_leader
    scene.run(scene.machine.decide_unfence_broker(2, scene.machine.image.brokers[2].epoch))
    assert partition(scene).leader == 2


def test_fenced_follower_leaves_the_isr_and_the_leader_keeps_its_epoch() -> None:
    scene = Scene(brokers=2)
    scene.create_one(NewTopic("t", assignments=[(0, [1, 2])]))
    scene.run(scene.machine.decide_fence_broker(2, scene.machine.image.brokers[2].epoch))
    found = partition(scene)
    assert (found.leader, found.isr, found.leader_epoch, found.partition_epoch) == (1, (1,), 0, 1)


def test_repeated_fencing_and_unfencing_writes_one_record() -> None:
    scene = Scene()
    epoch = scene.machine.image.brokers[1].epoch
    assert not scene.machine.decide_unfence_broker(1, epoch).records
    scene.run(scene.machine.decide_fence_broker(1, epoch))
    assert not scene.machine.decide_fence_broker(1, epoch).records


@pytest.mark.proves("H3")
def test_broker_id_is_in_use_while_its_session_lasts() -> None:
    scene = Scene()
    epoch = scene.machine.image.brokers[1].epoch
    scene.run(scene.machine.decide_broker_heartbeat(BrokerHeartbeat(1, epoch, 99), 0.0))
    with pytest.raises(DuplicateBrokerRegistration):
        scene.register(1, b"j" * 16, folder=b"f" * 16)
    assert scene.register(1) == epoch
    assert scene.register(1, b"j" * 16) > epoch  # in the same folder, which the old incarnation must have released


def test_broker_without_the_finalized_level_is_rejected() -> None:
    scene = Scene()
    features = {METADATA_VERSION_FEATURE: VersionRange(1, METADATA_VERSION - 1)}
    with pytest.raises(UnsupportedVersion, match=f"does not support finalized version {METADATA_VERSION}"):
        scene.machine.decide_register_broker(Registration(2, b"i" * 16, (), features), next_offset=9)
    with pytest.raises(InvalidRequest):
        scene.machine.decide_register_broker(Registration(-2, b"i" * 16, ()), next_offset=9)


@pytest.mark.proves("H6")
def test_broker_without_a_finalized_feature_is_rejected() -> None:
    scene = Scene()
    features = {name: levels for name, levels in SUPPORTED_FEATURES.items() if name != ELR_FEATURE}
    registration = Registration(2, b"i" * 16, (), features)
    with pytest.raises(UnsupportedVersion, match=f"finalized version 1 of {ELR_FEATURE}.* between 0 and 0"):
        scene.machine.decide_register_broker(registration, next_offset=len(scene.log))
    without = Scene(has_elr=False)
    without.run(without.machine.decide_register_broker(registration, next_offset=len(without.log)))
    assert 2 in without.machine.image.brokers


def test_stale_or_unknown_broker_epoch_is_rejected() -> None:
    scene = Scene()
    for broker_id, epoch in ((1, 0), (7, 1)):
        with pytest.raises(StaleBrokerEpoch):
            scene.machine.decide_fence_broker(broker_id, epoch)
        with pytest.raises(StaleBrokerEpoch):
            scene.machine.decide_unfence_broker(broker_id, epoch)
        with pytest.raises(StaleBrokerEpoch):
            scene.machine.decide_allocate_producer_ids(broker_id, epoch)


def test_unregistered_broker_is_removed() -> None:
    scene = Scene(brokers=2)
    scene.create_one(NewTopic("t", assignments=[(0, [1, 2])]))
    scene.run(scene.machine.decide_unregister_broker(1))
    assert (partition(scene).leader, partition(scene).isr) == (2, (2,))
    assert list(scene.machine.image.brokers) == [2]
    with pytest.raises(BrokerIdNotRegistered):
        scene.machine.decide_unregister_broker(1)


# Producer ids


@pytest.mark.proves("P2")
def test_producer_id_blocks_are_consecutive() -> None:
    scene = Scene(brokers=2)
    blocks = [
        scene.run(scene.machine.decide_allocate_producer_ids(broker, scene.machine.image.brokers[broker].epoch))
        for broker in (1, 2, 1)
    ]
    assert blocks == [ProducerIdBlock(first, BLOCK_LENGTH) for first in (0, 1000, 2000)]


def test_producer_ids_end_at_64_bits() -> None:
    scene = Scene()
    record = messages.ProducerIdsRecord(broker_id=1, broker_epoch=1, next_producer_id=PRODUCER_ID_MAX - 1000)
    scene.machine.apply(record, 99)
    epoch = scene.machine.image.brokers[1].epoch
    assert scene.run(scene.machine.decide_allocate_producer_ids(1, epoch)).first == PRODUCER_ID_MAX - 1000
    with pytest.raises(UnknownServerFailure, match="Exhausted all producerIds"):
        scene.machine.decide_allocate_producer_ids(1, epoch)


# Features


def test_new_cluster_starts_at_the_level_of_this_software() -> None:
    scene = Scene(brokers=0)
    assert scene.machine.image.features == {
        METADATA_VERSION_FEATURE: METADATA_VERSION,
        ELR_FEATURE: 1,
        GROUP_VERSION_FEATURE: 1,
        TRANSACTION_VERSION_FEATURE: 2,
        SHARE_VERSION_FEATURE: SHARE_VERSION,
    }
    assert scene.machine.image.broker_configs(None) == {"min.insync.replicas": "1"}
    assert not scene.machine.decide_elected(0.0).records


def test_feature_downgrade_needs_an_explicit_upgrade_type() -> None:
    scene = Scene(has_elr=False)
    lower = METADATA_VERSION_LOWEST
    cases = [
        (FeatureUpdate(METADATA_VERSION_FEATURE, lower), "Can't downgrade the version of this feature"),
        (FeatureUpdate(METADATA_VERSION_FEATURE, lower - 1, UpgradeType.SAFE_DOWNGRADE), "only supports versions"),
        (FeatureUpdate(METADATA_VERSION_FEATURE, METADATA_VERSION_HIGHEST + 1), "only supports versions"),
        (FeatureUpdate(METADATA_VERSION_FEATURE, 0, UpgradeType.SAFE_DOWNGRADE), "only supports versions"),
        (FeatureUpdate(METADATA_VERSION_FEATURE, -1), "A feature version cannot be less than 0."),
        (FeatureUpdate(METADATA_VERSION_FEATURE, lower, 7), "does not support the given upgrade type."),
        (FeatureUpdate("no.such", 1), "Local controller does not support this feature."),
    ]
    for update, words in cases:
        (outcome,) = scene.run(scene.machine.decide_update_features([update]))
        assert outcome.error == 95
        assert outcome.message is not None
        assert words in outcome.message
    down = FeatureUpdate(METADATA_VERSION_FEATURE, lower, UpgradeType.SAFE_DOWNGRADE)
    scene.run(scene.machine.decide_update_features([down], validate_only=True))
    assert scene.machine.image.features[METADATA_VERSION_FEATURE] == METADATA_VERSION
    scene.run(scene.machine.decide_update_features([down]))
    assert scene.machine.image.features[METADATA_VERSION_FEATURE] == lower
    up = FeatureUpdate(METADATA_VERSION_FEATURE, METADATA_VERSION, UpgradeType.SAFE_DOWNGRADE)
    (outcome,) = scene.run(scene.machine.decide_update_features([up]))
    assert outcome.message is not None
    assert outcome.message.endswith("Can't downgrade to a newer version.")


def test_eligible_replicas_need_a_metadata_level_that_supports_them() -> None:
    scene = Scene()
    down = FeatureUpdate(METADATA_VERSION_FEATURE, METADATA_VERSION_LOWEST, UpgradeType.SAFE_DOWNGRADE)
    (outcome,) = scene.run(scene.machine.decide_update_features([down]))
    assert outcome.message is not None
    assert "depends on metadata.version level 23" in outcome.message
    off = FeatureUpdate(ELR_FEATURE, 0, UpgradeType.SAFE_DOWNGRADE)
    outcomes = scene.run(scene.machine.decide_update_features([down, off]))
    assert [outcome.error.value for outcome in outcomes] == [0, 0]
    assert not scene.machine.image.has_elr
    (outcome,) = scene.run(scene.machine.decide_update_features([FeatureUpdate(ELR_FEATURE, 1)]))
    assert outcome.error == 95


def test_one_rejected_feature_update_rejects_all() -> None:
    scene = Scene(has_elr=False)
    down = FeatureUpdate(METADATA_VERSION_FEATURE, METADATA_VERSION_LOWEST, UpgradeType.SAFE_DOWNGRADE)
    outcomes = scene.run(scene.machine.decide_update_features([down, FeatureUpdate("no.such", 1)]))
    assert [outcome.error.value for outcome in outcomes] == [0, 95]
    assert scene.machine.image.features[METADATA_VERSION_FEATURE] == METADATA_VERSION
    (outcome,) = scene.run(scene.machine.decide_update_features([down, down]))
    assert outcome.error == 42


def test_level_that_a_registered_broker_lacks_is_rejected() -> None:
    scene = Scene(has_elr=False)
    scene.run(
        scene.machine.decide_update_features(
            [FeatureUpdate(METADATA_VERSION_FEATURE, METADATA_VERSION_LOWEST, UpgradeType.SAFE_DOWNGRADE)]
        )
    )
    old = {**SUPPORTED_FEATURES, METADATA_VERSION_FEATURE: VersionRange(1, METADATA_VERSION_LOWEST)}
    scene.run(scene.machine.decide_register_broker(Registration(2, b"i" * 16, (), old), next_offset=len(scene.log)))
    (outcome,) = scene.run(
        scene.machine.decide_update_features([FeatureUpdate(METADATA_VERSION_FEATURE, METADATA_VERSION)])
    )
    assert outcome.message is not None
    assert "Broker 2 only supports versions" in outcome.message


@pytest.mark.proves("H6")
def test_level_that_a_registered_controller_lacks_is_rejected() -> None:
    """It could not continue after it read the level in the log."""
    scene = Scene()
    old = {METADATA_VERSION_FEATURE: VersionRange(1, METADATA_VERSION)}
    scene.run(scene.machine.decide_register_controller(ControllerImage(7, b"c" * 16, (), old)))
    update = FeatureUpdate(METADATA_VERSION_FEATURE, METADATA_VERSION + 1)
    (outcome,) = scene.run(scene.machine.decide_update_features([update]))
    assert outcome.message is not None
    assert f"Controller 7 only supports versions 1-{METADATA_VERSION}" in outcome.message
    assert scene.machine.image.features[METADATA_VERSION_FEATURE] == METADATA_VERSION
    new = {METADATA_VERSION_FEATURE: VersionRange(1, METADATA_VERSION + 1)}
    scene.run(scene.machine.decide_register_controller(ControllerImage(7, b"d" * 16, (), new)))
    (outcome,) = scene.run(scene.machine.decide_update_features([update]))
    assert outcome.message is None

"""Brokers with several log dirs: which replicas a failed or missing log dir takes offline (KIP-858)."""

import pytest
from metadata_scene import Scene

from moldau.machines.metadata import BrokerHeartbeat, NewTopic
from moldau.machines.metadata.brokers import Registration
from moldau.machines.metadata.image import PartitionImage
from moldau.machines.metadata.replica_dirs import ReplicaDirAssignment
from moldau.model.errors import ErrorCode
from moldau.model.ids import DirectoryId

FIRST_DIR, SECOND_DIR = b"1" * 16, b"2" * 16


def scene_with_two_log_dirs() -> Scene:
    """Broker 1 has two log dirs: t-0 is in the first, t-1 in the second; broker 2 has the other replicas."""
    scene = Scene(brokers=2)
    register_dirs(scene, FIRST_DIR, SECOND_DIR)
    scene.create_one(NewTopic("t", assignments=[(0, [1, 2]), (1, [1, 2])]))
    scene.create_one(NewTopic("alone", assignments=[(0, [1]), (1, [1])]))
    for topic in ("t", "alone"):
        assign(scene, topic, 0, FIRST_DIR)
        assign(scene, topic, 1, SECOND_DIR)
    return scene


def register_dirs(scene: Scene, *directories: bytes) -> None:
    known = scene.machine.image.brokers[1]
    scene.run(scene.machine.decide_fence_broker(1, known.epoch))
    incarnation_id = known.epoch.to_bytes(16, "big")
    registration = Registration(1, incarnation_id, known.listeners, known.features, directories=directories)
    scene.run(scene.machine.decide_register_broker(registration, next_offset=known.epoch + 100))
    heartbeat(scene)


def assign(scene: Scene, topic: str, index: int, directory: bytes) -> None:
    image = scene.machine.image
    copy = ReplicaDirAssignment(image.topic_id(topic), index, DirectoryId(directory))
    (result,) = scene.run(scene.machine.decide_assign_replicas_to_dirs(1, image.brokers[1].epoch, [copy]))
    assert result.error == ErrorCode.NONE


def heartbeat(scene: Scene, *offline: bytes) -> None:
    sent = BrokerHeartbeat(1, scene.machine.image.brokers[1].epoch, 10**6, offline_directories=offline)
    scene.run(scene.machine.decide_broker_heartbeat(sent, 0.0))


def partition_of(scene: Scene, index: int) -> PartitionImage:
    return scene.machine.image.topics["t"].partitions[index]


def leaders(scene: Scene) -> list[int]:
    topics = scene.machine.image.topics
    return [each.leader for name in ("t", "alone") for each in topics[name].partitions]


@pytest.mark.proves("S11", part="one fails")
def test_one_offline_log_dir_takes_only_its_own_replicas_offline() -> None:
    scene = scene_with_two_log_dirs()
    assert leaders(scene) == [1, 1, 1, 1]
    heartbeat(scene, SECOND_DIR)
    assert leaders(scene) == [1, 2, 1, 1]  # no other broker can lead alone-1: it can still be read
    assert partition_of(scene, 1).isr == (2,)
    broker = scene.machine.image.brokers[1]
    assert (broker.is_active, broker.online_directories, broker.offline_directories) == (
        True,
        (FIRST_DIR,),
        (SECOND_DIR,),
    )
    heartbeat(scene)
    assert scene.machine.image.brokers[1].directories == (FIRST_DIR, SECOND_DIR)
    assert partition_of(scene, 1).leader == 2  # it must catch up first


def test_replica_found_in_an_offline_log_dir_loses_its_leadership() -> None:
    scene = scene_with_two_log_dirs()
    heartbeat(scene, SECOND_DIR)
    assign(scene, "t", 0, SECOND_DIR)
    assert leaders(scene) == [2, 2, 1, 1]
    assert partition_of(scene, 0).directory_of(1) == SECOND_DIR


@pytest.mark.proves("S11", part="missing or replaced")
def test_replica_in_a_log_dir_that_is_not_registered_is_not_elected() -> None:
    scene = scene_with_two_log_dirs()
    register_dirs(scene, FIRST_DIR)
    assert leaders(scene) == [2, 2, 1, -1]
    register_dirs(scene, FIRST_DIR, SECOND_DIR)
    assert leaders(scene) == [2, 2, 1, 1]
    assert [each.isr for each in scene.machine.image.topics["t"].partitions] == [(2,), (2,)]

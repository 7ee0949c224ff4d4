"""Controller APIs: the requests of brokers, and of admins about brokers and replicas."""

import asyncio
from typing import Any

import pytest
from broker_scene import CONTROLLER, WITH_CONTROLLER, Scene, on_broker

from moldau.machines.metadata.features import SUPPORTED_FEATURES
from moldau.machines.metadata.image import ELR_FEATURE
from moldau.model.errors import ErrorCode
from moldau.wire import messages as m


def play(script: Any) -> None:
    on_broker(script, settings=WITH_CONTROLLER)


def registration(scene: Scene, broker_id: int = 2, **fields: Any) -> m.BrokerRegistrationRequest:
    said: dict[str, Any] = {
        "broker_id": broker_id,
        "cluster_id": scene.node.cluster_id,
        "incarnation_id": b"i" * 16,
        "listeners": [m.BrokerRegistrationRequest.Listener(name="PLAINTEXT", host="other", port=9092)],
        "features": [
            m.BrokerRegistrationRequest.Feature(
                name=name, min_supported_version=levels.lowest, max_supported_version=levels.highest
            )
            for name, levels in SUPPORTED_FEATURES.items()
        ],
        "rack": "r2",
        "log_dirs": [b"d" * 16],
    }
    return m.BrokerRegistrationRequest(**{**said, **fields})


async def join(scene: Scene, talker: Any, broker_id: int = 2) -> int:
    """Register another broker and unfence it; return its epoch."""
    response = await talker.ask(4, registration(scene, broker_id))
    assert response.error_code == 0
    epoch: int = response.broker_epoch
    heartbeat = m.BrokerHeartbeatRequest(broker_id=broker_id, broker_epoch=epoch, current_metadata_offset=epoch)
    assert not (await talker.ask(1, heartbeat)).is_fenced
    return epoch


def test_broker_registers_is_unfenced_and_shuts_down() -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect(CONTROLLER)
        epoch = await join(scene, talker)
        broker = scene.node.broker.metadata.image.brokers[2]
        assert (broker.epoch, broker.rack, broker.directories) == (epoch, "r2", (b"d" * 16,))
        assert (broker.listeners[0].address.host, broker.is_active) == ("other", True)
        response = await talker.ask(
            1,
            m.BrokerHeartbeatRequest(
                broker_id=2, broker_epoch=epoch, current_metadata_offset=epoch, want_shut_down=True
            ),
        )
        assert (response.error_code, response.is_fenced, response.should_shut_down) == (0, True, True)

    play(script)


def test_registration_of_a_foreign_broker_is_rejected() -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect(CONTROLLER)
        cases = [
            (registration(scene, cluster_id="another"), ErrorCode.INCONSISTENT_CLUSTER_ID),
            (registration(scene, is_migrating_zk_broker=True), ErrorCode.INVALID_REQUEST),
            (registration(scene, broker_id=-5), ErrorCode.INVALID_REQUEST),
        ]
        for request, code in cases:
            response = await talker.ask(4, request)
            assert (response.error_code, response.broker_epoch) == (code, -1)
        response = await talker.ask(1, m.BrokerHeartbeatRequest(broker_id=2, broker_epoch=1))
        assert (response.error_code, response.is_fenced) == (ErrorCode.STALE_BROKER_EPOCH, True)
        response = await talker.ask(0, m.AllocateProducerIdsRequest(broker_id=2, broker_epoch=1))
        assert response.error_code == ErrorCode.STALE_BROKER_EPOCH

    play(script)


def test_silent_broker_is_fenced_and_the_node_itself_is_not() -> None:
    async def script(scene: Scene) -> None:
        await join(scene, await scene.connect(CONTROLLER))
        await asyncio.sleep(20)
        brokers = scene.node.broker.metadata.image.brokers
        assert (brokers[1].is_fenced, brokers[2].is_fenced) == (False, True)

    play(script)


def test_producer_ids_are_allocated_in_blocks() -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect(CONTROLLER)
        epoch = await join(scene, talker)
        requested = m.AllocateProducerIdsRequest(broker_id=2, broker_epoch=epoch)
        blocks = [await talker.ask(0, requested) for _ in range(2)]
        assert [(each.error_code, each.producer_id_len) for each in blocks] == [(0, 1000)] * 2
        assert blocks[1].producer_id_start == blocks[0].producer_id_start + 1000

    play(script)


def isr(scene: Scene, members: list[tuple[int, int]], **fields: Any) -> m.AlterPartitionRequest:
    image = scene.node.broker.metadata.image
    states = [m.AlterPartitionRequest.BrokerState(broker_id=each, broker_epoch=epoch) for each, epoch in members]
    known = image.partition("t", 0)
    assert known is not None
    said: dict[str, Any] = {
        "new_isr_with_epochs": states,
        "new_isr": [each for each, _ in members],
        "leader_epoch": known.leader_epoch,
        "partition_epoch": known.partition_epoch,
    }
    partition = m.AlterPartitionRequest.PartitionData(**{**said, **fields})
    return m.AlterPartitionRequest(
        broker_id=1,
        broker_epoch=image.brokers[1].epoch,
        topics=[m.AlterPartitionRequest.TopicData(topic_id=image.topic_id("t"), partitions=[partition])],
    )


def test_alter_partition_returns_the_current_partition_state() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect(CONTROLLER)
        epoch = scene.node.broker.metadata.image.brokers[1].epoch
        for version in (2, 3):
            response = await talker.ask(version, isr(scene, [(1, epoch)]))
            (partition,) = response.topics[0].partitions
            assert (partition.error_code, partition.leader_id, list(partition.isr)) == (0, 1, [1])
        response = await talker.ask(3, isr(scene, [(1, epoch)], leader_epoch=7))
        assert response.topics[0].partitions[0].error_code == ErrorCode.NOT_CONTROLLER
        stale = isr(scene, [(1, epoch)])
        stale.broker_epoch = 0
        assert (await talker.ask(3, stale)).error_code == ErrorCode.STALE_BROKER_EPOCH

    play(script)


def plan(replicas: list[int] | None, topic: str = "t", **fields: Any) -> m.AlterPartitionReassignmentsRequest:
    partition = m.AlterPartitionReassignmentsRequest.ReassignablePartition(partition_index=0, replicas=replicas)
    return m.AlterPartitionReassignmentsRequest(
        topics=[m.AlterPartitionReassignmentsRequest.ReassignableTopic(name=topic, partitions=[partition])], **fields
    )


def test_reassignment_is_started_listed_and_cancelled() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        await join(scene, await scene.connect(CONTROLLER))
        talker = await scene.connect()
        response = await talker.ask(1, plan([2, 1], allow_replication_factor_change=False))
        assert response.responses[0].partitions[0].error_code == ErrorCode.INVALID_REPLICATION_FACTOR
        assert (await talker.ask(1, plan([2]))).responses[0].partitions[0].error_code == 0
        listed = await talker.ask(0, m.ListPartitionReassignmentsRequest(topics=None))
        (partition,) = listed.topics[0].partitions
        assert [
            list(each) for each in (partition.replicas, partition.adding_replicas, partition.removing_replicas)
        ] == [
            [2, 1],
            [2],
            [1],
        ]
        named = m.ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics(name="t", partition_indexes=[1])
        assert not (await talker.ask(0, m.ListPartitionReassignmentsRequest(topics=[named]))).topics
        assert (await talker.ask(0, plan(None))).responses[0].partitions[0].error_code == 0
        response = await talker.ask(0, plan(None))
        assert response.responses[0].partitions[0].error_code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        response = await talker.ask(0, plan([1], topic="x"))
        assert response.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    play(script)


def test_unneeded_elections_are_rejected() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        wanted = [m.ElectLeadersRequest.TopicPartitions(topic="t", partitions=[0, 1])]
        for version in (0, 2):
            response = await talker.ask(version, m.ElectLeadersRequest(topic_partitions=wanted))
            codes = [each.error_code for each in response.replica_election_results[0].partition_result]
            assert codes == [ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert not (await talker.ask(2, m.ElectLeadersRequest(topic_partitions=None))).replica_election_results
        response = await talker.ask(2, m.ElectLeadersRequest(election_type=5, topic_partitions=wanted))
        assert response.error_code == ErrorCode.INVALID_REQUEST

    play(script)


def test_broker_is_unregistered_unless_it_is_the_last() -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        assert (await talker.ask(0, m.UnregisterBrokerRequest(broker_id=1))).error_code == ErrorCode.INVALID_REQUEST
        assert (await talker.ask(0, m.UnregisterBrokerRequest(broker_id=2))).error_code == 102
        await join(scene, await scene.connect(CONTROLLER))
        assert (await talker.ask(0, m.UnregisterBrokerRequest(broker_id=2))).error_code == 0
        assert list(scene.node.broker.metadata.image.brokers) == [1]

    play(script)


def update(feature: str, level: int, **fields: Any) -> m.UpdateFeaturesRequest:
    each = m.UpdateFeaturesRequest.FeatureUpdateKey(feature=feature, max_version_level=level, **fields)
    return m.UpdateFeaturesRequest(feature_updates=[each])


def release_update(*more: tuple[str, int], validate_only: bool = False) -> m.UpdateFeaturesRequest:
    """The request of `kafka-features upgrade --release-version 4.3`."""
    wanted = {
        "metadata.version": 30,
        "kraft.version": 1,
        "transaction.version": 2,
        "group.version": 1,
        "share.version": 1,
        "eligible.leader.replicas.version": 1,
        **dict(more),
    }
    updates = [
        m.UpdateFeaturesRequest.FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=1)
        for name, level in wanted.items()
    ]
    return m.UpdateFeaturesRequest(feature_updates=updates, timeout_ms=10_000, validate_only=validate_only)


@pytest.mark.parametrize("version", [1, 2])
def test_release_upgrade_raises_served_features_and_reports_the_others(version: int) -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        metadata = scene.node.broker.metadata
        unserved = (("streams.version", 1),)
        response = await talker.ask(version, release_update(*unserved, validate_only=True))
        assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert metadata.image.features["metadata.version"] < 30
        response = await talker.ask(version, release_update(*unserved))
        assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert response.error_message.startswith("Not supported by this version: streams.version.")
        if version == 1:
            rejected = {each.feature for each in response.results if each.error_code}
            assert rejected == {"streams.version"}
        assert metadata.image.features["metadata.version"] == 30
        assert metadata.image.features["group.version"] == 1
        assert metadata.image.features["share.version"] == 1
        assert metadata.quorum.machine.kraft_version == 1
        response = await talker.ask(version, release_update())
        assert (response.error_code, response.error_message or None) == (0, None)
        response = await talker.ask(version, release_update(("transaction.version", 9)))
        assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION

    play(script)


@pytest.mark.proves("H6", part="the controller moves")
@pytest.mark.parametrize("version", [0, 1, 2])
def test_rejected_feature_leaves_the_whole_release_upgrade_undone(version: int) -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        before = dict(scene.node.broker.metadata.image.features)
        response = await talker.ask(version, release_update(("no.such", 1)))
        assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert "no.such" in response.error_message
        if version < 2:
            assert "no.such" in {each.feature for each in response.results if each.error_code}
        assert scene.node.broker.metadata.image.features == before

    play(script)


def test_features_are_published_as_kafka_does() -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        request = m.ApiVersionsRequest(client_software_name="test", client_software_version="1")
        response = await talker.ask(4, request)
        supported = {each.name: (each.min_version, each.max_version) for each in response.supported_features}
        assert supported == {
            "metadata.version": (19, 30),
            "kraft.version": (0, 1),
            "transaction.version": (0, 2),
            "group.version": (0, 1),
            "share.version": (0, 1),
            "eligible.leader.replicas.version": (0, 1),
        }
        finalized = {each.name: each.max_version_level for each in response.finalized_features}
        assert finalized["group.version"] == 1

    play(script)


def test_features_are_upgraded_and_downgraded_in_every_version() -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        metadata = scene.node.broker.metadata
        response = await talker.ask(0, update(ELR_FEATURE, 0))
        assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert [each.error_code for each in response.results] == [ErrorCode.INVALID_UPDATE_VERSION]
        response = await talker.ask(0, update(ELR_FEATURE, 0, allow_downgrade=True))
        assert [each.error_code for each in response.results] == [0]
        assert not metadata.image.has_elr
        response = await talker.ask(1, update(ELR_FEATURE, 1, upgrade_type=1))
        assert [each.error_code for each in response.results] == [0]
        assert metadata.image.has_elr
        response = await talker.ask(2, update("no.such", 1))
        assert (response.error_code, bool(response.error_message)) == (ErrorCode.INVALID_UPDATE_VERSION, True)
        assert (await talker.ask(2, update(ELR_FEATURE, 0, upgrade_type=2))).error_code == 0
        assert not metadata.image.has_elr

    play(script)

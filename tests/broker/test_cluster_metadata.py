"""Metadata responses in a cluster: live brokers, leaders, offline replicas, forwarded changes."""

import asyncio

import pytest
from cluster_scene import Cluster, on_cluster

from moldau.broker.cluster import lost_brokers
from moldau.model.errors import ErrorCode
from moldau.wire import messages as m


async def metadata(cluster: Cluster, node_id: int, topic: str, version: int = 12) -> m.MetadataResponse:
    talker = await cluster.connect(node_id)
    response: m.MetadataResponse = await talker.ask(
        version, m.MetadataRequest(topics=[m.MetadataRequest.MetadataRequestTopic(name=topic)])
    )
    talker.connection.close()
    return response


def test_every_broker_returns_the_same_metadata() -> None:
    async def script(cluster: Cluster) -> None:
        await cluster.create("t", partitions=6)
        responses = [await metadata(cluster, node_id, "t") for node_id in (1, 2, 3)]
        for response in responses:
            assert sorted((each.node_id, each.host, each.port) for each in response.brokers) == [
                (1, "n1", 9092),
                (2, "n2", 9092),
                (3, "n3", 9092),
            ]
            assert response.controller_id == 1
            assert response.topics == responses[0].topics
            assert all(not each.offline_replicas for each in response.topics[0].partitions)

    on_cluster(script)


@pytest.mark.proves("H3")
def test_dead_broker_is_removed_and_its_replicas_are_offline() -> None:
    async def script(cluster: Cluster) -> None:
        await cluster.create("t", partitions=6)
        await cluster.create("lone", partitions=3, replicas=1)
        await asyncio.sleep(3)
        (lost,) = [index for index, leader in enumerate(cluster.leaders("lone")) if leader == 2]
        cluster.kill(2)
        await cluster.until(lambda: all(cluster.broker(2, seen_by).is_fenced for seen_by in (1, 3)), 1.0)
        await asyncio.sleep(lost_brokers.LISTED_MS / 1000)
        for node_id in (1, 3):
            response = await metadata(cluster, node_id, "t")
            assert [each.node_id for each in response.brokers] == [1, 3]
            assert all(tuple(each.offline_replicas) == (2,) for each in response.topics[0].partitions)
            assert all(each.error_code == 0 for each in response.topics[0].partitions)
            partition = (await metadata(cluster, node_id, "lone")).topics[0].partitions[lost]
            assert (partition.error_code, partition.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)

    on_cluster(script)


@pytest.mark.proves("H3")
@pytest.mark.parametrize("seed", range(5))
def test_metadata_request_at_a_leader_failure_waits_for_the_next_leader(seed: int) -> None:
    async def script(cluster: Cluster) -> None:
        await cluster.create("t", partitions=6)
        await asyncio.sleep(3)
        talker = await cluster.connect(3)
        requested = m.MetadataRequest(topics=[m.MetadataRequest.MetadataRequestTopic(name="t")])
        assert [each.leader_id for each in (await talker.ask(12, requested)).topics[0].partitions].count(2) == 2
        cluster.kill(2)
        began_s = cluster.simulation.now_s
        response = await talker.ask(
            12, requested
        )  # at once: the failure is not detected yet, perhaps not even the lost connection
        assert cluster.simulation.now_s - began_s < lost_brokers.HELD_MS_MAX / 1000
        assert {each.leader_id for each in response.topics[0].partitions} == {1, 3}
        assert sorted(each.node_id for each in response.brokers) == [1, 2, 3]  # librdkafka fails if one is missing

    on_cluster(script, seed=seed)


def test_metadata_is_not_delayed_while_all_leaders_are_alive() -> None:
    async def script(cluster: Cluster) -> None:
        await cluster.create("t", partitions=3)
        await cluster.create("here", partitions=1, replicas=1)
        await asyncio.sleep(3)
        leader = cluster.leaders("here")[0]

        async def took_s(topic: str) -> float:
            began_s = cluster.simulation.now_s
            await talker.ask(12, m.MetadataRequest(topics=[m.MetadataRequest.MetadataRequestTopic(name=topic)]))
            return cluster.simulation.now_s - began_s

        talker = await cluster.connect(leader)
        noticed_s = lost_brokers.NOTICED_MS / 1000
        assert await took_s("t") < noticed_s  # the first request
        assert await took_s("here") < noticed_s  # led by the broker itself
        assert noticed_s < await took_s("t") < 2 * noticed_s

    on_cluster(script)


def test_lost_connection_to_a_live_broker_delays_metadata_only_briefly() -> None:
    async def script(cluster: Cluster) -> None:
        await cluster.create("t", partitions=3)
        await asyncio.sleep(3)
        broker = cluster.nodes[3].broker
        talker = await cluster.connect(3)
        requested = m.MetadataRequest(topics=[m.MetadataRequest.MetadataRequestTopic(name="t")])
        address = broker.image.brokers[2].address(broker.inter_broker_listener)
        assert address is not None
        broker.lost_brokers.lost(address, "a hiccup")
        began_s = cluster.simulation.now_s
        response = await talker.ask(12, requested)
        assert cluster.simulation.now_s - began_s < lost_brokers.HELD_MS_MAX / 1000 + 0.1
        assert sorted(each.leader_id for each in response.topics[0].partitions) == [1, 2, 3]

    on_cluster(script)


def test_describe_cluster_includes_fenced_brokers_on_request() -> None:
    async def script(cluster: Cluster) -> None:
        await asyncio.sleep(3)
        cluster.kill(2)
        await cluster.until(lambda: all(cluster.broker(2, seen_by).is_fenced for seen_by in (1, 3)), 1.0)
        talker = await cluster.connect(3)
        response = await talker.ask(2, m.DescribeClusterRequest(include_fenced_brokers=True))
        assert sorted((each.broker_id, each.is_fenced) for each in response.brokers) == [
            (1, False),
            (2, True),
            (3, False),
        ]
        response = await talker.ask(2, m.DescribeClusterRequest())
        assert [each.broker_id for each in response.brokers] == [1, 3]

    on_cluster(script)


def test_leader_without_an_address_on_the_listener_is_omitted() -> None:
    async def script(cluster: Cluster) -> None:
        await cluster.create("t", partitions=3, replicas=1)
        talker = await cluster.connect(1)
        image = cluster.nodes[1].broker.image
        listener = image.brokers[2].listeners[0]
        object.__setattr__(image.brokers[2], "listeners", (listener._replace(name="INSIDE"),))
        for version, code in ((5, ErrorCode.LEADER_NOT_AVAILABLE), (12, ErrorCode.LISTENER_NOT_FOUND)):
            response = await talker.ask(version, m.MetadataRequest(topics=None))
            partitions = {each.leader_id: each.error_code for each in response.topics[0].partitions}
            assert partitions == {1: 0, 3: 0, -1: code}
        paged = await talker.ask(0, m.DescribeTopicPartitionsRequest(topics=[], response_partition_limit=10))
        partitions = {
            each.leader_id: (each.error_code, tuple(each.offline_replicas)) for each in paged.topics[0].partitions
        }
        assert partitions == {1: (0, ()), 3: (0, ()), -1: (ErrorCode.LISTENER_NOT_FOUND, (2,))}
        object.__setattr__(image.brokers[2], "listeners", (listener,))

    on_cluster(script)


def test_configs_of_any_broker_are_altered_through_any_other() -> None:
    async def script(cluster: Cluster) -> None:
        def change(broker: str) -> m.IncrementalAlterConfigsRequest:
            request = m.IncrementalAlterConfigsRequest
            config = request.AlterableConfig(name="max.connections", config_operation=0, value="1234")
            resource = request.AlterConfigsResource(resource_type=4, resource_name=broker, configs=[config])
            return request(resources=[resource])

        for through, name in ((1, "2"), (2, "3"), (3, "")):
            talker = await cluster.connect(through)
            response = await talker.ask(1, change(name))
            assert response.responses[0].error_code == 0, response
        response = await talker.ask(1, change("77"))
        assert response.responses[0].error_code == ErrorCode.INVALID_REQUEST
        await cluster.until(
            lambda: all(node.broker.settings.max_connections == 1234 for node in cluster.nodes.values()), 1.0
        )

    on_cluster(script)

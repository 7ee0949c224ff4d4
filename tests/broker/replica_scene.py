"""Replicated partitions: their leaders, the contents of each replica, and clients of the leader."""

import asyncio
from typing import Any

from broker_scene import Talker, batch, fetch, fetch_request, produce
from cluster_scene import Cluster

from moldau.broker.partitions.partition import Partition
from moldau.machines.metadata.image import PartitionImage
from moldau.model.errors import ErrorCode
from moldau.records.record import iterate_batches, iterate_records
from moldau.wire.messages import (
    AlterPartitionReassignmentsRequest,
    CreateTopicsRequest,
    ElectLeadersRequest,
    FetchRequest,
)

RETRIED = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.LEADER_NOT_AVAILABLE,
)


def copy_of(cluster: Cluster, node_id: int, topic: str = "t", index: int = 0) -> Partition:
    found = cluster.nodes[node_id].broker.partitions.find(topic, index)
    assert found is not None
    return found


def where(cluster: Cluster, topic: str = "t", index: int = 0, seen_by: int = 1) -> PartitionImage:
    return cluster.nodes[seen_by].broker.image.topics[topic].partitions[index]


def leader_of(cluster: Cluster, topic: str = "t", index: int = 0) -> int:
    return where(cluster, topic, index).leader


def contents(partition: Partition) -> bytes:
    log = partition.log
    return log.read_bytes(log.start_offset, 1 << 30)


def values(records: bytes) -> list[bytes | None]:
    return [record.value for _, each in iterate_batches(records) for record in iterate_records(each)]


async def create(cluster: Cluster, topic: str = "t", partitions: list[list[int]] | None = None, **configs: Any) -> None:
    """Create a topic with the given replica assignment; the first replica of each partition leads."""
    requested = CreateTopicsRequest.CreatableTopic(
        name=topic,
        num_partitions=-1,
        replication_factor=-1,
        assignments=[
            CreateTopicsRequest.CreatableReplicaAssignment(partition_index=index, broker_ids=brokers)
            for index, brokers in enumerate(partitions or [[2, 3, 1]])
        ],
        configs=[
            CreateTopicsRequest.CreatableTopicConfig(name=key.replace("_", "."), value=str(value))
            for key, value in configs.items()
        ],
    )
    talker = await cluster.connect(1)
    response = await talker.ask(7, CreateTopicsRequest(topics=[requested]))
    assert response.topics[0].error_code == 0, response
    talker.connection.close()
    await cluster.until(lambda: all(topic in node.broker.image.topics for node in cluster.nodes.values()), 1.0)


async def send(cluster: Cluster, *values_: bytes, topic: str = "t", acks: int = -1, index: int = 0) -> int:
    """Produce one batch to the current leader, with retries; return its base offset."""
    while True:
        leader = leader_of(cluster, topic, index)
        if leader in cluster.nodes:
            talker = await cluster.connect(leader)
            response = await produce(talker, topic, batch(*values_), acks=acks, partition=index, timeout_ms=2000)
            talker.connection.close()
            if response.error_code == 0:
                return int(response.base_offset)
            assert response.error_code in RETRIED, response
        await asyncio.sleep(0.02)


async def read(talker: Talker, offset: int = 0, topic: str = "t", **options: Any) -> list[bytes | None]:
    response = await fetch(talker, topic, offset, 12, **options)
    assert response.error_code == 0, response
    return values(bytes(response.records))


async def are_same(cluster: Cluster, *node_ids: int, topic: str = "t", index: int = 0, s_max: float = 5.0) -> None:
    """Wait until these replicas are identical, byte for byte, and know that everything is committed."""

    def is_so() -> bool:
        copies = [copy_of(cluster, node_id, topic, index) for node_id in node_ids]
        ends = {each.log.end_offset for each in copies} | {each.high_watermark for each in copies}
        return len(ends) == 1 and len({contents(each) for each in copies}) == 1

    await cluster.until(is_so, s_max)


async def fetch_by_id(cluster: Cluster, offset: int, topic: str = "t", **options: Any) -> FetchRequest:
    """Return a consumer's fetch by topic id."""
    request = fetch_request("", offset, **options)
    request.topics[0].topic_id = cluster.nodes[1].broker.image.topics[topic].topic_id
    return request


async def elect_preferred(cluster: Cluster, topic: str = "t", index: int = 0) -> None:
    talker = await cluster.connect(1)
    requested = ElectLeadersRequest.TopicPartitions(topic=topic, partitions=[index])
    response = await talker.ask(2, ElectLeadersRequest(election_type=0, topic_partitions=[requested], timeout_ms=5000))
    assert response.replica_election_results[0].partition_result[0].error_code == 0, response
    talker.connection.close()


async def reassign(cluster: Cluster, replicas: list[int], topic: str = "t", index: int = 0) -> None:
    moved = AlterPartitionReassignmentsRequest.ReassignablePartition(partition_index=index, replicas=replicas)
    requested = AlterPartitionReassignmentsRequest.ReassignableTopic(name=topic, partitions=[moved])
    talker = await cluster.connect(1)
    response = await talker.ask(0, AlterPartitionReassignmentsRequest(topics=[requested], timeout_ms=5000))
    assert (response.error_code, response.responses[0].partitions[0].error_code) == (0, 0), response
    talker.connection.close()

"""Requests from plain values, and plain values from responses."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from moldau.client.errors import error_of
from moldau.client.metadata import PartitionView, TopicView
from moldau.client.types import (
    AbortedTransaction,
    ConfigEntry,
    FetchResult,
    Isolation,
    NewTopic,
    Resource,
    TopicOutcome,
)
from moldau.model.errors import ErrorCode
from moldau.model.ids import NodeId, TopicId, TopicPartition
from moldau.model.ports import Piece
from moldau.wire import messages

# Operations of IncrementalAlterConfigs.
SET: Final = 0
DELETE: Final = 1
APPEND: Final = 2
SUBTRACT: Final = 3

Change = tuple[str, int, str | None]
EVERYTHING: Final = 2**31 - 1


def create_topics(topics: Sequence[NewTopic], timeout_ms: int, validate_only: bool) -> "messages.CreateTopicsRequest":
    request = messages.CreateTopicsRequest
    return request(
        topics=[
            request.CreatableTopic(
                name=topic.name,
                num_partitions=-1 if topic.assignments else topic.partitions,
                replication_factor=-1 if topic.assignments else topic.replication_factor,
                assignments=[
                    request.CreatableReplicaAssignment(partition_index=index, broker_ids=list(replicas))
                    for index, replicas in enumerate(topic.assignments)
                ],
                configs=[request.CreatableTopicConfig(name=name, value=text) for name, text in topic.configs.items()],
            )
            for topic in topics
        ],
        timeout_ms=timeout_ms,
        validate_only=validate_only,
    )


def created(response: "messages.CreateTopicsResponse.CreatableTopicResult") -> TopicOutcome:
    error = None if response.error_code == ErrorCode.NONE else error_of(response.error_code, response.error_message)
    return TopicOutcome(
        response.name, error, TopicId(response.topic_id), response.num_partitions, response.replication_factor
    )


def delete_topics(names: Sequence[str], timeout_ms: int) -> "messages.DeleteTopicsRequest":
    request = messages.DeleteTopicsRequest
    states = [request.DeleteTopicState(name=name) for name in names]
    return request(topics=states, topic_names=list(names), timeout_ms=timeout_ms)


def create_partitions(
    counts: Mapping[str, int], timeout_ms: int, validate_only: bool
) -> "messages.CreatePartitionsRequest":
    request = messages.CreatePartitionsRequest
    topics = [request.CreatePartitionsTopic(name=name, count=count, assignments=None) for name, count in counts.items()]
    return request(topics=topics, timeout_ms=timeout_ms, validate_only=validate_only)


def describe_cluster(with_fenced: bool = False) -> "messages.DescribeClusterRequest":
    return messages.DescribeClusterRequest(include_fenced_brokers=with_fenced)


def describe_configs(
    resource: Resource, names: Iterable[str] | None, with_documentation: bool
) -> "messages.DescribeConfigsRequest":
    request = messages.DescribeConfigsRequest
    wanted = request.DescribeConfigsResource(
        resource_type=resource.kind,
        resource_name=resource.name,
        configuration_keys=None if names is None else list(names),
    )
    return request(resources=[wanted], include_synonyms=False, include_documentation=with_documentation)


def config_entry(response: "messages.DescribeConfigsResponse.DescribeConfigsResourceResult") -> ConfigEntry:
    return ConfigEntry(
        response.name,
        response.value,
        response.config_source,
        response.is_sensitive,
        response.read_only,
        response.documentation,
    )


def config_changes(
    values: Mapping[str, str], removed: Iterable[str], appended: Mapping[str, str], subtracted: Mapping[str, str]
) -> list[Change]:
    return [
        *((name, SET, text) for name, text in values.items()),
        *((name, DELETE, None) for name in removed),
        *((name, APPEND, text) for name, text in appended.items()),
        *((name, SUBTRACT, text) for name, text in subtracted.items()),
    ]


def alter_configs(
    resource: Resource, changes: Sequence[Change], validate_only: bool
) -> "messages.IncrementalAlterConfigsRequest":
    request = messages.IncrementalAlterConfigsRequest
    configs = [
        request.AlterableConfig(name=name, config_operation=operation, value=text) for name, operation, text in changes
    ]
    target = request.AlterConfigsResource(resource_type=resource.kind, resource_name=resource.name, configs=configs)
    return request(resources=[target], validate_only=validate_only)


def init_producer_id(transactional_id: str | None, transaction_timeout_ms: int) -> "messages.InitProducerIdRequest":
    return messages.InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=transaction_timeout_ms
    )


def produce(
    topic: TopicView, partition: int, batch: Piece, acks: int, timeout_ms: int, transactional_id: str | None
) -> "messages.ProduceRequest":
    request = messages.ProduceRequest
    part = request.PartitionProduceData(index=partition, records=batch)
    return request(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[request.TopicProduceData(name=topic.name, topic_id=topic.topic_id, partition_data=[part])],
    )


def fetch(
    wanted: Sequence[tuple[TopicView, PartitionView, int]],
    *,
    max_bytes: int,
    min_bytes: int,
    max_wait_ms: int,
    isolation: Isolation,
    partition_max_bytes: int | None = None,
) -> "messages.FetchRequest":
    """Build a fetch without a session."""
    request = messages.FetchRequest
    topics: dict[str, tuple[TopicView, list[messages.FetchRequest.FetchPartition]]] = {}
    for topic, partition, offset in wanted:
        _, partitions = topics.setdefault(topic.name, (topic, []))
        partitions.append(
            request.FetchPartition(
                partition=partition.index,
                current_leader_epoch=partition.leader_epoch,
                fetch_offset=offset,
                partition_max_bytes=max_bytes if partition_max_bytes is None else partition_max_bytes,
            )
        )
    return request(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation,
        topics=[
            request.FetchTopic(topic=topic.name, topic_id=topic.topic_id, partitions=partitions)
            for topic, partitions in topics.values()
        ],
    )


def fetched(response: "messages.FetchResponse.PartitionData") -> FetchResult:
    error = None if response.error_code == ErrorCode.NONE else error_of(response.error_code)
    aborted = (AbortedTransaction(each.producer_id, each.first_offset) for each in response.aborted_transactions or ())
    return FetchResult(
        memoryview(b"") if response.records is None else memoryview(response.records),
        response.high_watermark,
        response.last_stable_offset,
        response.log_start_offset,
        tuple(aborted),
        NodeId(response.preferred_read_replica),
        error,
    )


def list_offsets(
    topic_partition: TopicPartition, target: PartitionView, timestamp_ms: int, isolation: Isolation
) -> "messages.ListOffsetsRequest":
    request = messages.ListOffsetsRequest
    part = request.ListOffsetsPartition(
        partition_index=topic_partition.partition, current_leader_epoch=target.leader_epoch, timestamp=timestamp_ms
    )
    return request(
        replica_id=-1,
        isolation_level=isolation,
        topics=[request.ListOffsetsTopic(name=topic_partition.topic, partitions=[part])],
    )


def delete_records(topic: str, partition: int, before_offset: int, timeout_ms: int) -> "messages.DeleteRecordsRequest":
    request = messages.DeleteRecordsRequest
    part = request.DeleteRecordsPartition(partition_index=partition, offset=before_offset)
    return request(topics=[request.DeleteRecordsTopic(name=topic, partitions=[part])], timeout_ms=timeout_ms)

"""DescribeTopicPartitions: topics page by page, for clusters with very many partitions."""

from moldau.broker.access import TOPIC_OPERATIONS, Operation, Resource, ResourceKind
from moldau.broker.cluster.reachable_brokers import ReachableBrokers
from moldau.broker.handlers.contexts import ClusterContext
from moldau.broker.internal_topics import is_internal
from moldau.machines.metadata.image import TopicImage
from moldau.machines.metadata.topic_names import is_topic_name
from moldau.model.errors import ErrorCode, InvalidRequest, KafkaError
from moldau.wire.messages import DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse

TopicResult = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
PartitionResult = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition


async def handle(request: DescribeTopicPartitionsRequest, context: ClusterContext) -> DescribeTopicPartitionsResponse:
    """List topics by name from the cursor on; the response's cursor marks the start of the next page."""
    first_topic, first_index = "", 0
    if request.cursor is not None:
        first_topic, first_index = request.cursor.topic_name, request.cursor.partition_index
        if first_index < 0:
            raise InvalidRequest("The cursor's partition index must not be negative.")
    left = max(1, min(request.response_partition_limit, context.broker.settings.max_request_partition_size_limit))
    response = DescribeTopicPartitionsResponse(topics=[])
    results: list[TopicResult] = []
    reach = ReachableBrokers(context.broker, context.listener)
    for name in _names(request, context):
        if name < first_topic:
            continue
        start = first_index if name == first_topic else 0
        if left == 0:
            response.next_cursor = DescribeTopicPartitionsResponse.Cursor(topic_name=name, partition_index=0)
            break
        result, reached = _topic(name, start, left, context, reach)
        results.append(result)
        left -= len(result.partitions)
        if reached is not None:
            response.next_cursor = DescribeTopicPartitionsResponse.Cursor(topic_name=name, partition_index=reached)
            break
    response.topics = results
    return response


def _names(request: DescribeTopicPartitionsRequest, context: ClusterContext) -> list[str]:
    if request.topics:
        return sorted({topic.name for topic in request.topics})
    names = context.broker.image.topics
    return sorted(name for name in names if context.may(Operation.DESCRIBE, name, is_audited=False))


def _topic(
    name: str, start: int, count_max: int, context: ClusterContext, reach: ReachableBrokers
) -> tuple[TopicResult, int | None]:
    """Describe the topic's partitions from `start` on; also return where the page ends if there are more."""
    if not context.may(Operation.DESCRIBE, name):
        return TopicResult(error_code=int(ErrorCode.TOPIC_AUTHORIZATION_FAILED), name=name), None
    operations = context.operations(Resource(ResourceKind.TOPIC, name), TOPIC_OPERATIONS)
    topic = context.broker.image.topics.get(name)
    if topic is None:
        code = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_topic_name(name) else ErrorCode.INVALID_TOPIC_EXCEPTION)
        return TopicResult(error_code=code, name=name, topic_authorized_operations=operations), None
    stop = min(len(topic.partitions), start + count_max)
    result = TopicResult(
        name=name,
        topic_id=topic.topic_id,
        is_internal=is_internal(name),
        partitions=[_partition(topic, index, reach) for index in range(start, stop)],
        topic_authorized_operations=operations,
    )
    return result, stop if stop < len(topic.partitions) else None


def _partition(topic: TopicImage, index: int, reach: ReachableBrokers) -> PartitionResult:
    partition = topic.partitions[index]
    leader, code = reach.leader_of(partition)
    return PartitionResult(
        error_code=int(code),
        partition_index=index,
        leader_id=leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=partition.replicas,
        isr_nodes=partition.isr,
        eligible_leader_replicas=partition.eligible_leader_replicas,
        last_known_elr=partition.last_known_elr,
        offline_replicas=reach.offline_of(partition),
    )


def error_response(
    request: DescribeTopicPartitionsRequest,
    error: KafkaError,
    version: int,  # noqa: ARG001
) -> DescribeTopicPartitionsResponse:
    """The response has no top-level error code, so each named topic carries the error."""
    results = [TopicResult(error_code=int(error.code), name=topic.name) for topic in request.topics]
    return DescribeTopicPartitionsResponse(topics=results)

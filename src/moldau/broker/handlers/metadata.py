"""Metadata: brokers, topics and partition leaders; creates missing topics if auto-creation is on."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from moldau.broker.access import (
    CLUSTER,
    TOPIC_OPERATIONS,
    Operation,
    Resource,
    ResourceKind,
)
from moldau.broker.cluster.reachable_brokers import ReachableBrokers
from moldau.broker.handlers.auto_create import auto_create
from moldau.broker.handlers.contexts import ClusterContext
from moldau.broker.internal_topics import is_internal
from moldau.broker.runtime.time_slice import TimeSlice
from moldau.machines.metadata.image import MetadataImage, PartitionImage, TopicImage
from moldau.machines.metadata.topic_names import check_topic_name
from moldau.model.errors import (
    ErrorCode,
    InvalidRequest,
    KafkaError,
    TopicAuthorizationFailed,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from moldau.model.ids import NO_TOPIC_ID, TopicId
from moldau.wire.messages import MetadataRequest, MetadataResponse

NULL_MEANS_ALL_FROM: Final = 1
LISTENERS_FROM: Final = 6  # older clients do not expect a leader without an address on their listener
IDS_FROM: Final = 10
NULL_NAMES_FROM: Final = 12

T = TypeVar("T")
Requested = MetadataRequest.MetadataRequestTopic
TopicResult = MetadataResponse.MetadataResponseTopic
PartitionResult = MetadataResponse.MetadataResponsePartition


async def handle(request: MetadataRequest, context: ClusterContext) -> MetadataResponse:
    """Return the brokers with their addresses on the listener of this request."""
    broker = context.broker
    await broker.lost_brokers.settle(
        lambda image: _requested_topics(request, image), is_retry=context.is_repeated_on_connection()
    )
    topics = await _topics(request, context)
    response = MetadataResponse(
        brokers=[
            MetadataResponse.MetadataResponseBroker(
                node_id=each.broker_id, host=address.host, port=address.port, rack=each.rack
            )
            for each, address in broker.reachable_brokers(context.listener, fenced_too=True)
            if broker.lost_brokers.is_listed(each)
        ],
        cluster_id=broker.cluster_id,
        controller_id=broker.controller_id,
        topics=topics,
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = context.cluster_operations()
    return response


def _requested_topics(request: MetadataRequest, image: MetadataImage) -> Iterator[TopicImage]:
    """The topics named in the request; a request for all topics waits for none."""
    for topic in request.topics or ():
        found = image.topics.get(topic.name) if topic.name else image.topics_by_id.get(TopicId(topic.topic_id))
        if found is not None:
            yield found


async def _topics(request: MetadataRequest, context: ClusterContext) -> list[TopicResult]:
    image = context.broker.image
    is_all = request.topics is None or (not request.topics and context.api_version < NULL_MEANS_ALL_FROM)
    if is_all or request.topics is None:
        seen = [
            topic for topic in image.topics.values() if context.may(Operation.DESCRIBE, topic.name, is_audited=False)
        ]
        reach = ReachableBrokers(context.broker, context.listener)
        return await _in_slices(seen, lambda topic: _describe(topic, request, context, reach), context)
    _check(request.topics, context.api_version)
    created = await _create_missing(request, context)
    reach = ReachableBrokers(context.broker, context.listener)
    # Describe each topic once even if it is named repeatedly: it may have many partitions.
    requested = {(topic.name, topic.topic_id): topic for topic in request.topics}
    return await _in_slices(requested.values(), lambda topic: _result(topic, request, context, created, reach), context)


async def _in_slices(
    topics: Iterable[T], result: Callable[[T], TopicResult], context: ClusterContext
) -> list[TopicResult]:
    turn = TimeSlice(context)
    results = []
    for topic in topics:
        results.append(result(topic))
        if turn.is_over(1 + len(results[-1].partitions)):
            await turn.next()
    return results


def _check(requested: Iterable[Requested], version: int) -> None:
    for topic in requested:
        by_id = topic.topic_id != NO_TOPIC_ID
        if topic.name is None and version < NULL_NAMES_FROM:
            raise InvalidRequest(f"The topic name must not be null in Metadata version {version}.")
        if by_id and version < NULL_NAMES_FROM:
            raise InvalidRequest(f"Metadata version {version} does not support topic ids.")
        if topic.name is None and not by_id:
            raise InvalidRequest("Each topic needs a name or an id.")


async def _create_missing(request: MetadataRequest, context: ClusterContext) -> dict[str, KafkaError]:
    """The outcome for topics that did not exist; empty without auto-creation."""
    broker = context.broker
    if not (request.allow_auto_topic_creation and broker.settings.auto_create_topics_enable):
        return {}
    missing = [
        topic.name
        for topic in request.topics or ()
        if topic.name is not None and topic.topic_id == NO_TOPIC_ID and topic.name not in broker.image.topics
    ]
    missing = [name for name in missing if context.may(Operation.DESCRIBE, name)]
    allowed = missing
    if missing and not context.is_allowed(Operation.CREATE, CLUSTER, is_audited=False):
        allowed = [name for name in missing if context.may(Operation.CREATE, name)]
    outcomes: dict[str, KafkaError] = {
        name: TopicAuthorizationFailed(f"Not authorized to create topic {name}.")
        for name in missing
        if name not in allowed
    }
    return {**outcomes, **await auto_create(broker, allowed, context)} if allowed else outcomes


def _result(
    requested: Requested,
    request: MetadataRequest,
    context: ClusterContext,
    created: dict[str, KafkaError],
    reach: ReachableBrokers,
) -> TopicResult:
    try:
        return _describe(_find(requested, context, created), request, context, reach)
    except KafkaError as error:
        by_id = requested.topic_id != NO_TOPIC_ID
        name = None if by_id and context.api_version >= NULL_NAMES_FROM else requested.name or ""
        result = TopicResult(error_code=int(error.code), name=name, topic_id=requested.topic_id)
        if name and request.include_topic_authorized_operations and not isinstance(error, TopicAuthorizationFailed):
            result.topic_authorized_operations = _operations(name, context)
        return result


def _operations(name: str, context: ClusterContext) -> int:
    return context.operations(Resource(ResourceKind.TOPIC, name), TOPIC_OPERATIONS)


def _find(requested: Requested, context: ClusterContext, created: dict[str, KafkaError]) -> TopicImage:
    image = context.broker.image
    if requested.topic_id != NO_TOPIC_ID:
        topic = image.topics_by_id.get(TopicId(requested.topic_id))
        if topic is None:
            raise UnknownTopicId("Unknown topic id.")
        if not context.may(Operation.DESCRIBE, topic.name):  # an id tells nothing; the name stays hidden
            raise TopicAuthorizationFailed("Not authorized to describe the topic of this id.")
        return topic
    assert requested.name is not None
    if not context.may(Operation.DESCRIBE, requested.name):
        raise TopicAuthorizationFailed(f"Not authorized to describe topic {requested.name}.")
    topic = image.topics.get(requested.name)
    if topic is None:
        check_topic_name(requested.name)
        raise created.get(requested.name) or UnknownTopicOrPartition(f"Topic {requested.name} does not exist.")
    return topic


def _describe(
    topic: TopicImage, request: MetadataRequest, context: ClusterContext, reach: ReachableBrokers
) -> TopicResult:
    result = TopicResult(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=is_internal(topic.name),
        partitions=[_partition(index, each, reach, context) for index, each in enumerate(topic.partitions)],
    )
    if request.include_topic_authorized_operations:
        result.topic_authorized_operations = _operations(topic.name, context)
    return result


def _partition(
    index: int, partition: PartitionImage, reach: ReachableBrokers, context: ClusterContext
) -> PartitionResult:
    leader, code = reach.leader_of(partition)
    if code is ErrorCode.LISTENER_NOT_FOUND and context.api_version < LISTENERS_FROM:
        code = ErrorCode.LEADER_NOT_AVAILABLE
    return PartitionResult(
        error_code=int(code),
        partition_index=index,
        leader_id=leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=partition.replicas,
        isr_nodes=partition.isr,
        offline_replicas=reach.offline_of(partition),
    )


def error_response(request: MetadataRequest, error: KafkaError, version: int) -> MetadataResponse:  # noqa: ARG001
    """Before version 13 only topics have an error code."""
    topics = [
        TopicResult(error_code=int(error.code), name=topic.name or "", topic_id=topic.topic_id)
        for topic in request.topics or ()
    ]
    return MetadataResponse(error_code=int(error.code), topics=topics)

"""Metadata: brokers, topics, and who leads each partition; creates a topic that is asked for, where that is wished."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from moldau.broker.access import (
    CLUSTER,
    CLUSTER_OPERATIONS,
    TOPIC_OPERATIONS,
    Operation,
    Resource,
    ResourceKind,
)
from moldau.broker.cluster.reachable_brokers import ReachableBrokers
from moldau.broker.handlers.auto_create import auto_create
from moldau.broker.internal_topics import is_internal
from moldau.broker.requests.context import RequestContext
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
LISTENERS_FROM: Final = 6  # older clients do not know that a leader may have no address on their listener
IDS_FROM: Final = 10
NULL_NAMES_FROM: Final = 12

T = TypeVar("T")
Asked = MetadataRequest.MetadataRequestTopic
TopicAnswer = MetadataResponse.MetadataResponseTopic
PartitionAnswer = MetadataResponse.MetadataResponsePartition


async def handle(request: MetadataRequest, context: RequestContext) -> MetadataResponse:
    """The brokers are named as the listener that was asked advertises them."""
    broker = context.broker
    await broker.departures.settle(
        lambda image: _asked_for(request, image), is_retry=context.is_asked_again_on_connection()
    )
    topics = await _topics(request, context)
    response = MetadataResponse(
        brokers=[
            MetadataResponse.MetadataResponseBroker(
                node_id=each.broker_id, host=address.host, port=address.port, rack=each.rack
            )
            for each, address in broker.reachable_brokers(context.listener, fenced_too=True)
            if broker.departures.is_listed(each)
        ],
        cluster_id=broker.cluster_id,
        controller_id=broker.controller_id,
        topics=topics,
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = context.operations(CLUSTER, CLUSTER_OPERATIONS)
    return response


def _asked_for(request: MetadataRequest, image: MetadataImage) -> Iterator[TopicImage]:
    """The topics that are named; nobody who asks for all of them waits for one."""
    for topic in request.topics or ():
        found = image.topics.get(topic.name) if topic.name else image.topics_by_id.get(TopicId(topic.topic_id))
        if found is not None:
            yield found


async def _topics(request: MetadataRequest, context: RequestContext) -> list[TopicAnswer]:
    image = context.broker.image
    is_all = request.topics is None or (not request.topics and context.api_version < NULL_MEANS_ALL_FROM)
    if is_all or request.topics is None:
        seen = [topic for topic in image.topics.values() if context.may(Operation.DESCRIBE, topic.name)]
        reach = ReachableBrokers(context.broker, context.listener)
        return await _in_turns(seen, lambda topic: _describe(topic, request, context, reach), context)
    _check(request.topics, context.api_version)
    created = await _create_missing(request, context)
    reach = ReachableBrokers(context.broker, context.listener)
    # Each topic once, however often it is named: its partitions may be many.
    asked = {(topic.name, topic.topic_id): topic for topic in request.topics}
    return await _in_turns(asked.values(), lambda topic: _answer(topic, request, context, created, reach), context)


async def _in_turns(
    topics: Iterable[T], answer: Callable[[T], TopicAnswer], context: RequestContext
) -> list[TopicAnswer]:
    turn = TimeSlice(context)
    answers = []
    for topic in topics:
        answers.append(answer(topic))
        if turn.is_over(1 + len(answers[-1].partitions)):
            await turn.next()
    return answers


def _check(asked: Iterable[Asked], version: int) -> None:
    for topic in asked:
        by_id = topic.topic_id != NO_TOPIC_ID
        if topic.name is None and version < NULL_NAMES_FROM:
            raise InvalidRequest(f"A topic name may not be null in Metadata version {version}.")
        if by_id and version < NULL_NAMES_FROM:
            raise InvalidRequest(f"Topics are not asked for by id in Metadata version {version}.")
        if topic.name is None and not by_id:
            raise InvalidRequest("A topic is asked for by its name or by its id.")


async def _create_missing(request: MetadataRequest, context: RequestContext) -> dict[str, KafkaError]:
    """What became of the topics that did not exist; empty where topics are not created by asking."""
    broker = context.broker
    if not (request.allow_auto_topic_creation and broker.settings.auto_create_topics_enable):
        return {}
    missing = [
        topic.name
        for topic in request.topics or ()
        if topic.name is not None and topic.topic_id == NO_TOPIC_ID and topic.name not in broker.image.topics
    ]
    allowed = [
        name
        for name in missing
        if context.is_allowed(Operation.CREATE, CLUSTER)
        or context.is_allowed(Operation.CREATE, Resource(ResourceKind.TOPIC, name))
    ]
    return await auto_create(broker, allowed, context) if allowed else {}


def _answer(
    asked: Asked,
    request: MetadataRequest,
    context: RequestContext,
    created: dict[str, KafkaError],
    reach: ReachableBrokers,
) -> TopicAnswer:
    try:
        return _describe(_find(asked, context, created), request, context, reach)
    except KafkaError as error:
        by_id = asked.topic_id != NO_TOPIC_ID
        name = None if by_id and context.api_version >= NULL_NAMES_FROM else asked.name or ""
        return TopicAnswer(error_code=int(error.code), name=name, topic_id=asked.topic_id)


def _find(asked: Asked, context: RequestContext, created: dict[str, KafkaError]) -> TopicImage:
    image = context.broker.image
    if asked.topic_id != NO_TOPIC_ID:
        topic = image.topics_by_id.get(TopicId(asked.topic_id))
        if topic is None or not context.may(Operation.DESCRIBE, topic.name):
            raise UnknownTopicId("There is no topic with this id.")
        return topic
    assert asked.name is not None
    if not context.may(Operation.DESCRIBE, asked.name):
        raise TopicAuthorizationFailed(f"Not authorized to describe topic {asked.name}.")
    topic = image.topics.get(asked.name)
    if topic is None:
        check_topic_name(asked.name)
        raise created.get(asked.name) or UnknownTopicOrPartition(f"There is no topic {asked.name}.")
    return topic


def _describe(
    topic: TopicImage, request: MetadataRequest, context: RequestContext, reach: ReachableBrokers
) -> TopicAnswer:
    answer = TopicAnswer(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=is_internal(topic.name),
        partitions=[_partition(index, each, reach, context) for index, each in enumerate(topic.partitions)],
    )
    if request.include_topic_authorized_operations:
        resource = Resource(ResourceKind.TOPIC, topic.name)
        answer.topic_authorized_operations = context.operations(resource, TOPIC_OPERATIONS)
    return answer


def _partition(
    index: int, partition: PartitionImage, reach: ReachableBrokers, context: RequestContext
) -> PartitionAnswer:
    leader, code = reach.leader_of(partition)
    if code is ErrorCode.LISTENER_NOT_FOUND and context.api_version < LISTENERS_FROM:
        code = ErrorCode.LEADER_NOT_AVAILABLE
    return PartitionAnswer(
        error_code=int(code),
        partition_index=index,
        leader_id=leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=partition.replicas,
        isr_nodes=partition.isr,
        offline_replicas=reach.offline_of(partition),
    )


def refuse(request: MetadataRequest, error: KafkaError, version: int) -> MetadataResponse:  # noqa: ARG001
    """Before version 13 there is no place for an error but at the topics."""
    topics = [
        TopicAnswer(error_code=int(error.code), name=topic.name or "", topic_id=topic.topic_id)
        for topic in request.topics or ()
    ]
    return MetadataResponse(error_code=int(error.code), topics=topics)

"""DescribeConfigs: the settings of topics and brokers, what holds, and who said so."""

from collections.abc import Sequence

from moldau.broker.access import CLUSTER, Operation, ResourceKind
from moldau.broker.access import Resource as Protected
from moldau.broker.configs.resolution import (
    DescribedSetting,
    describe_broker,
    describe_cluster,
    describe_group,
    describe_topic,
)
from moldau.broker.requests.context import RequestContext
from moldau.broker.runtime.time_slice import TimeSlice
from moldau.machines.metadata.image import Resource, ResourceType
from moldau.machines.metadata.topic_names import check_topic_name
from moldau.model.errors import InvalidRequest, KafkaError, UnknownTopicOrPartition
from moldau.wire.messages import DescribeConfigsRequest, DescribeConfigsResponse

Asked = DescribeConfigsRequest.DescribeConfigsResource
Answer = DescribeConfigsResponse.DescribeConfigsResult
Entry = DescribeConfigsResponse.DescribeConfigsResourceResult


async def handle(request: DescribeConfigsRequest, context: RequestContext) -> DescribeConfigsResponse:
    """Each resource is described or refused by itself."""
    # Each question once, however often it is asked: an answer is a thousand times as long.
    questions = {
        (asked.resource_type, asked.resource_name, tuple(asked.configuration_keys or ())): asked
        for asked in request.resources
    }
    turn = TimeSlice(context)
    answers = []
    for asked in questions.values():
        answers.append(_answer(asked, request, context))
        if turn.is_over(1 + len(answers[-1].configs)):
            await turn.next()
    return DescribeConfigsResponse(results=answers)


def _answer(asked: Asked, request: DescribeConfigsRequest, context: RequestContext) -> Answer:
    try:
        described = _describe(asked, context)
    except KafkaError as error:
        return _refused(asked, error)
    return Answer(
        resource_type=asked.resource_type,
        resource_name=asked.resource_name,
        configs=[_entry(each, request) for each in described],
    )


def _describe(asked: Asked, context: RequestContext) -> Sequence[DescribedSetting]:
    broker = context.broker
    if asked.resource_type == ResourceType.TOPIC:
        name = asked.resource_name
        context.authorize(Operation.DESCRIBE_CONFIGS, Protected(ResourceKind.TOPIC, name))
        check_topic_name(name)
        if name not in broker.image.topics:
            raise UnknownTopicOrPartition(f"There is no topic {name}.")
        return describe_topic(broker.image.topic_configs(name), broker.texts, asked.configuration_keys)
    if asked.resource_type == ResourceType.BROKER:
        context.authorize(Operation.DESCRIBE_CONFIGS, CLUSTER)
        if not asked.resource_name:
            return describe_cluster(broker.texts.cluster, asked.configuration_keys)
        if asked.resource_name != str(broker.node_id):
            raise InvalidRequest(f"This is broker {broker.node_id}: it cannot describe '{asked.resource_name}'.")
        return describe_broker(broker.texts, asked.configuration_keys)
    if asked.resource_type == ResourceType.GROUP:
        return _describe_group(asked, context)
    raise InvalidRequest(f"Configs of resource type {asked.resource_type} are not described here.")


def _describe_group(asked: Asked, context: RequestContext) -> Sequence[DescribedSetting]:
    """Whether there is such a group does not matter: its settings wait for it."""
    context.authorize(Operation.DESCRIBE_CONFIGS, Protected(ResourceKind.GROUP, asked.resource_name))
    if not asked.resource_name:
        raise InvalidRequest("A group's name may not be empty.")
    broker = context.broker
    said = broker.image.configs.get(Resource(ResourceType.GROUP, asked.resource_name), {})
    defaults = {
        "consumer.heartbeat.interval.ms": broker.settings.group_consumer_heartbeat_interval_ms,
        "consumer.session.timeout.ms": broker.settings.group_consumer_session_timeout_ms,
    }
    return describe_group(said, asked.configuration_keys, defaults)


def _entry(described: DescribedSetting, request: DescribeConfigsRequest) -> Entry:
    entry = Entry(
        name=described.name,
        value=described.value,
        read_only=described.is_read_only,
        config_source=int(described.source),
        is_sensitive=described.is_sensitive,
        synonyms=[],
        config_type=described.kind.value,
        documentation=described.documentation if request.include_documentation else None,
    )
    if request.include_synonyms:
        entry.synonyms = [
            DescribeConfigsResponse.DescribeConfigsSynonym(name=each.name, value=each.value, source=int(each.source))
            for each in described.synonyms
        ]
    return entry


def _refused(asked: Asked, error: KafkaError) -> Answer:
    return Answer(
        resource_type=asked.resource_type,
        resource_name=asked.resource_name,
        error_code=int(error.code),
        error_message=error.message,
        configs=[],
    )


def refuse(request: DescribeConfigsRequest, error: KafkaError, version: int) -> DescribeConfigsResponse:  # noqa: ARG001
    """The same error for every resource."""
    return DescribeConfigsResponse(results=[_refused(asked, error) for asked in request.resources])

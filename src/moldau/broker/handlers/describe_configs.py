"""DescribeConfigs: the effective settings of topics, brokers and groups, and where each value comes from."""

from collections.abc import Sequence

from moldau.broker.access import CLUSTER, Operation, ResourceKind
from moldau.broker.access import Resource as Protected
from moldau.broker.configs.resolution import (
    DescribedSetting,
    describe_broker,
    describe_client_metrics,
    describe_cluster,
    describe_group,
    describe_loggers,
    describe_topic,
)
from moldau.broker.handlers.contexts import ClusterContext
from moldau.broker.runtime.broker_loggers import logger_levels
from moldau.broker.runtime.time_slice import TimeSlice
from moldau.machines.metadata.image import Resource, ResourceType
from moldau.machines.metadata.topic_names import check_topic_name
from moldau.model.errors import InvalidRequest, KafkaError, UnknownTopicOrPartition
from moldau.wire.messages import DescribeConfigsRequest, DescribeConfigsResponse

Requested = DescribeConfigsRequest.DescribeConfigsResource
Result = DescribeConfigsResponse.DescribeConfigsResult
Entry = DescribeConfigsResponse.DescribeConfigsResourceResult


async def handle(request: DescribeConfigsRequest, context: ClusterContext) -> DescribeConfigsResponse:
    """Describe or reject each resource on its own."""
    # Deduplicate resources: a description is a thousand times longer than its request.
    checks = {
        (requested.resource_type, requested.resource_name, tuple(requested.configuration_keys or ())): requested
        for requested in request.resources
    }
    turn = TimeSlice(context)
    results = []
    for requested in checks.values():
        results.append(_result(requested, request, context))
        if turn.is_over(1 + len(results[-1].configs)):
            await turn.next()
    return DescribeConfigsResponse(results=results)


def _result(requested: Requested, request: DescribeConfigsRequest, context: ClusterContext) -> Result:
    try:
        described = _describe(requested, context)
    except KafkaError as error:
        return _error_result(requested, error)
    return Result(
        resource_type=requested.resource_type,
        resource_name=requested.resource_name,
        configs=[_entry(each, request) for each in described],
    )


def _describe(requested: Requested, context: ClusterContext) -> Sequence[DescribedSetting]:
    broker = context.broker
    if requested.resource_type == ResourceType.TOPIC:
        name = requested.resource_name
        context.authorize(Operation.DESCRIBE_CONFIGS, Protected(ResourceKind.TOPIC, name))
        check_topic_name(name)
        if name not in broker.image.topics:
            raise UnknownTopicOrPartition(f"Topic {name} does not exist.")
        return describe_topic(broker.image.topic_configs(name), broker.texts, requested.configuration_keys)
    if requested.resource_type == ResourceType.BROKER:
        context.authorize(Operation.DESCRIBE_CONFIGS, CLUSTER)
        if not requested.resource_name:
            return describe_cluster(broker.texts.cluster, requested.configuration_keys)
        if requested.resource_name != str(broker.node_id):
            raise InvalidRequest(f"Broker {broker.node_id} cannot describe broker '{requested.resource_name}'.")
        return describe_broker(broker.texts, requested.configuration_keys)
    if requested.resource_type == ResourceType.BROKER_LOGGER:
        context.authorize(Operation.DESCRIBE_CONFIGS, CLUSTER)
        if requested.resource_name != str(broker.node_id):
            raise InvalidRequest(f"Broker {broker.node_id} cannot describe loggers of '{requested.resource_name}'.")
        return describe_loggers(logger_levels(), requested.configuration_keys)
    if requested.resource_type == ResourceType.GROUP:
        return _describe_group(requested, context)
    if requested.resource_type == ResourceType.CLIENT_METRICS:
        return _describe_client_metrics(requested, context)
    raise InvalidRequest(f"Configs of resource type {requested.resource_type} cannot be described.")


def _describe_group(requested: Requested, context: ClusterContext) -> Sequence[DescribedSetting]:
    """Describe a group's configs; the group itself need not exist yet."""
    context.authorize(Operation.DESCRIBE_CONFIGS, Protected(ResourceKind.GROUP, requested.resource_name))
    if not requested.resource_name:
        raise InvalidRequest("The group id must not be empty.")
    broker = context.broker
    stored = broker.image.configs.get(Resource(ResourceType.GROUP, requested.resource_name), {})
    defaults = {
        "consumer.heartbeat.interval.ms": broker.settings.group_consumer_heartbeat_interval_ms,
        "consumer.session.timeout.ms": broker.settings.group_consumer_session_timeout_ms,
    }
    return describe_group(stored, requested.configuration_keys, defaults)


def _describe_client_metrics(requested: Requested, context: ClusterContext) -> Sequence[DescribedSetting]:
    """Describe a client-metrics resource; one that does not exist has the defaults."""
    context.authorize(Operation.DESCRIBE_CONFIGS, CLUSTER)
    if not requested.resource_name:
        raise InvalidRequest("Client metrics subscription name must not be empty")
    stored = context.broker.image.configs.get(Resource(ResourceType.CLIENT_METRICS, requested.resource_name), {})
    return describe_client_metrics(stored, requested.configuration_keys)


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


def _error_result(requested: Requested, error: KafkaError) -> Result:
    return Result(
        resource_type=requested.resource_type,
        resource_name=requested.resource_name,
        error_code=int(error.code),
        error_message=error.message,
        configs=[],
    )


def error_response(request: DescribeConfigsRequest, error: KafkaError, version: int) -> DescribeConfigsResponse:  # noqa: ARG001
    """Return the same error for every resource."""
    return DescribeConfigsResponse(results=[_error_result(requested, error) for requested in request.resources])

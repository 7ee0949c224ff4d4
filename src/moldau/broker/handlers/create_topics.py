"""CreateTopics: create or reject each topic of the request on its own."""

from collections import Counter
from typing import Final

from moldau.broker.access import CLUSTER, Operation, Resource, ResourceKind
from moldau.broker.controllers.topic_creation import create_topics
from moldau.broker.handlers.contexts import QuorumContext
from moldau.machines.metadata.topics import NewTopic, TopicCreated
from moldau.model.errors import ErrorCode, InvalidRequest, KafkaError, TopicAuthorizationFailed
from moldau.model.protocol import METADATA_TOPIC
from moldau.wire.messages import CreateTopicsRequest, CreateTopicsResponse

DETAILS_FROM: Final = 5
STRICT_QUOTA_FROM: Final = 6  # before, a client over its quota of metadata changes is only throttled (KIP-599)

Requested = CreateTopicsRequest.CreatableTopic
Result = CreateTopicsResponse.CreatableTopicResult


async def handle(request: CreateTopicsRequest, context: QuorumContext) -> CreateTopicsResponse:
    """Respond once the topics are committed and their partitions are open on this broker."""
    rejected = {topic.name: error for topic in request.topics if (error := _rejection(topic.name, context))}
    wanted = [_new_topic(topic) for topic in request.topics if topic.name not in rejected]
    quota = context.broker.client_quotas.mutations_of(
        context.principal, context.client_id, is_strict=context.api_version >= STRICT_QUOTA_FROM
    )
    created = []
    if wanted:
        created = await create_topics(context.broker, wanted, validate_only=request.validate_only, quota=quota)
    results = [_error_result(name, error) for name, error in rejected.items()]
    results.extend(_result(outcome, context) for outcome in created)
    for result in results:
        if result.error_code:
            context.log_rejection("a new topic", result.name, result.error_message)
    return CreateTopicsResponse(topics=results, throttle_time_ms=quota.throttle_ms)


def _rejection(name: str, context: QuorumContext) -> KafkaError | None:
    if not (
        context.is_allowed(Operation.CREATE, CLUSTER, is_audited=False)
        or context.is_allowed(Operation.CREATE, Resource(ResourceKind.TOPIC, name))
    ):
        return TopicAuthorizationFailed(f"Not authorized to create topic {name}.")
    if name == METADATA_TOPIC:
        return InvalidRequest(f"{METADATA_TOPIC} is the cluster metadata log and cannot be created.")
    return None


def _new_topic(topic: Requested) -> NewTopic:
    return NewTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        [(each.partition_index, list(each.broker_ids)) for each in topic.assignments],
        [(config.name, config.value) for config in topic.configs],
    )


def _result(outcome: TopicCreated, context: QuorumContext) -> Result:
    result = Result(
        name=outcome.name,
        topic_id=outcome.topic_id,
        error_code=int(outcome.error),
        error_message=outcome.message,
        num_partitions=outcome.partitions,
        replication_factor=outcome.replication_factor,
        configs=None,
    )
    if outcome.error is not ErrorCode.NONE or context.api_version < DETAILS_FROM:
        return result
    if not context.may(Operation.DESCRIBE_CONFIGS, outcome.name, is_audited=False):
        result.topic_config_error_code = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        result.num_partitions = result.replication_factor = -1
        return result
    result.configs = [
        CreateTopicsResponse.CreatableTopicConfigs(
            name=entry.name,
            value=entry.value,
            read_only=entry.is_read_only,
            config_source=int(entry.source.value),
            is_sensitive=entry.is_sensitive,
        )
        for entry in context.broker.describe_topic(outcome.configs)
    ]
    return result


def _error_result(name: str, error: KafkaError) -> Result:
    return Result(name=name, error_code=int(error.code), error_message=error.message, configs=None)


def error_response(request: CreateTopicsRequest, error: KafkaError, version: int) -> CreateTopicsResponse:  # noqa: ARG001
    """Return the same error for every topic, each name once."""
    names = Counter(topic.name for topic in request.topics)
    return CreateTopicsResponse(topics=[_error_result(name, error) for name in names])

"""CreateTopics: each topic of the request is created or refused by itself."""

from collections import Counter
from typing import Final

from moldau.broker.access import CLUSTER, Operation, Resource, ResourceKind
from moldau.broker.controllers.topic_creation import create_topics
from moldau.broker.internal_topics import METADATA_TOPIC
from moldau.broker.requests.context import RequestContext
from moldau.machines.metadata.topics import NewTopic, TopicCreated
from moldau.model.errors import ErrorCode, InvalidRequest, KafkaError, TopicAuthorizationFailed
from moldau.wire.messages import CreateTopicsRequest, CreateTopicsResponse

DETAILS_FROM: Final = 5

Asked = CreateTopicsRequest.CreatableTopic
Answer = CreateTopicsResponse.CreatableTopicResult


async def handle(request: CreateTopicsRequest, context: RequestContext) -> CreateTopicsResponse:
    """Answered once the topics are committed and their partitions open here."""
    refused = {topic.name: error for topic in request.topics if (error := _refusal(topic.name, context))}
    wanted = [_new_topic(topic) for topic in request.topics if topic.name not in refused]
    created = await create_topics(context.broker, wanted, validate_only=request.validate_only) if wanted else []
    answers = [_refused(name, error) for name, error in refused.items()]
    answers.extend(_answer(outcome, context) for outcome in created)
    for answer in answers:
        if answer.error_code:
            context.note_refusal("a new topic", answer.name, answer.error_message)
    return CreateTopicsResponse(topics=answers)


def _refusal(name: str, context: RequestContext) -> KafkaError | None:
    if not (
        context.is_allowed(Operation.CREATE, CLUSTER)
        or context.is_allowed(Operation.CREATE, Resource(ResourceKind.TOPIC, name))
    ):
        return TopicAuthorizationFailed(f"Not authorized to create topic {name}.")
    if name == METADATA_TOPIC:
        return InvalidRequest(f"{METADATA_TOPIC} is the cluster's own log, not a topic to be created.")
    return None


def _new_topic(topic: Asked) -> NewTopic:
    return NewTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        [(each.partition_index, list(each.broker_ids)) for each in topic.assignments],
        [(config.name, config.value) for config in topic.configs],
    )


def _answer(outcome: TopicCreated, context: RequestContext) -> Answer:
    answer = Answer(
        name=outcome.name,
        topic_id=outcome.topic_id,
        error_code=int(outcome.error),
        error_message=outcome.message,
        num_partitions=outcome.partitions,
        replication_factor=outcome.replication_factor,
        configs=None,
    )
    if outcome.error is not ErrorCode.NONE or context.api_version < DETAILS_FROM:
        return answer
    if not context.is_allowed(Operation.DESCRIBE_CONFIGS, Resource(ResourceKind.TOPIC, outcome.name)):
        answer.topic_config_error_code = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        answer.num_partitions = answer.replication_factor = -1
        return answer
    answer.configs = [
        CreateTopicsResponse.CreatableTopicConfigs(
            name=entry.name,
            value=entry.value,
            read_only=entry.is_read_only,
            config_source=int(entry.source.value),
            is_sensitive=entry.is_sensitive,
        )
        for entry in context.broker.describe_topic(outcome.configs)
    ]
    return answer


def _refused(name: str, error: KafkaError) -> Answer:
    return Answer(name=name, error_code=int(error.code), error_message=error.message, configs=None)


def refuse(request: CreateTopicsRequest, error: KafkaError, version: int) -> CreateTopicsResponse:  # noqa: ARG001
    """The same error for every topic, each name once."""
    names = Counter(topic.name for topic in request.topics)
    return CreateTopicsResponse(topics=[_refused(name, error) for name in names])

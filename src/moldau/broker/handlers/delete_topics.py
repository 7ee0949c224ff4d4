"""DeleteTopics: delete topics by name, or from version 6 on by id."""

from typing import Final

from moldau.broker.access import CLUSTER, Operation
from moldau.broker.handlers.contexts import QuorumContext
from moldau.machines.metadata.topics import TopicDeleted, TopicReference
from moldau.model.errors import ErrorCode, KafkaError
from moldau.model.ids import NO_TOPIC_ID, TopicId
from moldau.wire.messages import DeleteTopicsRequest, DeleteTopicsResponse

BY_ID_FROM: Final = 6
STRICT_QUOTA_FROM: Final = 5  # before, a client over its quota of metadata changes is only throttled (KIP-599)

Result = DeleteTopicsResponse.DeletableTopicResult


async def handle(request: DeleteTopicsRequest, context: QuorumContext) -> DeleteTopicsResponse:
    """Respond once the deletion is committed and the partitions are closed on this broker."""
    references = _references(request, context.api_version)
    rejected = {reference: result for reference in references if (result := _rejection(reference, context))}
    wanted = [reference for reference in references if reference not in rejected]
    results = list(rejected.values())
    quota = context.broker.client_quotas.mutations_of(
        context.principal, context.client_id, is_strict=context.api_version >= STRICT_QUOTA_FROM
    )
    if wanted:
        deleted = await context.broker.metadata.write(lambda machine: machine.decide_delete_topics(wanted, quota=quota))
        await context.broker.catch_up_with_metadata()
        results.extend(_result(each) for each in deleted)
    return DeleteTopicsResponse(responses=results, throttle_time_ms=quota.throttle_ms)


def _references(request: DeleteTopicsRequest, version: int) -> list[TopicReference]:
    if version >= BY_ID_FROM:
        return [TopicReference(topic.name, TopicId(topic.topic_id)) for topic in request.topics]
    return [TopicReference(name) for name in request.topic_names]


def _rejection(reference: TopicReference, context: QuorumContext) -> Result | None:
    """Do not reveal the name of a topic that the client may not describe."""
    name = reference.name
    if name is None:
        name = context.broker.image.topic_name(reference.topic_id)
    if name is None or context.is_allowed(Operation.DELETE, CLUSTER, is_audited=False):
        return None
    is_visible = context.may(Operation.DESCRIBE, name, is_audited=False)
    if (is_visible or reference.name is None) and context.may(Operation.DELETE, name):
        return None
    is_seen = is_visible or reference.name is not None
    return Result(
        name=name if is_seen else None,
        topic_id=reference.topic_id,
        error_code=int(ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        error_message=f"Not authorized to delete topic{' ' + name if is_seen else ''}.",
    )


def _result(deleted: TopicDeleted) -> Result:
    return Result(
        name=deleted.name, topic_id=deleted.topic_id, error_code=int(deleted.error), error_message=deleted.message
    )


def error_response(request: DeleteTopicsRequest, error: KafkaError, version: int) -> DeleteTopicsResponse:
    """Return the same error for every topic."""
    results = [
        Result(
            name=each.name,
            topic_id=each.topic_id or NO_TOPIC_ID,
            error_code=int(error.code),
            error_message=error.message,
        )
        for each in _references(request, version)
    ]
    return DeleteTopicsResponse(responses=results)

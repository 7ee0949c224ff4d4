"""CreatePartitions: add partitions to topics."""

from typing import Final

from moldau.broker.access import Operation
from moldau.broker.controllers.topic_creation import PLACEMENT_STARTS, check_room
from moldau.broker.handlers.contexts import QuorumContext
from moldau.broker.internal_topics import is_internal
from moldau.machines.metadata.partitions import MorePartitions
from moldau.model.errors import InvalidTopic, KafkaError, TopicAuthorizationFailed
from moldau.wire.messages import CreatePartitionsRequest, CreatePartitionsResponse

STRICT_QUOTA_FROM: Final = 3  # before, a client over its quota of metadata changes is only throttled (KIP-599)

Requested = CreatePartitionsRequest.CreatePartitionsTopic
Result = CreatePartitionsResponse.CreatePartitionsTopicResult


async def handle(request: CreatePartitionsRequest, context: QuorumContext) -> CreatePartitionsResponse:
    """Extend or reject each topic on its own."""
    broker = context.broker
    quota = broker.client_quotas.mutations_of(
        context.principal, context.client_id, is_strict=context.api_version >= STRICT_QUOTA_FROM
    )
    results = []
    wanted = []
    for topic in request.topics:
        rejection = _rejection(topic.name, context)
        if rejection is None:
            wanted.append(_additional_partitions(topic))
        else:
            results.append(_error_result(topic.name, rejection))
    if wanted:
        topics = broker.image.topics
        check_room(
            broker,
            sum(max(0, each.count - len(topics[each.name].partitions)) for each in wanted if each.name in topics),
        )
        start = broker.random.randrange(0, PLACEMENT_STARTS)
        grown = await broker.metadata.write(
            lambda machine: machine.decide_create_partitions(
                wanted, start=start, validate_only=request.validate_only, quota=quota
            )
        )
        await broker.catch_up_with_metadata()
        results.extend(Result(name=each.name, error_code=int(each.error), error_message=each.message) for each in grown)
    return CreatePartitionsResponse(results=results, throttle_time_ms=quota.throttle_ms)


def _rejection(name: str, context: QuorumContext) -> KafkaError | None:
    """Internal topics are rejected: the partition count maps group and transactional ids to coordinators."""
    if not context.may(Operation.ALTER, name):
        return TopicAuthorizationFailed(f"Not authorized to alter topic {name}.")
    if is_internal(name):
        return InvalidTopic(f"Partitions cannot be added to the internal topic {name}.")
    return None


def _additional_partitions(topic: Requested) -> MorePartitions:
    assignments = None
    if topic.assignments is not None:
        assignments = [list(each.broker_ids) for each in topic.assignments]
    return MorePartitions(topic.name, topic.count, assignments)


def _error_result(name: str, error: KafkaError) -> Result:
    return Result(name=name, error_code=int(error.code), error_message=error.message)


def error_response(request: CreatePartitionsRequest, error: KafkaError, version: int) -> CreatePartitionsResponse:  # noqa: ARG001
    """Return the same error for every topic."""
    return CreatePartitionsResponse(results=[_error_result(topic.name, error) for topic in request.topics])

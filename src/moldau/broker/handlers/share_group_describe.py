"""ShareGroupDescribe: share groups with their members and assignments."""

from moldau.broker.access import GROUP_OPERATIONS, Operation, Resource, ResourceKind
from moldau.broker.handlers.contexts import GroupContext
from moldau.broker.runtime.time_slice import TimeSlice
from moldau.model.errors import KafkaError, TopicAuthorizationFailed
from moldau.wire.messages import ShareGroupDescribeRequest, ShareGroupDescribeResponse

Described = ShareGroupDescribeResponse.DescribedGroup


async def handle(request: ShareGroupDescribeRequest, context: GroupContext) -> ShareGroupDescribeResponse:
    """Describe or reject each group on its own."""
    turn = TimeSlice(context)
    groups = []
    for group_id in request.group_ids:
        groups.append(await _describe(group_id, request, context))
        if turn.is_over():
            await turn.next()
    return ShareGroupDescribeResponse(groups=groups)


async def _describe(group_id: str, request: ShareGroupDescribeRequest, context: GroupContext) -> Described:
    try:
        context.authorize_group(Operation.DESCRIBE, group_id)
        shard = context.broker.groups.shard_of(group_id)
        (described,) = await shard.read(lambda machine: machine.describe_share_groups([group_id]))
        if not all(context.may(Operation.DESCRIBE, topic) for topic in _topics(described)):
            raise TopicAuthorizationFailed("Not authorized to describe all topics of the group.")
    except KafkaError as error:
        return _error_result(group_id, error)
    if request.include_authorized_operations and not described.error_code:
        resource = Resource(ResourceKind.GROUP, group_id)
        described.authorized_operations = context.operations(resource, GROUP_OPERATIONS)
    return described


def _topics(group: Described) -> set[str]:
    return {topic.topic_name for member in group.members for topic in member.assignment.topic_partitions} | {
        name for member in group.members for name in member.subscribed_topic_names
    }


def _error_result(group_id: str, error: KafkaError) -> Described:
    return Described(group_id=group_id, error_code=int(error.code), error_message=error.message)


def error_response(
    request: ShareGroupDescribeRequest,
    error: KafkaError,
    version: int,  # noqa: ARG001
) -> ShareGroupDescribeResponse:
    """Return the same error for every group."""
    return ShareGroupDescribeResponse(groups=[_error_result(group_id, error) for group_id in request.group_ids])

"""DescribeGroups: the state and the members of classic groups."""

from moldau.broker.access import GROUP_OPERATIONS, Operation, Resource, ResourceKind
from moldau.broker.handlers.contexts import GroupContext
from moldau.broker.runtime.time_slice import TimeSlice
from moldau.model.errors import KafkaError
from moldau.wire.messages import DescribeGroupsRequest, DescribeGroupsResponse

Described = DescribeGroupsResponse.DescribedGroup


async def handle(request: DescribeGroupsRequest, context: GroupContext) -> DescribeGroupsResponse:
    """Describe or reject each group on its own."""
    turn = TimeSlice(context)
    groups = []
    for group_id in dict.fromkeys(request.groups):
        groups.append(await _describe(group_id, request, context))
        if turn.is_over():
            await turn.next()
    return DescribeGroupsResponse(groups=groups)


async def _describe(group_id: str, request: DescribeGroupsRequest, context: GroupContext) -> Described:
    try:
        context.authorize_group(Operation.DESCRIBE, group_id)
        shard = context.broker.groups.shard_of(group_id)
        version = context.api_version
        described = await shard.read(lambda machine: machine.describe_group(group_id, api_version=version))
    except KafkaError as error:
        return _error_result(group_id, error)
    if request.include_authorized_operations and not described.error_code:
        resource = Resource(ResourceKind.GROUP, group_id)
        described.authorized_operations = context.operations(resource, GROUP_OPERATIONS)
    return described


def _error_result(group_id: str, error: KafkaError) -> Described:
    return Described(group_id=group_id, error_code=int(error.code), error_message=error.message)


def error_response(request: DescribeGroupsRequest, error: KafkaError, version: int) -> DescribeGroupsResponse:  # noqa: ARG001
    """Return the same error for every group."""
    return DescribeGroupsResponse(groups=[_error_result(group_id, error) for group_id in request.groups])

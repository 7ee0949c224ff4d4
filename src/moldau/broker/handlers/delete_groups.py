"""DeleteGroups: delete empty groups with what belongs to them, such as committed offsets."""

from moldau.broker.access import Operation
from moldau.broker.handlers.contexts import ShareContext
from moldau.broker.handlers.share_states import delete_states
from moldau.broker.runtime.time_slice import TimeSlice
from moldau.model.errors import KafkaError
from moldau.wire.messages import DeleteGroupsRequest, DeleteGroupsResponse

Result = DeleteGroupsResponse.DeletableGroupResult


async def handle(request: DeleteGroupsRequest, context: ShareContext) -> DeleteGroupsResponse:
    """Delete or reject each group on its own."""
    turn = TimeSlice(context)
    results = []
    for group_id in dict.fromkeys(request.groups_names):
        results.append(await _delete(group_id, context))
        if turn.is_over():
            await turn.next()
    return DeleteGroupsResponse(results=results)


async def _delete(group_id: str, context: ShareContext) -> Result:
    try:
        context.authorize_group(Operation.DELETE, group_id)
        shard = context.broker.groups.shard_of(group_id)
        if await shard.read(lambda machine: group_id in machine.state.share):
            await delete_states(context.broker, group_id, None)
        (result,) = await shard.commit(lambda machine: machine.decide_delete_groups([group_id], now=shard.now))
    except KafkaError as error:
        return Result(group_id=group_id, error_code=int(error.code))
    return result


def error_response(request: DeleteGroupsRequest, error: KafkaError, version: int) -> DeleteGroupsResponse:  # noqa: ARG001
    """Return the same error for every group."""
    return DeleteGroupsResponse(
        results=[Result(group_id=group_id, error_code=int(error.code)) for group_id in request.groups_names]
    )

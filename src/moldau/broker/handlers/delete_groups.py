"""DeleteGroups: groups without members go, and their offsets with them."""

from moldau.broker.access import Operation
from moldau.broker.requests.context import RequestContext
from moldau.broker.runtime.time_slice import TimeSlice
from moldau.model.errors import KafkaError
from moldau.wire.messages import DeleteGroupsRequest, DeleteGroupsResponse

Answer = DeleteGroupsResponse.DeletableGroupResult


async def handle(request: DeleteGroupsRequest, context: RequestContext) -> DeleteGroupsResponse:
    """Each group goes or is refused by itself."""
    turn = TimeSlice(context)
    results = []
    for group_id in dict.fromkeys(request.groups_names):
        results.append(await _delete(group_id, context))
        if turn.is_over():
            await turn.next()
    return DeleteGroupsResponse(results=results)


async def _delete(group_id: str, context: RequestContext) -> Answer:
    try:
        context.authorize_group(Operation.DELETE, group_id)
        shard = context.broker.groups.shard_of(group_id)
        (result,) = await shard.commit(lambda machine: machine.decide_delete_groups([group_id], now=shard.now))
    except KafkaError as error:
        return Answer(group_id=group_id, error_code=int(error.code))
    return result


def refuse(request: DeleteGroupsRequest, error: KafkaError, version: int) -> DeleteGroupsResponse:  # noqa: ARG001
    """The same error for every group."""
    return DeleteGroupsResponse(
        results=[Answer(group_id=group_id, error_code=int(error.code)) for group_id in request.groups_names]
    )

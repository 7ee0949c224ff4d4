"""DeleteShareGroupState: a group coordinator deletes the states of share partitions."""

from typing import Any, Final

from moldau.broker.handlers.contexts import ShareContext
from moldau.broker.handlers.share_state_requests import StateResponse
from moldau.broker.shares.persister import SharePartitionKey
from moldau.wire import messages

Response = messages.DeleteShareGroupStateResponse
Result = Response.PartitionResult

_SHAPE: Final = StateResponse(Response, Response.DeleteStateResult, Result)
error_response = _SHAPE.error_response


async def handle(request: messages.DeleteShareGroupStateRequest, context: ShareContext) -> Response:
    coordinator = context.broker.share_coordinator

    async def decide(key: SharePartitionKey, _: Any) -> Any:
        await coordinator.delete(key)
        return Result(partition=key.partition)

    return await _SHAPE.respond_each(request, context, decide)

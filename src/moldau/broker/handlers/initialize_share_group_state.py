"""InitializeShareGroupState: a group coordinator creates or resets the states of share partitions."""

from typing import Any, Final

from moldau.broker.handlers.contexts import ShareContext
from moldau.broker.handlers.share_state_requests import StateResponse
from moldau.broker.shares.persister import SharePartitionKey
from moldau.wire import messages

Response = messages.InitializeShareGroupStateResponse
Result = Response.PartitionResult

_SHAPE: Final = StateResponse(Response, Response.InitializeStateResult, Result)
error_response = _SHAPE.error_response


async def handle(request: messages.InitializeShareGroupStateRequest, context: ShareContext) -> Response:
    coordinator = context.broker.share_coordinator

    async def decide(key: SharePartitionKey, partition: Any) -> Any:
        await coordinator.initialize(key, partition.state_epoch, partition.start_offset)
        return Result(partition=key.partition)

    return await _SHAPE.respond_each(request, context, decide)

"""ReadShareGroupState: a share-partition leader reads a state, and fences earlier leaders."""

from typing import Any, Final

from moldau.broker.handlers.contexts import ShareContext
from moldau.broker.handlers.share_state_requests import StateResponse
from moldau.broker.shares.persister import SharePartitionKey
from moldau.wire import messages

Response = messages.ReadShareGroupStateResponse
Result = Response.PartitionResult

_SHAPE: Final = StateResponse(Response, Response.ReadStateResult, Result)
error_response = _SHAPE.error_response


async def handle(request: messages.ReadShareGroupStateRequest, context: ShareContext) -> Response:
    coordinator = context.broker.share_coordinator

    async def decide(key: SharePartitionKey, partition: Any) -> Any:
        state = await coordinator.read(key, partition.leader_epoch)
        return Result(
            partition=key.partition,
            state_epoch=state.state_epoch,
            start_offset=state.start_offset,
            state_batches=[
                Response.StateBatch(
                    first_offset=each.first_offset,
                    last_offset=each.last_offset,
                    delivery_state=each.delivery_state,
                    delivery_count=each.delivery_count,
                )
                for each in state.batches
            ],
        )

    return await _SHAPE.respond_each(request, context, decide)

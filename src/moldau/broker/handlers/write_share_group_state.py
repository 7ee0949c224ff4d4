"""WriteShareGroupState: a share-partition leader persists changed states of records."""

from typing import Any, Final

from moldau.broker.handlers.contexts import ShareContext
from moldau.broker.handlers.share_state_requests import StateResponse
from moldau.broker.shares.persister import SharePartitionKey
from moldau.machines.shares.state import StateBatch, StateWrite
from moldau.wire import messages

Response = messages.WriteShareGroupStateResponse
Result = Response.PartitionResult

_SHAPE: Final = StateResponse(Response, Response.WriteStateResult, Result)
error_response = _SHAPE.error_response


async def handle(request: messages.WriteShareGroupStateRequest, context: ShareContext) -> Response:
    coordinator = context.broker.share_coordinator

    async def decide(key: SharePartitionKey, partition: Any) -> Any:
        batches = tuple(
            StateBatch(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
            for each in partition.state_batches
        )
        write = StateWrite(partition.start_offset, partition.delivery_complete_count, batches)
        await coordinator.write(key, partition.state_epoch, partition.leader_epoch, write)
        return Result(partition=key.partition)

    return await _SHAPE.respond_each(request, context, decide)

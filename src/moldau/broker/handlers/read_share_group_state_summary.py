"""ReadShareGroupStateSummary: the epochs and start offsets of share partitions."""

from typing import Any, Final

from moldau.broker.handlers.contexts import ShareContext
from moldau.broker.handlers.share_state_requests import StateResponse
from moldau.broker.shares.persister import SharePartitionKey
from moldau.wire import messages

Response = messages.ReadShareGroupStateSummaryResponse
Result = Response.PartitionResult

_SHAPE: Final = StateResponse(Response, Response.ReadStateSummaryResult, Result)
error_response = _SHAPE.error_response


async def handle(request: messages.ReadShareGroupStateSummaryRequest, context: ShareContext) -> Response:
    coordinator = context.broker.share_coordinator

    async def decide(key: SharePartitionKey, _: Any) -> Any:
        summary = await coordinator.summary(key)
        return Result(
            partition=key.partition,
            state_epoch=summary.state_epoch,
            leader_epoch=summary.leader_epoch,
            start_offset=summary.start_offset,
            delivery_complete_count=summary.complete_count,
        )

    return await _SHAPE.respond_each(request, context, decide)

"""Heartbeat: a member says it is alive; the answer tells it when to rejoin."""

from collections.abc import Callable

from moldau.broker.access import Operation
from moldau.broker.requests.context import RequestContext
from moldau.wire.messages import HeartbeatRequest, HeartbeatResponse


async def handle(request: HeartbeatRequest, context: RequestContext) -> HeartbeatResponse:
    """It moves a deadline and writes nothing."""
    context.authorize_group(Operation.READ, request.group_id)
    shard = context.broker.groups.shard_of(request.group_id)
    await shard.write(lambda machine: machine.decide_heartbeat(request, context.started_ms))
    return HeartbeatResponse()


def recurs(
    request: HeartbeatRequest,
    context: RequestContext,
    response: HeartbeatResponse,
) -> Callable[[float], bool] | None:
    """Every sign of life of a member in one generation is the same request with the same answer."""
    if response.error_code:
        return None
    groups = context.broker.groups

    def again(now_ms: float) -> bool:
        shard = groups.shard_of(request.group_id)
        return shard.decide_now(lambda machine: machine.decide_heartbeat(request, now_ms)) is not None

    return again

"""Heartbeat: extend a member's session; the response tells it when to rejoin."""

from collections.abc import Callable

from moldau.broker.access import Operation
from moldau.broker.handlers.contexts import GroupContext
from moldau.wire.messages import HeartbeatRequest, HeartbeatResponse


async def handle(request: HeartbeatRequest, context: GroupContext) -> HeartbeatResponse:
    """Extend the session; no record is written."""
    context.authorize_group(Operation.READ, request.group_id)
    shard = context.broker.groups.shard_of(request.group_id)
    await shard.write(lambda machine: machine.decide_heartbeat(request, context.started_ms))
    return HeartbeatResponse()


def make_repeat(
    request: HeartbeatRequest,
    context: GroupContext,
    response: HeartbeatResponse,
) -> Callable[[float], bool] | None:
    """For the fast path: all heartbeats of a member in one generation are equal, and so are their responses."""
    if response.error_code:
        return None
    groups = context.broker.groups

    def repeat(now_ms: float) -> bool:
        shard = groups.shard_of(request.group_id)
        return shard.decide_now(lambda machine: machine.decide_heartbeat(request, now_ms)) is not None

    return repeat

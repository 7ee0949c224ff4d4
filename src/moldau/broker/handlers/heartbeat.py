"""Heartbeat: a member says it is alive; the answer tells it when to rejoin."""

from moldau.broker.access import Operation
from moldau.broker.context import RequestContext
from moldau.wire.messages import HeartbeatRequest, HeartbeatResponse


async def handle(request: HeartbeatRequest, context: RequestContext) -> HeartbeatResponse:
    """It moves a deadline and writes nothing."""
    context.authorize_group(Operation.READ, request.group_id)
    shard = context.broker.groups.shard_of(request.group_id)
    await shard.write(lambda machine: machine.decide_heartbeat(request, context.started_ms))
    return HeartbeatResponse()

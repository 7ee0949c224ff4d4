"""ShareGroupHeartbeat: a member of a share group joins, stays or leaves; the response carries its assignment."""

from moldau.broker.access import Operation
from moldau.broker.handlers.contexts import GroupContext
from moldau.machines.groups.draft import Caller, Now
from moldau.model.errors import TopicAuthorizationFailed
from moldau.wire.messages import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse


async def handle(request: ShareGroupHeartbeatRequest, context: GroupContext) -> ShareGroupHeartbeatResponse:
    """Handle a heartbeat; if nothing changed it extends the session and writes no record."""
    context.authorize_group(Operation.READ, request.group_id)
    if not all(context.may(Operation.DESCRIBE, name) for name in request.subscribed_topic_names or ()):
        raise TopicAuthorizationFailed("Not authorized to describe all subscribed topics.")
    shard = context.broker.groups.shard_of(request.group_id)
    caller = Caller(context.client_id or "", context.client_host, context.api_version)
    now = Now(context.started_ms, context.clock.wall_ms())
    if not shard.can_commit:  # a heartbeat that changes nothing is accepted all the same
        return await shard.write(
            lambda machine: shard.unless_none(machine.decide_share_keepalive(request, caller, now.ms))
        )
    return await shard.write(lambda machine: machine.decide_share_heartbeat(request, caller, now=now))

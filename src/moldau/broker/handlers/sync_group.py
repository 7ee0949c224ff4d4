"""SyncGroup: the leader of a group hands in who gets what, and every member is told its share."""

from moldau.broker.access import Operation
from moldau.broker.requests.context import RequestContext
from moldau.wire.messages import SyncGroupRequest, SyncGroupResponse


async def handle(request: SyncGroupRequest, context: RequestContext) -> SyncGroupResponse:
    """Waits for the leader's word."""
    context.authorize_group(Operation.READ, request.group_id)
    shard = context.broker.groups.shard_of(request.group_id)
    ticket = shard.new_ticket()
    return await shard.commit(lambda machine: machine.decide_sync(request, ticket=ticket, now=shard.now), ticket)

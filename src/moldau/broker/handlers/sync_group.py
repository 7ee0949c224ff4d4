"""SyncGroup: the group leader submits the assignment, and every member gets its part."""

from moldau.broker.access import Operation
from moldau.broker.handlers.contexts import GroupContext
from moldau.wire.messages import SyncGroupRequest, SyncGroupResponse


async def handle(request: SyncGroupRequest, context: GroupContext) -> SyncGroupResponse:
    """Wait for the leader's assignment."""
    context.authorize_group(Operation.READ, request.group_id)
    shard = context.broker.groups.shard_of(request.group_id)
    ticket = shard.new_ticket()
    return await shard.commit(lambda machine: machine.decide_sync(request, ticket=ticket, now=shard.now), ticket)

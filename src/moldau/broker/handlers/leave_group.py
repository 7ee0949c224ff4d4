"""LeaveGroup: members leave, or an admin removes static members."""

from moldau.broker.access import Operation
from moldau.broker.handlers.contexts import GroupContext
from moldau.wire.messages import LeaveGroupRequest, LeaveGroupResponse


async def handle(request: LeaveGroupRequest, context: GroupContext) -> LeaveGroupResponse:
    """Respond at once, without waiting for the rebalance."""
    context.authorize_group(Operation.READ, request.group_id)
    shard = context.broker.groups.shard_of(request.group_id)
    version = context.api_version
    return await shard.commit(lambda machine: machine.decide_leave(request, api_version=version, now=shard.now))

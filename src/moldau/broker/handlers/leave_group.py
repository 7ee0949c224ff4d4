"""LeaveGroup: members go, or an admin sends static ones away."""

from moldau.broker.access import Operation
from moldau.broker.requests.context import RequestContext
from moldau.wire.messages import LeaveGroupRequest, LeaveGroupResponse


async def handle(request: LeaveGroupRequest, context: RequestContext) -> LeaveGroupResponse:
    """Answered at once, whatever the others have to do then."""
    context.authorize_group(Operation.READ, request.group_id)
    shard = context.broker.groups.shard_of(request.group_id)
    version = context.api_version
    return await shard.commit(lambda machine: machine.decide_leave(request, api_version=version, now=shard.now))
